package api

import (
	"strconv"

	"github.com/tidwall/gjson"
)

// The JSON form of a batch is {"items":[item, ...]}, and its answer is {"results":[answer, ...]}. An item is the JSON
// form of the single call, plus op and, optionally, headers: [[name, value], ...].

// BatchCall is one item of a batch.
type BatchCall struct {
	Op Op
	// Trace are headers that relate the item to the request that caused it: at most MaxTraceHeaders, of MaxTraceBytes
	// in all.
	Trace []Header
	// Reserve is the request of a reserve, renew or unknown, Finish that of a commit or reject,
	// Release that of a release.
	Reserve ReserveRequest
	Finish  FinishRequest
	Release ReleaseRequest
}

// EachJSONItem reads the JSON form of a batch strictly and calls item with each item in order, without parsing it. The
// error is that of item, or a *FieldError about the batch as a whole.
func EachJSONItem(b []byte, item func(v gjson.Result) error) error {
	n := 0
	err := ParseObject(b, MaxJSONDepth, func(name string, v gjson.Result) (err error) {
		if name != "items" {
			return UnknownField(name)
		}
		if !v.IsArray() {
			return &FieldError{"items", shorten(v.Raw), "must be an array of 1 to 128 calls"}
		}
		v.ForEach(func(_, it gjson.Result) bool {
			n++
			err = item(it)
			return err == nil
		})
		return err
	})
	if err == nil && n == 0 {
		err = &FieldError{"items", "", allowedItems}
	}
	return err
}

// ParseJSON reads one item strictly. It does not validate the values of the call's fields. The error is a *FieldError.
func (c *BatchCall) ParseJSON(item gjson.Result) error {
	*c = BatchCall{Trace: c.Trace[:0]}
	var op gjson.Result
	err := eachMember("", item, func(name string, v gjson.Result) error {
		if name == "op" {
			op = v
		}
		return nil
	})
	if err != nil {
		if !item.IsObject() {
			err = &FieldError{"item", shorten(item.Raw), "must be a JSON object"}
		}
		return err
	}
	ok := false
	if op.Type == gjson.String {
		c.Op, ok = ParseOp(op.String())
	}
	if !ok {
		return &FieldError{"op", shorten(op.String()), "must be reserve, commit, reject, release, renew or unknown"}
	}
	found := false
	err = eachMember("", item, func(name string, v gjson.Result) error {
		switch name {
		case "op":
			return nil
		case "headers":
			return c.parseTrace(v)
		}
		switch c.Op {
		case OpRelease:
			return c.Release.jsonField(name, v)
		case OpCommit, OpReject:
			found = found || name == fieldResult
			return c.Finish.jsonField(name, v)
		default:
			return c.Reserve.jsonField(name, v)
		}
	})
	if err == nil && !found && (c.Op == OpCommit || c.Op == OpReject) {
		err = missingResult()
	}
	return err
}

func (c *BatchCall) parseTrace(v gjson.Result) error {
	return eachPair("headers", v, func(h Header) error {
		c.Trace = append(c.Trace, h)
		return ValidateTrace(c.Trace)
	})
}

// ValidateTrace checks the headers of an item. The error is a *FieldError.
func ValidateTrace(trace []Header) error {
	size := 0
	for _, h := range trace {
		size += len(h.Name) + len(h.Value)
		switch {
		case !headerName(h.Name):
			return &FieldError{"headers", shorten(h.Name), allowedHeaderName}
		case !headerValue(h.Value):
			return &FieldError{"headers", shorten(h.Name), allowedHeaderValue}
		}
	}
	if len(trace) > MaxTraceHeaders || size > MaxTraceBytes {
		return &FieldError{"headers", "", "must be at most " + strconv.Itoa(MaxTraceHeaders) + " headers of " + strconv.Itoa(MaxTraceBytes) + " bytes in all"}
	}
	return nil
}

// AppendRawItem appends the item in the raw form, for AppendRawBatch.
func (c *BatchCall) AppendRawItem(dst []byte) []byte {
	var trace [MaxTraceHeaders][2]string
	n := 0
	for ; n < len(c.Trace) && n < len(trace); n++ {
		trace[n] = [2]string{c.Trace[n].Name, c.Trace[n].Value}
	}
	return AppendRawItem(dst, c.Op, trace[:n], c.AppendRaw(nil))
}

// AppendRaw appends the raw form of the single call.
func (c *BatchCall) AppendRaw(dst []byte) []byte {
	switch c.Op {
	case OpCommit, OpReject:
		return c.Finish.AppendRaw(dst)
	case OpRelease:
		return c.Release.AppendRaw(dst)
	default:
		return c.Reserve.AppendRaw(dst)
	}
}
