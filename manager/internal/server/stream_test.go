package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// gateStream is a gate's side of a stream.
type gateStream struct {
	*httpdtest.Stream
	t *testing.T
	n uint64
}

func (s *site) gate(client *http.Client, header ...string) *gateStream {
	s.t.Helper()
	st := s.Stream(client, api.PathCalls, header...)
	if st.Response.StatusCode != 200 {
		s.t.Fatalf("status %d", st.Response.StatusCode)
	}
	return &gateStream{Stream: st, t: s.t}
}

// call makes the message of a call.
func (g *gateStream) call(op api.Op, message []byte) []byte {
	g.n++
	return api.AppendStreamCall(nil, g.n, op, nil, message)
}

func (g *gateStream) send(calls ...[]byte) {
	g.t.Helper()
	if err := g.Send(calls...); err != nil {
		g.t.Fatal(err)
	}
}

// reply receives a reply.
func (g *gateStream) reply() (r api.StreamReply, in api.ReserveReply) {
	g.t.Helper()
	b, err := g.Receive()
	if err != nil {
		g.t.Fatalf("no reply: %v, %v", err, g.Response.Trailer)
	}
	if err := r.View(b); err != nil {
		g.t.Fatal(err)
	}
	if r.Status < 300 && len(r.Body) > 0 {
		if err := in.ParseRaw(r.Body); err != nil {
			g.t.Fatal(err)
		}
	}
	return r, in
}

func (g *gateStream) wantReply(number uint64, status int, state api.State) (api.StreamReply, api.ReserveReply) {
	g.t.Helper()
	r, in := g.reply()
	if r.Number != number || r.Status != status || in.State != state {
		g.t.Fatalf("reply to %d: %d %v %q, want %d: %d %v", r.Number, r.Status, in.State, r.Body, number, status, state)
	}
	return r, in
}

func (g *gateStream) wantEnd(status string) {
	g.t.Helper()
	if got, message := g.Status(); got != status {
		g.t.Errorf("the stream ended with %q %q, want %s", got, message, status)
	}
}

func reserveOf(key, token string, wait time.Duration) []byte {
	return (&api.ReserveRequest{Key: key, Token: token, Wait: wait}).AppendRaw(nil)
}

func commitOf(key, token string, body []byte) []byte {
	return (&api.FinishRequest{Key: key, Token: token, Result: api.Result{Status: 201, Body: body}}).AppendRaw(nil)
}

func releaseOf(key, token string) []byte {
	return (&api.ReleaseRequest{Key: key, Token: token}).AppendRaw(nil)
}

func TestStreamAnswersEachCall(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpPing, nil))
	g.wantReply(1, 200, api.StateNone)
	g.send(g.call(api.OpReserve, reserveOf("a b", "t", 0)))
	g.wantReply(2, 201, api.StateReserved)
	g.send(g.call(api.OpRenew, reserveOf("a b", "t", 0)))
	g.wantReply(3, 200, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("a b", "u", 0)))
	g.wantReply(4, 202, api.StatePending)
	g.send(g.call(api.OpCommit, commitOf("a b", "t", []byte("done"))))
	g.wantReply(5, 200, api.StateCommitted)
	g.send(g.call(api.OpReserve, reserveOf("a b", "v", 0)))
	if _, in := g.wantReply(6, 200, api.StateCommitted); string(in.Result.Body) != "done" {
		t.Errorf("replayed %q", in.Result.Body)
	}
	g.send(g.call(api.OpLookUp, releaseOf("a b", "")))
	if _, in := g.wantReply(7, 200, api.StateCommitted); string(in.Result.Body) != "done" {
		t.Errorf("looked up %q", in.Result.Body)
	}
	g.send(g.call(api.OpLookUp, releaseOf("b", "")))
	g.wantReply(8, 200, api.StateNone)
	g.send(g.call(api.OpReserve, []byte("nonsense")))
	if r, _ := g.reply(); r.Number != 9 || r.Status != 400 || !bytes.Contains(r.Body, []byte(`"code":"invalid-request"`)) {
		t.Errorf("%+v", r)
	}
	g.send(g.call(99, nil))
	if r, _ := g.reply(); r.Number != 10 || r.Status != 400 {
		t.Errorf("%+v", r)
	}
	g.CloseSend()
	g.wantEnd("0")
}

// Calls that are sent together have the answers of single calls over HTTP, and one transaction. A mistake affects only its own call.
func TestStreamAnswersAsSingleCalls(t *testing.T) {
	at := time.Now()
	still := func() *site {
		return newSite(t, siteOptions{store: mem.New(mem.Options{Clock: func() time.Time { return at }})})
	}
	finish := func(r api.FinishRequest) []byte { return r.AppendRaw(nil) }
	reserve := func(r api.ReserveRequest) []byte { return r.AppendRaw(nil) }
	done := api.Result{Status: 201, Headers: []api.Header{{Name: "a", Value: "b"}}, Body: []byte("hi")}
	all := []struct {
		op      api.Op
		message []byte
	}{
		{api.OpReserve, reserve(api.ReserveRequest{Key: "k", Token: "t1", Fingerprint: "f", PendingTTL: time.Second, UnknownTTL: api.NoUnknown})},
		{api.OpReserve, reserveOf("k", "t2", 0)},
		{api.OpReserve, reserve(api.ReserveRequest{Key: "k", Token: "t2", Fingerprint: "g"})},
		{api.OpCommit, finish(api.FinishRequest{Key: "k", Token: "t2", Result: done})},
		{api.OpRenew, reserve(api.ReserveRequest{Key: "k", Token: "t1", PendingTTL: 70 * time.Second})},
		{api.OpRenew, reserveOf("k", "t1", 70*time.Second)},
		{api.OpCommit, finish(api.FinishRequest{Key: "k", Token: "t1", Result: done})},
		{api.OpCommit, finish(api.FinishRequest{Key: "k", Token: "t1", Result: done})},
		{api.OpReject, finish(api.FinishRequest{Key: "k", Token: "t1", Result: done})},
		{api.OpReserve, reserveOf("k", "t2", 0)},
		{api.OpRelease, releaseOf("k", "t1")},
		{api.OpRelease, releaseOf("l", "t1")},
		{api.OpReserve, reserveOf("l", "t1", 0)},
		{api.OpUnknown, reserveOf("l", "t1", 0)},
		{api.OpReserve, reserveOf("l", "t2", 0)},
		{api.OpReject, finish(api.FinishRequest{Key: "l", Token: "t1", TTL: 5 * time.Millisecond, Result: api.Result{Status: 400}})},
		{api.OpReserve, reserveOf("l", "t2", 0)},
		{api.OpReserve, reserveOf("", "t2", 0)},
		{api.OpReserve, reserveOf("l", "", 0)},
		{api.OpReserve, []byte("nonsense")},
		{api.OpRenew, releaseOf("l", "t")},
		{api.OpCommit, commitOf("l", "t", nil)[:9]},
		{api.OpCommit, finish(api.FinishRequest{Key: "l", Token: "t", Result: api.Result{Status: 99}})},
		{api.OpCommit, finish(api.FinishRequest{Key: "l", Token: "t", Result: api.Result{Status: 200, Headers: []api.Header{{Name: "A", Value: "b"}}}})},
		{api.OpRelease, append(releaseOf("l", "t"), 0)},
		{api.OpReserve, reserveOf("m", "t", 0)},
	}
	single, together := still(), still()
	g := together.gate(httpdtest.HTTP2(t))
	var messages [][]byte
	want := map[uint64]api.StreamReply{}
	for _, c := range all {
		messages = append(messages, g.call(c.op, c.message))
		a := single.Do("POST", c.op.Path(), api.ContentTypeRaw, string(c.message))
		after, _ := strconv.Atoi(a.Header.Get("retry-after"))
		want[g.n] = api.StreamReply{Number: g.n, Status: a.Status, RetryAfterSeconds: after, Body: []byte(a.Body)}
	}
	g.send(messages...)
	for range all {
		r, _ := g.reply()
		if !reflect.DeepEqual(r, want[r.Number]) {
			t.Errorf("call %d: %d %d %q, by itself %d %d %q", r.Number, r.Status, r.RetryAfterSeconds, r.Body, want[r.Number].Status, want[r.Number].RetryAfterSeconds, want[r.Number].Body)
		}
	}
	stats, err := together.ledger.Stats(t.Context())
	if err != nil || stats.Batches != 1 || stats.BatchItems != uint64(len(all)) {
		t.Errorf("%d calls in %d transactions, %v", stats.BatchItems, stats.Batches, err)
	}
}

// broken is a store whose writes fail for no reason that it names.
type broken struct{ store.Store }

func (broken) Update(context.Context, func(store.Tx) error) error { return errors.New("broken") }

// The line in the log about a call that failed inside the manager has the headers of the request that caused it: the call's own, or
// those of the stream or of the single call.
func TestFailuresNameTheRequest(t *testing.T) {
	st := mem.New(mem.Options{})
	if _, err := ledger.New(st, ledger.Options{}); err != nil { // the first start on a store writes
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{store: broken{st}})
	g := s.gate(httpdtest.HTTP2(t), "x-request-id", "stream")
	trace := [][2]string{{"traceparent", "00-aa"}, {"x-request-id", "call"}}
	g.send(api.AppendStreamCall(nil, 1, api.OpReserve, trace, reserveOf("a", "t", 0)), api.AppendStreamCall(nil, 2, api.OpReserve, nil, reserveOf("b", "t", 0)))
	for range 2 {
		if r, _ := g.reply(); r.Status != 500 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	if a := s.Do("POST", api.PathReserve, "", `{"key":"a","token":"t"}`, "traceparent", "00-bb"); a.Status != 500 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	for _, want := range []string{"error=broken x-request-id=call traceparent=00-aa", "error=broken x-request-id=stream\n", "error=broken traceparent=00-bb"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("%q is not in the log: %s", want, s.log)
		}
	}
}
