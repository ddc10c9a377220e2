package gate

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Calls whose replies are lost, doubled or late.

// The reply to a call never comes.
func TestCallWithoutAnyAnswerIsGivenUp(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_wait_timeout":1}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.now += int64(5 * time.Second)
	h.tick(p)
	expect(t, "still waiting", len(f.replies), 0)
	h.now += int64(time.Second)
	h.tick(p)
	expect(t, "status", f.replies[0].status, 503)
	// The ledger may have the reservation, so the gate gives it back.
	expect(t, "call", h.calls[len(h.calls)-1].path, api.PathRelease)
	// And when the answer comes after all, nothing happens.
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 0)
	// The release's answer gets lost, too: it is repeated.
	n := len(h.calls)
	for range 200 {
		h.now += int64(tickPeriod)
		h.tick(p)
	}
	if len(h.calls) <= n {
		t.Error("the release was not repeated")
	}
	for n = len(h.calls); len(h.calls) == n; {
		h.now += int64(tickPeriod)
		h.tick(p)
	}
	h.respond(p, len(h.calls)-1, "200", released)
	// It may have overtaken the reserve, so it is carried out once more.
	n = len(h.calls)
	for range 15 {
		h.now += int64(tickPeriod)
		h.tick(p)
	}
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathRelease)
	h.respond(p, n, "200", released)
	expect(t, "idle", p.calls.idle(), true)
}

func TestSecondReplyToACallIsIgnored(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

// The gate never acts on a stream that the host has forgotten without a callback.
func TestForgottenStreamIsNotActedOn(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	s2, f2 := h.open(p, 2, "k")
	expect(t, "duplicate", s2.OnRequestHeaders(true), PauseAll)
	h.gone[1], h.gone[2] = true, true
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.ready(p)
	expect(t, "acted", f.resumedRequest+len(f.replies)+f2.resumedRequest+len(f2.replies), 0)
	expect(t, "call", h.calls[1].path, api.PathRelease)
	expect(t, "waiting before", p.waiting.size, 1)
	h.respond(p, 1, "200", released)
	expect(t, "waiting", p.waiting.size, 0)
	expect(t, "gauge", h.values["oncegate_gate_waiters"], 0)
}

// hasBody reports whether the answer of a commit or reject has a body.
func (c *call) hasBody(t *testing.T) bool {
	t.Helper()
	var result api.Result
	if err := result.ParseRaw(c.result); err != nil {
		t.Fatal(err)
	}
	return !result.BodyOmitted
}

func TestEachReplyHasAnAction(t *testing.T) {
	states := []api.State{api.StateNone, api.StateReserved, api.StatePending, api.StateCommitted, api.StateRejected, api.StateUnknown, api.StateReleased}
	for kind := range callKind(len(ops)) {
		done := 0
		for _, state := range states {
			r, ok := kind.doneAs(&api.ReserveReply{State: state, Result: api.Result{Status: 200}})
			if ok && actions[kind][r] == nil {
				t.Errorf("%v: the answer %v has no action", kind, state)
			}
			if ok {
				done++
			}
		}
		if done == 0 || actions[kind][replyUnavailable] == nil {
			t.Errorf("%v: %d answers, an action without one: %v", kind, done, actions[kind][replyUnavailable] != nil)
		}
	}
}
