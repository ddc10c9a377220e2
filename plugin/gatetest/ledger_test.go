package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// For every way in which a reserve can fail, the key works again as soon as the
// manager does.
func TestManagerUnreachableOnReserve(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name  string
			fault Fault
			// advance lets timeouts pass.
			advance time.Duration
			// released: the reservation that may exist is given back.
			released bool
		}{
			{name: "refused at once", fault: Fault{Close: 14}},
			{name: "connect failure", fault: Fault{Close: 14}, released: true},
			{name: "timeout", fault: Fault{Lose: true}, advance: 36 * time.Second, released: true},
			{name: "timeout after it was carried out", fault: Fault{LoseAnswer: true}, advance: 36 * time.Second, released: true},
			{name: "reset before it was carried out", fault: Fault{Close: 14}, released: true},
			{name: "reset after it was carried out", fault: Fault{Close: 14, AfterIt: true}, released: true},
			{name: "reset within the answer", fault: Fault{Close: 14, AfterIt: true}, released: true},
			{name: "garbage", fault: Fault{Garbage: []byte("nonsense")}, released: true},
			{name: "empty answer", fault: Fault{Garbage: []byte{}}, released: true},
			{name: "another server's 200", fault: Fault{Close: 14}, released: true},
			{name: "another server's 503", fault: Fault{Close: 14}, released: true},
			{name: "another server's 422", fault: Fault{Close: 14}, released: true},
			{name: "an answer of another call", fault: Fault{Garbage: (&api.ReserveReply{State: api.StateReleased}).AppendRaw(nil)}, released: true},
			{name: "401", fault: Fault{Status: 401}},
			{name: "404", fault: Fault{Status: 404}},
			{name: "500", fault: Fault{Status: 500}, released: true},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailNext(api.PathReserve, c.fault)
				x := r.Send(Request{Key: "k"})
				r.Settle()
				r.Clock.Advance(c.advance)
				p := x.Response()
				want(t, "status", p.Status, "503")
				want(t, "code", p.Problem(t), "manager-unavailable")
				if p.Header("retry-after") == "" {
					t.Error("no Retry-After")
				}
				want(t, "upstream called", x.Upstream.Begun(), false)
				x.Over()
				r.Settle()
				want(t, "releases", r.Manager.Count(api.PathRelease) > 0, c.released)
				want(t, "manager errors", r.Metric("oncegate_gate_requests_manager_error_total"), 1)

				y := r.Send(Request{Key: "k"})
				y.Answer(200, "now")
				want(t, "when it is back", y.Response().Body, "now")
			})
		}
	})
}

func TestManagerAsksToComeBackLater(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathReserve, Fault{Status: 503, RetryAfter: 7}, Fault{Status: 503, RetryAfter: 100000})
		want(t, "retry-after", r.Send(Request{Key: "k"}).Response().Header("retry-after"), "7")
		want(t, "retry-after", r.Send(Request{Key: "k"}).Response().Header("retry-after"), "10")
	})
}

func TestUnknownClusterRefusesAndIsLoggedOnce(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{NoCluster: true})
		want(t, "status", r.Send(Request{Key: "k"}).Response().Status, "503")
		want(t, "status", r.Send(Request{Key: "k"}).Response().Status, "503")
		wantLog(t, r, `cluster \"oncegate_manager\" (/v1/ledger/reserve) failed: the proxy knows no such cluster`, 1)
	})
}

// wantLog checks how many lines of the log have text in them.
func wantLog(t *testing.T, r *Rig, text string, n int) {
	t.Helper()
	if got := strings.Count(r.log.String(), text); got != n {
		t.Fatalf("%d lines %q, want %d:\n%s", got, text, n, r.log)
	}
}

// The log names the cluster and the failure, but at most once in a period.
func TestFailedCallsAreLogged(t *testing.T) {
	for said, f := range map[string]Fault{
		"refused at once: no healthy host, or a circuit breaker is full": {Close: 14},
		"timeout, status 504":                  {Close: 14},
		"not the manager's answer, status 503": {Close: 14},
		"the answer broke off":                 {Close: 14},
		"the manager answered with status 500": {Status: 500},
		"not the manager's answer, status 403": {Close: 14},
		"the manager's answer cannot be read":  {Garbage: []byte("?")},
	} {
		t.Run(said, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailNext(api.PathReserve, f)
				want(t, "answer", r.Send(Request{Key: "k"}).Response().Problem(t), "manager-unavailable")
				wantLog(t, r, `oncegate: a call to cluster \"oncegate_manager\" (/v1/ledger/reserve) failed: `+said, 1)
			})
		})
	}
}

// The gate does not read an answer that is too large for a ledger's, because the VM's memory never shrinks.
func TestHugeAnswerOfTheManagerIsNotRead(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		huge := []Fault{{Garbage: make([]byte, 40<<20)}}
		r.Manager.FailNext(api.PathReserve, huge...)
		r.Manager.FailNext(api.PathCommit, huge...)
		want(t, "answer", r.Send(Request{Key: "a"}).Response().Problem(t), "manager-unavailable")
		wantLog(t, r, "the manager's answer cannot be read", 1)
		x := r.Send(Request{Key: "a"})
		x.Answer(200, "done")
		want(t, "body", x.Response().Body, "done")
		if n := r.Host.GuestMemory(0); n > 32<<20 {
			t.Errorf("the VM has taken %d bytes", n)
		}
	})
}

// A manager that comes and goes does not fill the log.
func TestFlappingIsLoggedOnceInAWhile(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		fail := func(i int) {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 500})
			want(t, "status", r.Send(Request{Key: fmt.Sprint("no", i)}).Response().Status, "503")
		}
		for i := range 20 {
			fail(i)
			x := r.Send(Request{Key: fmt.Sprint("yes", i)})
			x.Answer(200, "")
			x.Response()
		}
		wantLog(t, r, "failed: ", 1)
		wantLog(t, r, "answers again", 1)
		r.Clock.Advance(10 * time.Second)
		fail(20)
		wantLog(t, r, "failed: ", 2)
		wantLog(t, r, "; 19 more since the last such line", 1)
	})
}

// Calls carry the trace headers of the request that causes them, also if other requests wait for the call.
func TestCallsCarryTheRequestsTrace(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct{ config, id, want string }{
			{`{"mode":"headers"}`, "r-1", "r-1 00-1-2-01"},
			{`{"mode":"body"}`, "r-1", "r-1 00-1-2-01"},
			{`{"mode":"body"}`, strings.Repeat("x", 1025), " 00-1-2-01"},
		} {
			r := NewRig(t, guest, Options{Config: c.config, BodyMode: true})
			x := r.Send(Request{Key: "k", Body: "b", Headers: []string{"x-request-id: " + c.id, "traceparent: 00-1-2-01"}})
			x.Answer(200, "")
			x.Response()
			y := r.Send(Request{Key: "k2", Body: "b"})
			y.Answer(429, "")
			y.Response()
			r.Settle()
			calls := r.Manager.Calls()
			want(t, "calls", len(calls), 4)
			want(t, "reserve", calls[0].Trace, c.want)
			want(t, "commit", calls[1].Trace, c.want)
			for _, of := range calls[2:] {
				if of.Trace == c.want || strings.HasSuffix(of.Trace, "01") {
					t.Errorf("another request's call carries %q", of.Trace)
				}
			}
		}
	})
}

func TestFailureModeOpen(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"failure_mode":"open"}`})
		r.Manager.FailAll(api.PathReserve, Fault{Close: 14})
		for range 2 {
			x := r.Send(Request{Key: "k"})
			x.Answer(200, "unprotected")
			p := x.Response()
			want(t, "status", p.Status, "200")
			want(t, "idempotency-status", p.Header("idempotency-status"), "bypassed")
		}
		want(t, "commits", r.Manager.Count(api.PathCommit), 0)
		want(t, "bypassed", r.Metric("oncegate_gate_requests_bypass_total"), 2)
	})
}

// An answer that comes after the gate gave the call up changes nothing.
func TestReserveAnsweredLate(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathReserve, Fault{Hold: true})
		x := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(36 * time.Second)
		want(t, "status", x.Response().Status, "503")
		r.Manager.Release()
		r.Settle()
		want(t, "upstream called", x.Upstream.Begun(), false)
		y := r.Send(Request{Key: "k"})
		y.Answer(200, "")
		want(t, "next", y.Response().Status, "200")
	})
}

func TestReleaseIsRepeatedUntilItArrives(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathReserve, Fault{Close: 14, AfterIt: true})
		r.Manager.FailNext(api.PathRelease, Fault{Close: 14}, Fault{Status: 503}, Fault{Close: 14})
		want(t, "status", r.Send(Request{Key: "k"}).Response().Status, "503")
		r.Settle()
		state, _ := r.Manager.State("k")
		want(t, "state", state, api.StatePending)
		r.Clock.Advance(30 * time.Second)
		state, _ = r.Manager.State("k")
		want(t, "state", state, api.StateNone)
		// Three releases failed, one arrived, and another follows in case that one overtook the reserve.
		want(t, "releases", r.Manager.Count(api.PathRelease), 5)
		r.Clock.Advance(30 * time.Second)
		want(t, "releases", r.Manager.Count(api.PathRelease), 5)
	})
}

func TestClientGetsItsAnswerWhenTheCommitFails(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, c := range map[string]struct {
			fault   Fault
			advance time.Duration
		}{
			"refused at once": {fault: Fault{Close: 14}},
			"connect failure": {fault: Fault{Close: 14}},
			"reset":           {fault: Fault{Close: 14, AfterIt: true}},
			"garbage":         {fault: Fault{Garbage: []byte{1, 'A'}}},
			"timeout":         {fault: Fault{Lose: true}, advance: 6 * time.Second},
			"500":             {fault: Fault{Status: 500}},
			"503":             {fault: Fault{Status: 503, RetryAfter: 1}},
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
				want(t, "repetitions", r.Metric("oncegate_gate_call_retries_total"), 3)
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
		for key, status := range map[string]int{"committed": 200, "rejected": 422} {
			x := r.Send(Request{Key: key})
			x.Answer(status, "done")
			x.Response()
		}
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
		for _, key := range []string{"a", "b", "c"} {
			x := r.Send(Request{Key: key})
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
		r.Manager.FailNext(api.PathReserve, Fault{Close: 14, AfterIt: true})
		want(t, "no answer", r.Send(Request{Key: "k"}).Response().Status, "503")
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
