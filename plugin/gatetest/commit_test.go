package gatetest

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Outcomes on their way to the ledger.

func TestClientGetsItsAnswerWhenTheCommitFails(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, c := range map[string]struct {
			fault   Fault
			advance time.Duration
			// repetitions of the kept commit. A call whose connection ended is first sent again without one.
			repetitions int64
		}{
			"reset":          {Fault{Close: 14}, 0, 2},
			"reset after it": {Fault{Close: 13, AfterIt: true}, 0, 2},
			"too many bytes": {Fault{Close: 8}, 0, 2},
			"credentials":    {Fault{Close: 16}, 0, 3},
			"huge":           {Fault{Garbage: make([]byte, 18<<20)}, 0, 2},
			"garbage":        {Fault{Garbage: []byte{1, 'A'}}, 0, 2},
			"timeout":        {Fault{Lose: true}, 6 * time.Second, 2},
			"500":            {Fault{Status: 500}, 0, 2},
			"503":            {Fault{Status: 503, RetryAfter: 1}, 0, 2},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailNext(api.PathCommit, c.fault, Fault{Close: 14}, Fault{Close: 14})
				x := r.Send(Request{Key: "k"})
				x.Answer(201, "done")
				r.Settle()
				r.Clock.Advance(c.advance)
				want(t, "body", x.Response().Body, "done")
				// A duplicate in this proxy gets the answer although the ledger does not know it yet.
				want(t, "duplicate", r.Send(Request{Key: "k"}).Response().Header("idempotent-replayed"), "true")
				r.Clock.Advance(20 * time.Second)
				state, result := r.Manager.State("k")
				want(t, "state", state, api.StateCommitted)
				want(t, "recorded", string(result.Body), "done")
				want(t, "commits", r.Manager.Count(api.PathCommit), 4)
				want(t, "committed", r.Metric("oncegate_gate_outcomes_committed_total"), 1)
				want(t, "repetitions", r.Metric("oncegate_gate_call_retries_total"), c.repetitions)
			})
		}
	})
}

// If the manager is away for longer than the reservation, the gate repeats the commit until the outcome's
// own TTL is over.
func TestCommitOutlivesItsReservation(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_ttl_seconds":10,"rejected_ttl_seconds":60}`})
		r.Manager.FailAll(api.PathCommit, Fault{Close: 14})
		r.Manager.FailAll(api.PathReject, Fault{Close: 14})
		committed, rejected := r.Send(Request{Key: "committed"}), r.Send(Request{Key: "rejected"})
		committed.Upstream.AwaitHeaders(t)
		rejected.Upstream.AwaitHeaders(t)
		committed.Answer(200, "done")
		committed.Response()
		rejected.Answer(422, "done")
		rejected.Response()
		r.Clock.Advance(61 * time.Second)
		want(t, "abandoned", r.Metric("oncegate_gate_outcomes_abandoned_total"), 1)
		n := r.Manager.Count(api.PathReject)
		r.Clock.Advance(228 * time.Second)
		want(t, "rejects", r.Manager.Count(api.PathReject), n)
		// Another gate must not run it meanwhile, and gets the answer as soon as the manager has it.
		other := NewRig(t, guest, Options{Manager: r.Manager, Clock: r.Clock})
		want(t, "elsewhere", other.Send(Request{Key: "committed"}).Response().Problem(t), "outcome-unknown")
		r.Manager.FailAll(api.PathCommit, Fault{})
		r.Clock.Advance(6 * time.Second)
		want(t, "elsewhere at last", other.Send(Request{Key: "committed"}).Response().Body, "done")
		want(t, "here", r.Send(Request{Key: "committed"}).Response().Body, "done")
	})
}

// When the outcome's TTL is over, the gate gives the commit up.
func TestCommitIsGivenUpWhenItsTimeIsOver(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_ttl_seconds":10,"committed_ttl_seconds":30}`})
		r.Manager.FailAll(api.PathCommit, Fault{Close: 14})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "done")
		x.Response()
		r.Clock.Advance(35 * time.Second)
		n := r.Manager.Count(api.PathCommit)
		if n < 3 {
			t.Errorf("only %d commits were tried", n)
		}
		r.Clock.Advance(60 * time.Second)
		want(t, "commits", r.Manager.Count(api.PathCommit), n)
		want(t, "abandoned", r.Metric("oncegate_gate_outcomes_abandoned_total"), 1)
	})
}

func TestOutcomesThatWaitForTheLedgerAreBounded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"commit_retry":{"max_queued":2}}`})
		r.Manager.FailAll(api.PathCommit, Fault{Close: 14})
		var all []*Exchange
		for _, key := range []string{"a", "b", "c"} {
			x := r.Send(Request{Key: key})
			x.Upstream.AwaitHeaders(t)
			all = append(all, x)
		}
		for i, key := range []string{"a", "b", "c"} {
			x := all[i]
			x.Answer(200, key)
			want(t, "answer", x.Response().Body, key)
		}
		want(t, "abandoned", r.Metric("oncegate_gate_outcomes_abandoned_total"), 1)
		r.Manager.FailAll(api.PathCommit, Fault{})
		r.Clock.Advance(30 * time.Second)
		state, _ := r.Manager.State("b")
		want(t, "state of b", state, api.StateCommitted)
		state, _ = r.Manager.State("c")
		want(t, "state of c", state, api.StatePending)
	})
}

func TestFencedCommitStillAnswersItsClient(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		// Another gate gets the key when the first gate's reservation is gone.
		r.Manager.Forget()
		other := NewRig(t, guest, Options{Manager: r.Manager, Clock: r.Clock})
		y := other.Send(Request{Key: "k"})
		y.Upstream.AwaitHeaders(t)
		x.Answer(200, "stale")
		want(t, "the client still gets its answer", x.Response().Body, "stale")
		want(t, "fenced", r.Metric("oncegate_gate_requests_fenced_total"), 1)
		y.Answer(200, "true")
		y.Response()
		want(t, "what is remembered", r.Send(Request{Key: "k"}).Response().Body, "true")
	})
}

// A manager that restarts may carry out a reserve without an answer, so the gate releases twice. The second release may find
// another attempt. Nothing ran for the first one, so it is not a fenced outcome.
func TestFencedReleaseIsNoFencedOutcome(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		once(t, r, Request{Key: "before"})
		r.Manager.FailNext(api.PathReserve, Fault{Close: 16, AfterIt: true})
		want(t, "no answer", r.Send(Request{Key: "k"}).Response().Status, "503")
		r.Settle()
		want(t, "releases", r.Manager.Count(api.PathRelease), 1)
		retry := r.Send(Request{Key: "k"})
		retry.Upstream.AwaitHeaders(t)
		r.Clock.Advance(10 * time.Second)
		want(t, "releases", r.Manager.Count(api.PathRelease), 2)
		retry.Answer(200, "once")
		want(t, "answer", retry.Response().Body, "once")
		want(t, "fenced", r.Metric("oncegate_gate_requests_fenced_total"), 0)
	})
}

func TestLateCommitIsAccepted(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		r.Manager.Forget()
		x.Answer(200, "late")
		want(t, "answer", x.Response().Body, "late")
		state, _ := r.Manager.State("k")
		want(t, "state", state, api.StateCommitted)
	})
}

func TestLedgerWithASmallerLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathCommit, Fault{Status: 413})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "too large for it")
		want(t, "answer", x.Response().Body, "too large for it")
		_, result := r.Manager.State("k")
		want(t, "status", result.Status, 200)
		want(t, "body omitted", result.BodyOmitted, true)
		want(t, "duplicate", r.Send(Request{Key: "k"}).Response().Status, "410")
	})
}

func TestAnswerIsHeldUntilTheCommit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			body         bool
		}{
			{"headers mode", `{}`, false},
			{"body mode", `{"mode":"body"}`, true},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config, BodyMode: c.body})
				r.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
				x := r.Send(Request{Key: "k", Body: "b"})
				x.Answer(200, "answer")
				r.Settle()
				want(t, "headers are out", x.Client.Begun(), !c.body)
				want(t, "body", x.Client.Body(), "")
				state, _ := r.Manager.State("k")
				want(t, "state", state, api.StatePending)
				r.Manager.Release()
				want(t, "body", x.Response().Body, "answer")
			})
		}
	})
}

func TestAnswerIsHeldUntilTheCommitWithoutABody(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k"})
		x.Answer(204, "")
		r.Settle()
		want(t, "headers are out", x.Client.Begun(), false)
		r.Manager.Release()
		want(t, "status", x.Response().Status, "204")
	})
}

func TestAsyncCommitDoesNotDelayTheAnswer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"commit":"async"}`})
		r.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "answer")
		want(t, "body", x.Response().Body, "answer")
		x.Over()
		y := r.Send(Request{Key: "k"})
		r.Settle()
		want(t, "a duplicate waits", y.Client.Begun(), false)
		r.Manager.Release()
		p := y.Response()
		want(t, "body", p.Body, "answer")
		want(t, "replayed", p.Header("idempotent-replayed"), "true")
	})
}
