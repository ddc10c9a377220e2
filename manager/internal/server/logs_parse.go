package server

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
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
	if err := api.CheckJSON(b, jobDepth); err != nil {
		return a, err
	}
	root := gjson.ParseBytes(b)
	if entries := root.Get("entries"); !entries.Exists() {
		it, err := parseItem(root)
		a.items = append(a.items, it)
		return a, err
	}
	a.batch = true
	err := api.Members(root, nullIsAbsent(func(name string, v gjson.Result) error {
		switch name {
		case "entries":
			return a.parseEntries(v)
		case "atomic":
			return boolField(name, v, &a.atomic)
		}
		return api.UnknownField(name)
	}))
	return a, err
}

func (a *appendCall) parseEntries(v gjson.Result) error {
	if !v.IsArray() {
		return &api.FieldError{Field: "entries", Value: httpd.Clip(v.Raw), Allowed: "must be an array"}
	}
	v.ForEach(func(_, e gjson.Result) bool {
		it, err := parseItem(e)
		it.Err = err
		a.items = append(a.items, it)
		return len(a.items) <= logs.MaxBatchEntries
	})
	if n := len(a.items); n < 1 {
		return &api.FieldError{Field: "entries", Allowed: "must not be empty"}
	} else if n > logs.MaxBatchEntries {
		return &httpd.Refusal{P: api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: "entries: has more than " + strconv.Itoa(logs.MaxBatchEntries) + ", which a batch has at most; nothing was written",
		}}
	}
	return nil
}

// parseItem reads {payload, id?, derive?, properties?, writer?, epoch?} of a body that was checked.
func parseItem(entry gjson.Result) (it logs.Item, err error) {
	given := false
	err = api.Members(entry, nullIsAbsent(func(name string, v gjson.Result) error {
		switch name {
		case "payload":
			given = true
			s, err := api.StringField(name, v)
			if err != nil {
				return err
			}
			if it.Payload, err = base64.StdEncoding.AppendDecode(make([]byte, 0, len(s)/4*3), []byte(s)); err != nil {
				return &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be base64 of the bytes, with padding"}
			}
			return nil
		case "id":
			if absent(v) {
				return nil
			}
			it.ID, err = api.TextField(name, v)
			if err == nil && it.ID == "" {
				err = &api.FieldError{Field: name, Allowed: "must be 1 to " + strconv.Itoa(logs.MaxIDBytes) + " bytes"}
			}
			return err
		case "derive":
			return deriveField(name, v, &it.Derive)
		case "properties":
			return propertiesField(name, v, &it.Properties)
		case "writer":
			if absent(v) {
				return nil
			}
			if it.Writer, err = api.TextField(name, v); err != nil {
				return err
			}
			return logs.CheckWriter(it.Writer)
		case "epoch":
			return epochField(name, v, &it.Epoch)
		}
		return api.UnknownField(name)
	}))
	if err == nil && !given {
		err = &api.FieldError{Field: "payload", Allowed: "is missing: must be base64 of the bytes"}
	}
	return it, err
}

func deriveField(name string, v gjson.Result, to *logs.Derive) error {
	if absent(v) {
		return nil
	}
	s, err := api.StringField(name, v)
	if err != nil {
		return err
	}
	d, ok := logs.ParseDerive(s)
	if !ok {
		return &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be md5 or sha256"}
	}
	*to = d
	return nil
}

func epochField(name string, v gjson.Result, to *uint64) error {
	if absent(v) {
		return nil
	}
	n, err := strconv.ParseUint(api.WholeNumber(v.Raw), 10, 63)
	if err != nil || n == 0 || v.Type != gjson.Number {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be a whole number, at least 1"}
	}
	*to = n
	return nil
}

func propertiesField(name string, v gjson.Result, to *[]logs.Property) error {
	if absent(v) {
		return nil
	}
	err := api.ParseObject([]byte(v.Raw), 1, func(key string, value gjson.Result) error {
		s, err := api.TextField(name+"."+httpd.Clip(key), value)
		*to = append(*to, logs.Property{Name: key, Value: s})
		return err
	})
	slices.SortFunc(*to, func(a, b logs.Property) int { return strings.Compare(a.Name, b.Name) })
	return within(name, err)
}

func parseWriter(b []byte) (name string, err error) {
	given := false
	err = fields(b, func(field string, v gjson.Result) error {
		if field != "writer" {
			return api.UnknownField(field)
		}
		given = true
		if absent(v) {
			return nil
		}
		name, err = api.TextField(field, v)
		return err
	})
	if err == nil && !given {
		err = &api.FieldError{Field: "writer", Allowed: "is missing: must be 1 to " + strconv.Itoa(logs.MaxWriterBytes) + " bytes"}
	}
	return name, err
}

var logChangeFields = []string{"identity", "window_ms", "retain_ms", "max_keys", "max_bytes", "retain_bytes", "when_full"}

// parseLogChange reads a log's configuration, of which every field may be missing.
func parseLogChange(b []byte) (ch logs.Change, err error) {
	err = fields(b, func(name string, v gjson.Result) error {
		if absent(v) && slices.Contains(logChangeFields, name) {
			return nil
		}
		switch name {
		case "identity":
			s, err := api.StringField(name, v)
			id, ok := logs.ParseIdentity(s)
			if err == nil && !ok {
				err = &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be ids or structured"}
			}
			ch.Identity = &id
			return err
		case "window_ms":
			ch.Window = new(time.Duration)
			return millisField(name, v, ch.Window)
		case "retain_ms":
			ch.Retain = new(time.Duration)
			return millisField(name, v, ch.Retain)
		case "max_keys":
			ch.MaxKeys = new(int)
			return intField(name, v, ch.MaxKeys)
		case "max_bytes":
			ch.MaxBytes = new(int64)
			return int64Field(name, v, ch.MaxBytes)
		case "retain_bytes":
			ch.RetainLen = new(int64)
			return int64Field(name, v, ch.RetainLen)
		case "when_full":
			s, err := api.StringField(name, v)
			if err == nil && s != "evict" && s != "refuse" {
				err = &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be evict or refuse"}
			}
			refuse := s == "refuse"
			ch.RefuseWhenFull = &refuse
			return err
		}
		return api.UnknownField(name)
	})
	return ch, err
}

func int64Field(name string, v gjson.Result, to *int64) error {
	n, err := strconv.ParseInt(api.WholeNumber(v.Raw), 10, 64)
	if err != nil || v.Type != gjson.Number {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be a whole number"}
	}
	*to = n
	return nil
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
	q.Wait = millis(wait)
	return q, err
}
