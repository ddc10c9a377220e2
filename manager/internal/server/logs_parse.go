package server

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// appendCall is an append that was read.
type appendCall struct {
	items         []logs.Item
	batch, atomic bool
}

// parseAppend reads one entry, or {"entries":[...], "atomic"?}. What is wrong with one entry of a
// batch is that entry's Err.
func parseAppend(b []byte) (appendCall, error) {
	if a, ok := quickAppend(b); ok {
		return a, nil
	}
	return parseAnyAppend(b)
}

// parseAnyAppend is parseAppend for every body.
func parseAnyAppend(b []byte) (appendCall, error) {
	var a appendCall
	body, err := schema.Read(b)
	if err != nil {
		return a, err
	}
	if !body.Has("entries") {
		it, err := parseItem(body)
		a.items = append(a.items, it)
		return a, err
	}
	var in schema.LogItems
	err = body.Parse(&in)
	a.batch, a.atomic = true, in.Atomic
	switch n := len(in.Entries); {
	case err != nil:
		return a, err
	case n < 1:
		return a, &api.FieldError{Field: "entries", Allowed: "must not be empty"}
	case n > logs.MaxBatchEntries:
		return a, &httpd.Refusal{P: api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: "entries: has more than " + strconv.Itoa(logs.MaxBatchEntries) + ", which a batch has at most; nothing was written",
		}}
	}
	for _, entry := range in.Entries {
		it, err := parseItem(entry)
		it.Err = err
		a.items = append(a.items, it)
	}
	return a, nil
}

// parseItem reads an entry.
func parseItem(v schema.Value) (it logs.Item, err error) {
	var in schema.LogItem
	if err := v.Parse(&in); err != nil {
		return it, err
	}
	it = logs.Item{Payload: in.Payload, Epoch: in.Epoch}
	it.Derive = logs.ParseDerive(in.Derive) // the schema has the names
	for name, value := range in.Properties {
		it.Properties = append(it.Properties, logs.Property{Name: name, Value: value})
	}
	slices.SortFunc(it.Properties, func(a, b logs.Property) int { return strings.Compare(a.Name, b.Name) })
	if in.ID != nil {
		if it.ID = *in.ID; it.ID == "" {
			return it, &api.FieldError{Field: "id", Allowed: "must be 1 to " + strconv.Itoa(logs.MaxIDBytes) + " bytes"}
		}
	}
	if in.Writer != nil {
		if it.Writer = *in.Writer; logs.CheckWriter(it.Writer) != nil {
			return it, logs.CheckWriter(it.Writer)
		}
	}
	if it.Payload == nil {
		err = &api.FieldError{Field: "payload", Allowed: "is missing: must be base64 of the bytes"}
	}
	return it, err
}

func parseWriter(b []byte) (name string, err error) {
	var in schema.LogWriterRequest
	if err := schema.Parse(b, &in); err != nil {
		return "", err
	}
	if in.Writer == nil {
		return "", &api.FieldError{Field: "writer", Allowed: "is missing: must be 1 to " + strconv.Itoa(logs.MaxWriterBytes) + " bytes"}
	}
	return *in.Writer, nil
}

// parseLogChange reads a log's configuration, of which every field may be missing.
func parseLogChange(b []byte) (logs.Change, error) {
	var in schema.LogChange
	if err := schema.Parse(b, &in); err != nil {
		return logs.Change{}, err
	}
	ch := logs.Change{Window: in.Window, Retain: in.Retain, MaxKeys: in.MaxKeys, MaxBytes: in.MaxBytes, RetainLen: in.RetainBytes}
	if in.Identity != nil {
		id, _ := logs.ParseIdentity(*in.Identity) // the schema has the names
		ch.Identity = &id
	}
	if in.WhenFull != nil {
		refuse := *in.WhenFull == "refuse"
		ch.RefuseWhenFull = &refuse
	}
	return ch, nil
}

// parseRead reads what a reader asks for.
func parseRead(r *httpd.Request) (q logs.Query, err error) {
	values, err := r.QueryValues("after", "limit", "wait_ms")
	if err != nil {
		return q, err
	}
	if s := values["after"]; s == "" {
		q.Beginning = true
	} else if q.After, err = strconv.ParseUint(s, 10, 63); err != nil {
		return q, &api.FieldError{Field: "after", Value: httpd.Clip(s), Allowed: "must be a cursor that this log gave out, or empty for the beginning"}
	}
	if q.Limit, err = limitOf(values, logs.MaxLimit, 0); err != nil {
		return q, err
	}
	wait, err := whole(values, "wait_ms", 0, logs.MaxWait.Milliseconds(), 0)
	q.Wait = schema.Duration(wait)
	return q, err
}

// quickAppend reads in one pass what writers send most: entries of id, payload, writer and epoch, without space
// between the members and without escapes. It reports false for every other body, right or wrong. What it reads it reads as
// parseAppend does.
func quickAppend(body []byte) (a appendCall, ok bool) {
	q := quickScan{rest: body, payloads: make([]byte, 0, base64.StdEncoding.DecodedLen(len(body)))}
	a.batch = q.skip(`{"entries":[`)
	for {
		var it logs.Item
		before := len(q.rest)
		if !q.item(&it) || len(a.items) == logs.MaxBatchEntries {
			return a, false
		}
		if a.items == nil { // the others are about as long
			a.items = make([]logs.Item, 0, min(logs.MaxBatchEntries, 1+len(q.rest)/(before-len(q.rest))))
		}
		a.items = append(a.items, it)
		if !a.batch {
			return a, len(q.rest) == 0
		}
		if !q.skip(",") {
			return a, string(q.rest) == "]}"
		}
	}
}

// quickScan is what of a body was not read yet, and where the payloads go.
type quickScan struct {
	rest, payloads []byte
}

// skip reads the text if it comes next.
func (q *quickScan) skip(text string) bool {
	if len(q.rest) < len(text) || string(q.rest[:len(text)]) != text {
		return false
	}
	q.rest = q.rest[len(text):]
	return true
}

// item reads an entry.
func (q *quickScan) item(it *logs.Item) bool {
	if !q.skip("{") {
		return false
	}
	for {
		ok := false
		switch {
		case it.ID == "" && q.skip(`"id":"`):
			it.ID, ok = q.text()
		case it.Payload == nil && q.skip(`"payload":"`):
			it.Payload, ok = q.payload()
		case it.Writer == "" && q.skip(`"writer":"`):
			it.Writer, ok = q.text()
			ok = ok && logs.CheckWriter(it.Writer) == nil
		case it.Epoch == 0 && q.skip(`"epoch":`):
			it.Epoch, ok = q.number()
		}
		if !ok {
			return false
		}
		if !q.skip(",") {
			return q.skip("}") && it.Payload != nil
		}
	}
}

// upToQuote reads what comes before the next quote, and the quote.
func (q *quickScan) upToQuote() ([]byte, bool) {
	end := bytes.IndexByte(q.rest, '"')
	if end < 0 {
		return nil, false
	}
	text := q.rest[:end]
	q.rest = q.rest[end+1:]
	return text, true
}

// text reads the rest of a string that is not empty and has no escapes.
func (q *quickScan) text() (string, bool) {
	text, ok := q.upToQuote()
	for _, c := range text {
		if c < 0x20 || c == '\\' {
			return "", false
		}
	}
	return string(text), ok && len(text) > 0 && utf8.Valid(text)
}

// payload reads the rest of a string of base64.
func (q *quickScan) payload() ([]byte, bool) {
	text, ok := q.upToQuote()
	if !ok {
		return nil, false
	}
	at := len(q.payloads)
	all, err := base64.StdEncoding.AppendDecode(q.payloads, text)
	n := len(text) / 4 * 3
	for i := len(text) - 1; i >= 0 && text[i] == '='; i-- {
		n--
	}
	// Decoding skips the ends of lines, which a JSON string must not have.
	if err != nil || len(text)%4 != 0 || len(all)-at != n {
		return nil, false
	}
	q.payloads = all
	return all[at:len(all):len(all)], true
}

// number reads a number of 1 to 18 digits that is not zero.
func (q *quickScan) number() (n uint64, ok bool) {
	i := 0
	for ; i < len(q.rest) && i < 18 && q.rest[i]-'0' < 10; i++ {
		n = n*10 + uint64(q.rest[i]-'0')
	}
	ok = i > 0 && q.rest[0] != '0'
	q.rest = q.rest[i:]
	return n, ok
}
