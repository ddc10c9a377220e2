package server

import (
	"slices"
	"strconv"
	"strings"

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
