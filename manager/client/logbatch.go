package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// append sends the messages as one batch.
func (w *IdempotentWriter) append(ctx context.Context, batch []*write) ([]WriteResult, error) {
	size := 16
	for _, one := range batch {
		size += 64 + len(w.opts.Writer) + base64.StdEncoding.EncodedLen(one.bytes())
	}
	body := append(make(wire.Encoded, 0, size), `{"entries":[`...)
	for i, one := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = w.appendItem(body, one)
	}
	body = append(body, "]}"...)
	call := wire.Call{Method: "POST", Path: w.log.path("/entries"), Body: body}
	var answer []byte
	if _, err := w.log.client.do(ctx, call, &answer); err != nil {
		return nil, err
	}
	results := make([]WriteResult, len(batch))
	if w.log.readResults(answer, batch, results) {
		return results, nil
	}
	return results, readAnyResults(&call, answer, batch, results)
}

// appendItem appends a message as the API takes an entry.
func (w *IdempotentWriter) appendItem(b []byte, one *write) []byte {
	b = api.AppendJSONString(append(b, `{"id":`...), one.id)
	b = append(base64.StdEncoding.AppendEncode(append(b, `,"payload":"`...), one.payload), '"')
	if len(one.properties) > 0 {
		comma := `,"properties":{`
		for name, value := range one.properties {
			b = append(api.AppendJSONString(append(b, comma...), name), ':')
			b = api.AppendJSONString(b, value)
			comma = ","
		}
		b = append(b, '}')
	}
	if w.opts.Writer != "" {
		b = api.AppendJSONString(append(b, `,"writer":`...), w.opts.Writer)
		b = strconv.AppendUint(append(b, `,"epoch":`...), w.epoch, 10)
	}
	return append(b, '}')
}

// readResults reads the answer to a batch of which every message is in the log, as managers write it. It reports
// false for every other answer.
func (l *Log) readResults(answer []byte, batch []*write, results []WriteResult) bool {
	a := answerScan(answer)
	log := append(api.AppendJSONString([]byte(`,"log":`), l.name), `,"segment":`...)
	var id []byte
	for i, one := range batch {
		before := `{"results":[{"status":20`
		if i > 0 {
			before = `,{"status":20`
		}
		id = api.AppendJSONString(append(id[:0], `,"id":`...), one.id)
		r := &results[i]
		*r = WriteResult{ID: one.id}
		if !a.skip(before) || !a.skip("1") && !a.skip("0") || !a.skipBytes(log) || !a.number(&r.LogMessageID.Segment) ||
			!a.skip(`,"entry":`) || !a.number(&r.LogMessageID.Entry) || !a.skipBytes(id) {
			return false
		}
		r.Duplicate = a.skip(`,"duplicate":true`)
		if !a.skip("}") {
			return false
		}
	}
	return string(a) == "]}"
}

// answerScan is what of an answer was not read yet.
type answerScan []byte

// skip reads the text if it comes next.
func (a *answerScan) skip(text string) bool {
	if b := *a; len(b) < len(text) || string(b[:len(text)]) != text {
		return false
	}
	*a = (*a)[len(text):]
	return true
}

func (a *answerScan) skipBytes(text []byte) bool {
	if !bytes.HasPrefix(*a, text) {
		return false
	}
	*a = (*a)[len(text):]
	return true
}

// number reads a number from 1 to 18 digits that is not zero.
func (a *answerScan) number(to *uint64) bool {
	n, b := 0, *a
	for *to = 0; n < len(b) && n < 18 && b[n]-'0' < 10; n++ {
		*to = *to*10 + uint64(b[n]-'0')
	}
	*a = b[n:]
	return n > 0 && b[0] != '0'
}

// readAnyResults reads every answer to a batch.
func readAnyResults(call *wire.Call, answer []byte, batch []*write, results []WriteResult) error {
	var out struct {
		Results []struct {
			api.Problem
			LogMessageID
			ID        string `json:"id"`
			Duplicate bool   `json:"duplicate"`
		} `json:"results"`
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return call.NotOurs(err.Error())
	}
	if len(out.Results) != len(batch) {
		return call.NotOurs(fmt.Sprintf("%d results for %d entries", len(out.Results), len(batch)))
	}
	for i, r := range out.Results {
		switch id := batch[i].id; {
		case r.Status != 200 && r.Status != 201:
			results[i] = WriteResult{ID: id, Err: problemError(&r.Problem)}
		case r.ID != id || r.Entry == 0 && !r.Duplicate:
			return call.NotOurs(fmt.Sprintf("result %d is not of entry %q", i, id))
		default:
			results[i] = WriteResult{LogMessageID: r.LogMessageID, ID: id, Duplicate: r.Duplicate}
		}
	}
	return nil
}
