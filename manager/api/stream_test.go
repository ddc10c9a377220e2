package api

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestStreamMessagesComeBack(t *testing.T) {
	trace := [][2]string{{"traceparent", "00-1"}, {"tracestate", ""}}
	for _, want := range []StreamCall{
		{Number: 1, Op: OpReserve, Trace: []Header{{"traceparent", "00-1"}, {"tracestate", ""}}, Message: []byte("message")},
		{Number: 1 << 40, Op: OpPing},
	} {
		b := AppendStreamCall(nil, want.Number, want.Op, trace[:len(want.Trace)], want.Message)
		var got StreamCall
		if err := got.View(b); err != nil || got.Number != want.Number || got.Op != want.Op || len(got.Trace) != len(want.Trace) || !bytes.Equal(got.Message, want.Message) {
			t.Errorf("%x: %+v, %v; want %+v", b, got, err, want)
		}
		if len(want.Trace) > 0 && !reflect.DeepEqual(got.Trace, want.Trace) {
			t.Errorf("trace %q, want %q", got.Trace, want.Trace)
		}
	}
	for _, want := range []StreamReply{
		{Number: 300, Status: 503, RetryAfterSeconds: 7, Body: []byte("{}"), Mark: "m"},
		{Number: 1, Status: 200},
	} {
		b := AppendStreamReply(nil, want.Number, want.Status, want.RetryAfterSeconds, want.Mark, want.Body)
		var got StreamReply
		if err := got.View(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%x: %+v, %v; want %+v", b, got, err, want)
		}
	}
}

// unknownFields are fields of the numbers 15 and 16 and of all wire types, as a later version may add.
const unknownFields = "\x78\x05" + "\x7a\x02ab" + "\x79\x01\x02\x03\x04\x05\x06\x07\x08" + "\x7d\x01\x02\x03\x04" + "\x80\x01\x05"

func TestStreamMessagesSkipUnknownFields(t *testing.T) {
	var call StreamCall
	if err := call.View(append([]byte(unknownFields), AppendStreamCall(nil, 3, OpRelease, nil, []byte("m"))...)); err != nil || call.Number != 3 || string(call.Message) != "m" {
		t.Errorf("call: %+v, %v", call, err)
	}
	var reply StreamReply
	if err := reply.View(append(AppendStreamReply(nil, 3, 200, 0, "", nil), unknownFields...)); err != nil || reply.Number != 3 {
		t.Errorf("reply: %+v, %v", reply, err)
	}
}

func TestBadStreamMessages(t *testing.T) {
	many := make([][2]string, MaxTraceHeaders+1)
	for i := range many {
		many[i] = [2]string{"a", "b"}
	}
	for name, b := range map[string][]byte{
		"empty":        nil,
		"no number":    AppendStreamCall(nil, 0, OpPing, nil, nil),
		"cut":          AppendStreamCall(nil, 1, OpReserve, nil, []byte("message"))[:8],
		"wire type":    append(AppendStreamCall(nil, 1, OpPing, nil, nil), 0x7b),
		"many headers": AppendStreamCall(nil, 1, OpPing, many, nil),
		"long header":  AppendStreamCall(nil, 1, OpPing, [][2]string{{"a", strings.Repeat("b", MaxTraceBytes)}}, nil),
		"bad header":   AppendStreamCall(nil, 1, OpPing, [][2]string{{"A", "b"}}, nil),
		"long number":  append([]byte{tagCallNumber}, bytes.Repeat([]byte{0xff}, 11)...),
	} {
		var raw *RawError
		if err := new(StreamCall).View(b); !errors.As(err, &raw) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{
		"no status": {tagReplyNumber, 1},
		"status":    AppendStreamReply(nil, 1, 1000, 0, "", nil),
		"after":     AppendStreamReply(nil, 1, 200, 1<<40, "", nil),
		"mark":      AppendStreamReply(nil, 1, 200, 0, strings.Repeat("m", MaxMarkBytes+1), nil),
	} {
		var raw *RawError
		if err := new(StreamReply).View(b); !errors.As(err, &raw) {
			t.Errorf("reply with %s: %v", name, err)
		}
	}
}

func FuzzStreamCall(f *testing.F) {
	f.Add(AppendStreamCall(nil, 1, OpReserve, [][2]string{{"traceparent", "00-1"}}, []byte("message")))
	f.Add([]byte(unknownFields))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c, again StreamCall
		if c.View(b) != nil {
			return
		}
		trace := make([][2]string, len(c.Trace))
		for i, h := range c.Trace {
			trace[i] = [2]string{h.Name, h.Value}
		}
		if c.Op > 127 {
			return // not of this version, and appended as one byte
		}
		if err := again.View(AppendStreamCall(nil, c.Number, c.Op, trace, c.Message)); err != nil || again.Number != c.Number || again.Op != c.Op || !bytes.Equal(again.Message, c.Message) {
			t.Errorf("%+v became %+v, %v", c, again, err)
		}
	})
}

func FuzzStreamReply(f *testing.F) {
	f.Add(AppendStreamReply(nil, 300, 503, 7, "m", []byte("{}")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again StreamReply
		if r.View(b) != nil {
			return
		}
		if err := again.View(AppendStreamReply(nil, r.Number, r.Status, r.RetryAfterSeconds, r.Mark, r.Body)); err != nil || again.Number != r.Number || again.Status != r.Status || !bytes.Equal(again.Body, r.Body) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
