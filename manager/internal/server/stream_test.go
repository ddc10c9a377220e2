package server

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
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
	g.send(g.call(api.OpReserve, reserveOf("a", "t", 0)))
	g.wantReply(2, 201, api.StateReserved)
	g.send(g.call(api.OpRenew, reserveOf("a", "t", 0)))
	g.wantReply(3, 200, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("a", "u", 0)))
	g.wantReply(4, 202, api.StatePending)
	g.send(g.call(api.OpCommit, commitOf("a", "t", []byte("done"))))
	g.wantReply(5, 200, api.StateCommitted)
	g.send(g.call(api.OpReserve, reserveOf("a", "v", 0)))
	if _, in := g.wantReply(6, 200, api.StateCommitted); string(in.Result.Body) != "done" {
		t.Errorf("replayed %q", in.Result.Body)
	}
	g.send(g.call(api.OpLookUp, releaseOf("a", "")))
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
