package gatetest

import (
	"strconv"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// What upstream gets to know (forward).

const forwards = `"forward":{"key_header":"X-Key","attempt_header":"X-Attempt","token_header":"X-Token","scope_header":"X-Scope"}`

// forged are headers of a client that wants to be taken for the gate.
var forged = []string{"x-key: forged", "x-attempt: 1", "x-token: forged", "x-token: twice", "x-scope: forged"}

// wantTold checks what upstream got of a call that reserved a key, and returns the attempt's number.
func wantTold(t *testing.T, r *Rig, h hostsim.Headers, key string) int64 {
	t.Helper()
	var c Call
	for _, one := range r.Manager.Calls() {
		if one.Path == api.PathReserve && one.Key == key {
			c = one
		}
	}
	for name, value := range map[string]string{"x-key": key, "x-token": c.Token, "x-scope": c.Scope} {
		want(t, name, len(h.Values(name)), 1)
		want(t, name, h.Get(name), value)
	}
	want(t, "attempts", len(h.Values("x-attempt")), 1)
	n, err := strconv.ParseInt(h.Get("x-attempt"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func wantUntold(t *testing.T, h hostsim.Headers, key string) {
	t.Helper()
	want(t, "x-key", h.Get("x-key"), key)
	for _, name := range []string{"x-attempt", "x-token", "x-scope"} {
		want(t, name, len(h.Values(name)), 0)
	}
}

func TestUpstreamGetsToKnow(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, mode := range []string{"headers", "body"} {
			r := NewRig(t, guest, Options{BodyMode: mode == "body", Config: `{"mode":"` + mode + `","failure_mode":"open","unsupported":"pass",` + forwards + `,"match":[
				{"path":"/plain","forward":{"key_header":"","attempt_header":"","token_header":"","scope_header":""}},{"path":"/same","forward":{"key_header":"Idempotency-Key"}},{}]}`})
			x := r.Send(Request{Key: `"k"`, Headers: forged, Body: "pay"})
			first := wantTold(t, r, x.Upstream.AwaitHeaders(t), "k")
			x.Answer(429, "")
			x.Response()
			r.Settle()
			r.Clock.Advance(time.Millisecond)
			x = r.Send(Request{Key: "k", Headers: forged, Body: "pay"})
			second := wantTold(t, r, x.Upstream.AwaitHeaders(t), "k")
			want(t, "microseconds until the second attempt", second-first, 1000)
			x.Answer(200, "")
			x.Response()

			// Without a key, or a reservation, nothing looks like the gate's.
			wantUntold(t, r.Send(Request{Headers: forged}).Upstream.AwaitHeaders(t), "")
			x = r.Send(Request{Key: "grpc", Headers: append([]string{"content-type: application/grpc"}, forged...)})
			wantUntold(t, x.Upstream.AwaitHeaders(t), "")
			h := r.Send(Request{Path: "/plain", Key: "p", Headers: forged}).Upstream.AwaitHeaders(t)
			want(t, "plain", h.Get("x-token"), "forged")
			x = r.Send(Request{Path: "/same", Key: `"q"`})
			want(t, "same", x.Upstream.AwaitHeaders(t).Get("idempotency-key"), "q")
			x = r.Send(Request{Path: "/same", Key: `"q"`, Headers: []string{"content-type: application/grpc"}})
			want(t, "same, not read", x.Upstream.AwaitHeaders(t).Get("idempotency-key"), `"q"`)
			r.Manager.FailAll(api.PathReserve, Fault{Close: 7})
			wantUntold(t, r.Send(Request{Key: "open", Headers: forged}).Upstream.AwaitHeaders(t), "open")
		}
	})
}

func TestUpstreamOfAContinuedCallGetsToKnow(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue",` + forwards + `}`})
		x := r.Send(Request{Key: "k", Headers: forged, Body: "pay"})
		c := b.await(t, 0)
		wantTold(t, r, c.Headers, "k")
		c.answer(upstream(200, "done"))
		want(t, "answer", x.Response().Body, "done")
		// The router carries it when the proxy refuses the call.
		b.mu.Lock()
		b.refuse = hostsim.ErrNoHealthyHost
		b.mu.Unlock()
		x = r.Send(Request{Key: "l", Headers: forged, Body: "pay"})
		wantTold(t, r, x.Upstream.AwaitHeaders(t), "l")
		x.Answer(200, "")
		x.Response()
	})
}

// Without a ledger there is a token, too.
func TestUpstreamGetsToKnowWithoutALedger(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"ledger":"none",` + forwards + `}`})
		h := r.Send(Request{Key: "k", Headers: forged}).Upstream.AwaitHeaders(t)
		want(t, "key", h.Get("x-key"), "k")
		want(t, "token", len(h.Get("x-token")), 32)
	})
}
