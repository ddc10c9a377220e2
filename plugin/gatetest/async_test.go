package gatetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Clients that prefer 202 to a long wait (respond_async).

const respondAsync = `"lookup":{"path":"/lost"},"mode":"body","client_abort":"continue","respond_async":true,"pending_wait_timeout":5`

// accepted checks a 202 and returns the look-up that it names.
func accepted(t *testing.T, r *Rig, what string, a Response) func() *Exchange {
	t.Helper()
	want(t, what, a.Status+" "+a.Body, `202 {"state":"pending"}`)
	want(t, what+": headers", a.Header("preference-applied")+" "+a.Header("retry-after")+" "+a.Header("idempotency-status"), "respond-async 1 pending")
	return func() *Exchange {
		return r.Open(Request{Method: "GET", Path: a.Header("location"), Key: "k"}, true)
	}
}

// The client gets 202 once the upstream call is sent, a duplicate while it runs, and both look up the recorded answer.
func TestAsyncAnswerIsLookedUp(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, ledger := range []string{"manager", "none"} {
			r, b := abortRig(t, guest, Options{Workers: 2, Config: `{` + respondAsync + `,"ledger":"` + ledger + `","scope":["path_and_query","method"],"response":{"echo_key":true}}`})
			q := Request{Path: "/payments/%C3%A9?a=1&b=%26#x", Key: "k", Body: "pay", Headers: []string{"content-type: text/plain", "prefer: return=minimal, Respond-Async;x=1"}}
			a := r.Send(q).Response()
			want(t, ledger+": location", a.Header("location"), "/lost?path=/payments/%25C3%25A9%3Fa%3D1%26b%3D%2526%23x&method=POST&wait_ms=5000")
			want(t, ledger+": the key is echoed", a.Header("idempotency-key"), "k")
			look := accepted(t, r, ledger, a)
			first := b.await(t, 0)
			want(t, ledger+": for the upstream", first.Headers.Get("prefer"), "return=minimal, Respond-Async;x=1")
			y := look()
			r.Settle()
			q.Worker = 1
			accepted(t, r, ledger+": duplicate", r.Send(q).Response())
			want(t, ledger+": duplicates of a pending request", r.Metric("oncegate_gate_requests_conflict_total"), 1)
			want(t, ledger+": the look-up waits", y.Client.Begun(), false)
			first.answer(upstream(201, "paid", "x-a: 1"))
			a = y.Response()
			want(t, ledger+": looked up", a.Status+" "+a.Body+" "+a.Header("x-a")+" "+a.Header("idempotent-replayed"), "201 paid 1 true")
			want(t, ledger+": again", look().Response().Body, "paid")
			a = r.Send(q).Response()
			want(t, ledger+": replay", a.Status+" "+a.Body+" "+a.Header("preference-applied"), "201 paid ")
			want(t, ledger+": executions", b.count(), 1)
		}
	})
}

// Where the proxy normalizes no paths, the Location names the path as the gate saw it.
func TestAsyncAnswerOfAStrangePathIsLookedUp(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{` + respondAsync + `}`})
		a := r.Send(Request{Path: "/payments//1/./2", Key: "k", Headers: []string{"prefer: respond-async"}}).Response()
		want(t, "location", a.Header("location"), "/lost?path=/payments//1/./2&method=POST&exact=1&wait_ms=5000")
		look := accepted(t, r, "accepted", a)
		b.await(t, 0).answer(upstream(201, "paid"))
		want(t, "looked up", look().Response().Body, "paid")
		a = r.Send(Request{Method: "GET", Path: "/lost?path=/payments//1/./2&exact=2", Key: "k"}).Response()
		want(t, "a value that is not allowed", a.Status, "400")
	})
}

// With wait the client gets 202 only if the answer takes longer.
func TestAsyncAnswerAfterAWait(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for prefer, seconds := range map[string]int{"respond-async, wait=2": 2, "wait=2": 0, "respond-async,wait=99999999999999": 5} {
			r, b := abortRig(t, guest, Options{Config: `{` + respondAsync + `}`})
			send := func(key string) *Exchange {
				return r.Send(Request{Key: key, Body: "pay", Headers: []string{"content-type: text/plain", "prefer: " + prefer}})
			}
			quick := send("quick")
			b.await(t, 0).answer(upstream(201, "soon"))
			want(t, prefer+": within the time", quick.Response().Body, "soon")
			waiting := []*Exchange{send("k"), send("k")}
			slow := b.await(t, 1)
			r.Settle()
			if seconds > 0 {
				r.Clock.Advance(time.Duration(seconds)*time.Second - 500*time.Millisecond)
			}
			for i, x := range waiting {
				want(t, fmt.Sprint(prefer, ": answered early ", i), x.Client.Begun(), false)
			}
			if seconds > 0 {
				r.Clock.Advance(time.Second)
				for _, x := range waiting {
					accepted(t, r, prefer, x.Response())
				}
			}
			slow.answer(upstream(201, "late"))
			r.Settle()
			want(t, prefer+": the answer", send("k").Response().Body, "late")
		}
	})
}

// A duplicate whose original is at another gate gets 202 as well.
func TestAsyncDuplicateAtAnotherGate(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{` + respondAsync + `}`})
		far, away := abortRig(t, guest, Options{Config: `{` + respondAsync + `}`, Manager: r.Manager, Clock: r.Clock})
		q := Request{Key: "k", Body: "pay", Headers: []string{"content-type: text/plain", "prefer: respond-async"}}
		accepted(t, r, "first", r.Send(q).Response())
		call := b.await(t, 0)
		look := accepted(t, far, "duplicate", far.Send(q).Response())
		call.answer(upstream(402, "no"))
		r.Settle()
		want(t, "looked up", look().Response().Body, "no")
		want(t, "duplicate", far.Send(q).Response().Body, "no")
		want(t, "reserves that waited", r.Manager.Calls()[1].Wait, 0)
		want(t, "executions", b.count()+away.count(), 1)
	})
}

// What ends without an answer is looked up, too, and what runs without the gate's own call does not run asynchronously.
func TestAsyncWithoutAnAnswer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{` + respondAsync + `,"max_request_body_bytes":9,"match":[{"path":"/off","respond_async":false},{}]}`})
		send := func(key, path, body string) *Exchange {
			return r.Send(Request{Key: key, Path: path, Body: body, Headers: []string{"content-type: text/plain", "prefer: respond-async"}})
		}
		look := accepted(t, r, "unanswered", send("k", "", "pay").Response())
		b.await(t, 0).answer(hostsim.CallResponse{Headers: hostsim.H(":status", "503"), Body: []byte("reset")})
		r.Settle()
		want(t, "unknown outcome", look().Response().Problem(t), "outcome-unknown")
		free := send("free", "", "pay")
		accepted(t, r, "not sent", free.Response())
		b.await(t, 1).answer(hostsim.CallResponse{Headers: hostsim.H(":status", "503"), Body: []byte("no healthy upstream")})
		r.Settle()
		state, _ := r.Manager.State("free")
		want(t, "a free key", state, api.StateNone)

		large := send("large", "", "more than nine bytes")
		large.Answer(201, "by the router")
		want(t, "large", large.Response().Body+large.Response().Header("preference-applied"), "by the router")
		off := send("off", "/off", "pay")
		b.await(t, 2).answer(upstream(201, "sync"))
		want(t, "off", off.Response().Body, "sync")
	})
}
