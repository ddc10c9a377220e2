package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// The manager is away and the cache has lost the entry. A retry in this VM still gets the answer, and
// never asks a ledger that would let it run.
func TestKeptOutcomeAnswersWithoutTheCache(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"wait_for_pending":false}`)
	s, f := h.run(p, 1, "k")
	f.response = [][2]string{{":status", "201"}}
	h.goAway(p)
	s.OnResponseHeaders(true)
	// While the outcome is on its way, the retry gets no answer and does not run.
	h.data = map[string]fakeValue{}
	s, f = h.open(p, 2, "k")
	s.OnRequestHeaders(true)
	expect(t, "meanwhile", f.replies[0].status, 409)
	h.ready(p)
	n := len(h.calls)
	h.data = map[string]fakeValue{}
	s, f = h.open(p, 3, "k")
	s.OnRequestHeaders(true)
	expect(t, "status", f.replies[0].status, 201)
	s, f = h.open(p, 4, "k")
	f.request = append(f.request, [2]string{"content-type", "text/other"})
	s.OnRequestHeaders(true)
	expect(t, "another request", f.replies[0].status, 422)
	h.ready(p)
	expect(t, "calls", len(h.calls), n)
	// When the ledger has it, it is asked.
	h.comeBack(p)
	h.ticks(p, time.Second)
	h.respond(p, h.last(), "200", committed)
	h.data = map[string]fakeValue{}
	s, _ = h.open(p, 5, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "call", h.calls[h.last()].path, api.PathReserve)
}

// An outcome that reaches the ledger late stays in the cache for as long as the ledger says, and not at all if the ledger
// refuses it.
func TestLateOutcomeIsKeptAsTheLedgerSays(t *testing.T) {
	for name, tt := range map[string]struct {
		status  string
		problem api.Code
		answer  api.ReserveReply
		after   time.Duration
	}{
		"for 5 s": {"200", "", api.ReserveReply{State: api.StateCommitted, ExpiresIn: 5 * time.Second}, 6 * time.Second},
		"refused": {"409", api.CodeFenced, api.ReserveReply{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHost(t)
			p := started(t, h, "")
			s, _ := h.run(p, 1, "k")
			h.goAway(p)
			s.OnResponseHeaders(true)
			h.ready(p)
			h.comeBack(p)
			h.ticks(p, time.Second)
			s, f := h.open(p, 2, "k")
			s.OnRequestHeaders(true)
			expect(t, "before the ledger answers", f.replies[0].status, 200)
			h.problem = tt.problem
			h.respond(p, h.last(), tt.status, tt.answer)
			h.problem = ""
			h.now += int64(tt.after)
			s, f = h.open(p, 3, "k")
			s.OnRequestHeaders(true)
			h.ready(p)
			expect(t, "replies", len(f.replies), 0)
			expect(t, "call", h.calls[h.last()].path, api.PathReserve)
		})
	}
}

// A duplicate that waited for an outcome counts as one that waited, also if the cache cannot answer it.
func TestWaitForAKeptOutcomeIsCounted(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.run(p, 1, "k")
	f.response = [][2]string{{":status", "201"}}
	h.goAway(p)
	s.OnResponseHeaders(true)
	h.noData = true
	s, f = h.open(p, 2, "k")
	s.OnRequestHeaders(true)
	expect(t, "replies meanwhile", len(f.replies), 0)
	h.ready(p)
	expect(t, "status", f.replies[0].status, 201)
	expect(t, "waited", h.values["oncegate_gate_requests_waited_total"], 1)
	expect(t, "replayed without a wait", h.values["oncegate_gate_requests_hit_committed_total"], 0)
}

// Other workers have only the cache. Until the ledger knows an outcome, no other entry replaces
// it. If the answer found no room, the entry still says that the request ran.
func TestKeptOutcomeStaysInTheCache(t *testing.T) {
	for name, body := range map[string]int{"with its answer": 10, "without": 200000} {
		h := newFakeHost(t)
		config := `{"max_entries":8,"max_bytes":65536}`
		p, other := started(t, h, config), started(t, h, config)
		s, f := h.run(p, 1, "k")
		h.goAway(p)
		f.responseBody = make([]byte, body)
		s.OnResponseHeaders(false)
		s.OnResponseBody(body, true)
		h.ready(p)
		h.comeBack(p)
		for i := range uint32(20) {
			s, _ := h.run(other, 10+i, "x"+strconv.Itoa(int(i)))
			s.OnResponseHeaders(true)
			h.ready(other)
			h.respond(other, h.last(), "200", committed)
		}
		n := len(h.calls)
		s, f = h.open(other, 2, "k")
		s.OnRequestHeaders(true)
		h.ready(other)
		expect(t, name+": calls", len(h.calls), n)
		want := 200
		if body > 10 {
			want = 409
		}
		expect(t, name+": status", f.replies[0].status, want)
	}
}

// When the manager is back, the kept calls reach it before new requests do.
func TestKeptOutcomesGoFirst(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry":{"initial_ms":60000,"max_ms":60000}}`)
	p.calls.shards[0].retriedNow = h.now
	for i := range uint32(10) {
		h.comeBack(p)
		s, _ := h.run(p, i+1, "k"+strconv.Itoa(int(i)))
		h.goAway(p)
		s.OnResponseHeaders(true)
		h.ready(p)
	}
	h.comeBack(p)
	h.ticks(p, 2*time.Second)
	n := len(h.calls)
	s, _ := h.open(p, 20, "new")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "first", h.calls[n].path, api.PathCommit)
	expect(t, "then", h.calls[n+1].path, api.PathReserve)
	h.respond(p, n, "200", committed)
	expect(t, "calls", len(h.calls)-n, 2+9)
}

// A message that the manager refuses for good is sent once more with nothing but the status,
// and not after that.
func TestRefusedOutcomeIsSentOnceMoreWithoutItsBody(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.run(p, 1, "k")
	f.response = [][2]string{{":status", "201"}, {"x-odd", "\x01"}}
	expect(t, "held", s.OnResponseHeaders(true), Pause)
	h.ready(p)
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	h.ready(p)
	var sent api.FinishRequest
	if err := sent.ParseRaw(h.calls[h.last()].body); err != nil {
		t.Fatal(err)
	}
	expect(t, "status", sent.Result.Status, 201)
	expect(t, "bare", sent.Result.BodyOmitted && len(sent.Result.Headers) == 0, true)
	expect(t, "the client waits", f.resumedResponse, 0)
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	expect(t, "the client has its answer", f.resumedResponse, 1)
	n := len(h.calls)
	h.ticks(p, time.Minute)
	expect(t, "calls", len(h.calls), n)
	expect(t, "abandoned", h.values["oncegate_gate_outcomes_abandoned_total"], 1)
	expect(t, "alarms", strings.Count(strings.Join(h.logs, "\n"), "refuses to record an outcome"), 1)
	expect(t, "idle", p.idle(), true)
}

// Credentials and paths can be corrected, so such a refusal is not final.
func TestOutcomeWaitsForTheRightCredentials(t *testing.T) {
	for _, status := range []string{"401", "403", "404", "429", "500"} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, _ := h.run(p, 1, "k")
		s.OnResponseHeaders(true)
		h.ready(p)
		n := len(h.calls)
		h.refuseWith(p, h.last(), status, api.CodeUnauthorized)
		for range 10 {
			h.ticks(p, 6*time.Second)
			h.refuseWith(p, h.last(), status, api.CodeUnauthorized)
		}
		if more := len(h.calls) - n; more < 5 || more > 11 {
			t.Errorf("%s: sent %d times more in a minute", status, more)
		}
		expect(t, status+": whole", p.calls.unacknowledgedCall(&s.hash).hasBody(t), true)
	}
}

// The gate repeats the report of an unknown outcome until the ledger has it. Until then the cache
// answers duplicates. After that the gate asks the ledger, because an operator may have resolved it.
func TestUnknownIsReported(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"unknown_ttl_seconds":100}`)
	s, _ := h.run(p, 1, "k")
	waiter, w := h.open(p, 2, "k")
	expect(t, "a duplicate waits", waiter.OnRequestHeaders(true), PauseAll)
	h.current = 1
	h.goAway(p)
	s.OnDone()
	h.ready(p)
	expect(t, "the duplicate", w.replies[0].status, 409)
	_, f := h.open(p, 3, "k")
	p.NewStream(3).OnRequestHeaders(true)
	expect(t, "another", strings.Contains(f.replies[0].body, "outcome-unknown"), true)
	h.comeBack(p)
	h.ticks(p, time.Second)
	call := h.calls[h.last()]
	expect(t, "call", call.path, api.PathUnknown)
	var sent api.ReserveRequest
	if err := sent.ParseRaw(call.body); err != nil {
		t.Fatal(err)
	}
	expect(t, "for", sent.UnknownTTL, 100*time.Second)
	expect(t, "pending_ttl", sent.PendingTTL, 0)
	h.respond(p, h.last(), "200", api.ReserveReply{State: api.StateUnknown})
	_, f = h.open(p, 4, "k")
	p.NewStream(4).OnRequestHeaders(true)
	h.ready(p)
	expect(t, "the ledger is asked", h.calls[h.last()].path, api.PathReserve)
	h.refuseWith(p, h.last(), "409", api.CodeOutcomeUnknown)
	expect(t, "it says so", strings.Contains(f.replies[0].body, "outcome-unknown"), true)
	expect(t, "counted", h.values["oncegate_gate_requests_outcome_unknown_total"], 3)
	expect(t, "idle", p.idle(), true)
}

// A manager that remembers no unknown outcomes leaves the reservation to run out, and says what the key is. The gate takes
// that for an acknowledgement: it does not repeat the call, and each further duplicate asks the ledger.
func TestReportToAManagerThatRemembersNoUnknownOutcomes(t *testing.T) {
	for _, answer := range []api.ReserveReply{{State: api.StatePending, ExpiresIn: time.Minute}, {State: api.StateNone}} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, _ := h.run(p, 1, "k")
		s.OnDone()
		h.ready(p)
		expect(t, "call", h.calls[h.last()].path, api.PathUnknown)
		h.respond(p, h.last(), "200", answer)
		name := answer.State.String()
		expect(t, name+": idle", p.idle(), true)
		calls := len(h.calls)
		h.ticks(p, 10*time.Second)
		expect(t, name+": calls", len(h.calls), calls)
		expect(t, name+": abandoned", h.values["oncegate_gate_outcomes_abandoned_total"], 0)
		retry, f := h.open(p, 2, "k")
		expect(t, name+": a retry waits for the ledger", retry.OnRequestHeaders(true), PauseAll)
		h.ready(p)
		expect(t, name+": which is asked", h.calls[h.last()].path, api.PathReserve)
		h.respond(p, h.last(), "201", granted)
		expect(t, name+": a retry runs", f.resumedRequest, 1)
	}
}
