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
			// always: it happens to every try until the client has its answer.
			always, away bool
		}{
			{name: "no healthy host", away: true, advance: 7 * time.Second},
			{name: "credentials are not accepted", fault: Fault{Close: 16}, released: true},
			{name: "calls are not allowed", fault: Fault{Close: 7}, released: true},
			{name: "not a manager", fault: Fault{Close: 12}, released: true},
			{name: "timeout", fault: Fault{Lose: true}, advance: 36 * time.Second, released: true},
			{name: "timeout after it was carried out", fault: Fault{LoseAnswer: true}, advance: 36 * time.Second, released: true},
			// A connection that ends once is not noticed, so these end with every try.
			{name: "reset before it was carried out", fault: Fault{Close: 14}, always: true, advance: 7 * time.Second, released: true},
			{name: "reset after it was carried out", fault: Fault{Close: 14, AfterIt: true}, always: true, advance: 7 * time.Second, released: true},
			{name: "reset within the answer", fault: Fault{Close: 13, AfterIt: true}, always: true, advance: 7 * time.Second, released: true},
			{name: "deadline exceeded", fault: Fault{Close: 4}, always: true, advance: 7 * time.Second, released: true},
			{name: "too many bytes", fault: Fault{Close: 8}, always: true, advance: 7 * time.Second, released: true},
			{name: "garbage", fault: Fault{Garbage: []byte("nonsense")}, released: true},
			{name: "empty answer", fault: Fault{Garbage: []byte{}}, released: true},
			{name: "an answer of another call", fault: Fault{Garbage: (&api.ReserveReply{State: api.StateReleased}).AppendRaw(nil)}, released: true},
			{name: "401", fault: Fault{Status: 401}},
			{name: "404", fault: Fault{Status: 404}},
			{name: "500", fault: Fault{Status: 500}, released: true},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				switch {
				case c.away:
					r.Manager.GoAway()
				case c.always:
					r.Manager.FailAll(api.PathReserve, c.fault)
				default:
					r.Manager.FailNext(api.PathReserve, c.fault)
				}
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
				r.Manager.FailAll(api.PathReserve, Fault{})
				r.Manager.ComeBack()
				r.Clock.Advance(2 * time.Second)
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
		// Envoy does not tell an unknown cluster from one without a healthy host, which may come back.
		x := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(7 * time.Second)
		want(t, "status", x.Response().Status, "503")
		next := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(2 * time.Second) // which has another try to connect
		want(t, "status of the next", next.Response().Status, "503")
		wantLog(t, r, `cluster \"oncegate_manager\" (reserve) failed: refused at once: the proxy knows no such cluster`, 1)
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
		"the manager does not accept the gate's credentials":                     {Close: 16},
		"the manager does not allow the gate's calls":                            {Close: 7},
		"the server there is not a manager, or does not get the calls by HTTP/2": {Close: 12},
		"the connection ended with gRPC status 14":                               {Close: 14},
		"the connection ended with gRPC status 13":                               {Close: 13},
		"the connection ended with gRPC status 8":                                {Close: 8},
		"failed: timeout":                      {Lose: true},
		"the manager answered with status 500": {Status: 500},
		"the manager's answer cannot be read":  {Garbage: []byte("?")},
	} {
		t.Run(said, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailAll(api.PathReserve, f)
				x := r.Send(Request{Key: "k"})
				r.Settle()
				r.Clock.Advance(7 * time.Second)
				want(t, "answer", x.Response().Problem(t), "manager-unavailable")
				wantLog(t, r, `oncegate: a call to cluster \"oncegate_manager\" (reserve) failed: `, 1)
				wantLog(t, r, said, 1)
			})
		})
	}
}

// The gate does not read an answer that is too large for a ledger's, because the VM's memory never shrinks.
func TestHugeAnswerOfTheManagerIsNotRead(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		huge := Fault{Garbage: make([]byte, 40<<20)}
		r.Manager.FailNext(api.PathReserve, huge, huge, huge, huge)
		r.Manager.FailNext(api.PathCommit, huge)
		x := r.Send(Request{Key: "a"})
		r.Settle()
		r.Clock.Advance(7 * time.Second)
		want(t, "answer", x.Response().Problem(t), "manager-unavailable")
		wantLog(t, r, "the manager's message cannot be read", 1)
		r.Clock.Advance(2 * time.Second)
		x = r.Send(Request{Key: "a"})
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
		r.Manager.GoAway()
		for i := range 2 {
			x := r.Send(Request{Key: "k"})
			if r.Settle(); i == 0 { // the manager may come back
				r.Clock.Advance(7 * time.Second)
			}
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
		once(t, r, Request{Key: "before"})
		r.Manager.FailNext(api.PathReserve, Fault{Close: 16, AfterIt: true})
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
