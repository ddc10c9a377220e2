package server

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

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
