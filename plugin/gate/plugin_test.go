package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Calls, messages and ticks: what happens beside the streams.

// The answer to a callout never comes, not even a timeout's.
func TestCallWithoutAnyAnswerIsGivenUp(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_wait_timeout":1}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.now += int64(10 * time.Second)
	h.tick(p)
	expect(t, "still waiting", len(f.replies), 0)
	h.now += int64(10 * time.Second)
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
	h.respond(p, len(h.calls)-1, "200", released)
	// It may have overtaken the reserve, so it is carried out once more.
	n = len(h.calls)
	for range 50 {
		h.now += int64(tickPeriod)
		h.tick(p)
	}
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathRelease)
	h.respond(p, n, "200", released)
	expect(t, "idle", p.calls.idle(), true)
}

// The gate gives back a reservation that nobody may use even after it has run out: from then on
// it means an unknown outcome, which blocks its key for much longer.
func TestReleaseIsRepeatedAfterTheReservationEnded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager": {"timeout_ms": 1000}, "pending_ttl_seconds": 5, "unknown_ttl_seconds": 60}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.refuse = true // the manager is away from now on
	h.now += int64(10 * time.Second)
	h.tick(p)
	expect(t, "status", f.replies[0].status, 503)
	h.now += int64(30 * time.Second)
	h.tick(p)
	h.refuse = false
	n := len(h.calls)
	h.now += int64(10 * time.Second)
	h.tick(p)
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathRelease)
}

// A manager that is away leaves a release for each new request. They leave places for outcomes.
func TestReleasesLeavePlacesForOutcomes(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry": {"max_queued": 4}}`)
	for range 4 {
		p.calls.repeatLater(&call{kind: callRelease, attempt: attempt{route: p.config.Route("POST", "/")}, deadline: int64(time.Hour)})
	}
	expect(t, "releases", len(p.calls.shards[0].repeat), 2)
	for range 4 {
		p.calls.repeatLater(&call{kind: callCommit, attempt: attempt{route: p.config.Route("POST", "/")}, deadline: int64(time.Hour)})
	}
	expect(t, "all", len(p.calls.shards[0].repeat), 4)
}

func TestSecondAnswerToACalloutIsIgnored(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.respond(p, 0, "201", granted)
	h.respond(p, 99, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

// If it cannot send messages to itself, the VM works on ticks.
func TestTickDoesTheWorkOfARefusedMessage(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.noEnqueue = true
	s, f := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(true), PauseAll)
	expect(t, "calls", len(h.calls), 0)
	h.tick(p)
	expect(t, "calls", len(h.calls), 1)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

func TestGarbageInTheQueueIsIgnored(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	for _, m := range []string{"", "x", "k", "a", strings.Repeat("h", 16), strings.Repeat("l", 17), strings.Repeat("z", 1000)} {
		h.queues[p.queue] = append(h.queues[p.queue], []byte(m))
	}
	h.ready(p)
	expect(t, "messages left", len(h.queues[p.queue]), 0)
	p.OnQueueReady(99)
}

// The bytes of outcomes that wait for the ledger are bounded. Beyond the bound bodies are left out.
func TestKeptBytesAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":4194304}`)
	body := make([]byte, 4<<20)
	for i := range uint32(8) {
		s, f := h.open(p, i+1, "k"+string(rune('a'+i)))
		s.OnRequestHeaders(true)
		h.refuseProbe(p)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = i + 1
		f.responseBody = body
		s.OnResponseHeaders(false)
		s.OnResponseBody(len(body), true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "500", api.ReserveReply{})
		expect(t, "the client's answer", f.resumedResponse, 1)
	}
	expect(t, "outcomes kept", len(p.calls.shards[0].repeat), 8)
	if p.calls.heldBytes > maxHeldBytes+8*1024 {
		t.Errorf("%d bytes are kept", p.calls.heldBytes)
	}
	bare := 0
	for _, c := range p.calls.shards[0].repeat {
		if c.noBody {
			bare++
		}
	}
	expect(t, "without body", bare, 5)
	expect(t, "the last one is whole", p.calls.outcomeCall(&p.calls.shards[0].repeat[7].hash).noBody, false)
}

// A manager that comes back does not get all kept calls at the same time.
func TestRepetitionsAreSpread(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.refuse = true
	for i := range uint32(100) {
		s, _ := h.open(p, i+1, "k"+strconv.Itoa(int(i)))
		h.refuse = false
		s.OnRequestHeaders(true)
		h.refuseProbe(p)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = i + 1
		h.refuse = true
		s.OnResponseHeaders(true)
		h.ready(p)
	}
	h.refuse = false
	n := len(h.calls)
	h.tick(p)
	expect(t, "calls before they are due", len(h.calls)-n, 0)
	h.now += int64(10 * time.Second)
	h.tick(p)
	h.tick(p)
	expect(t, "calls while the manager is away", len(h.calls)-n, maxProbing)
	h.respond(p, n, "200", committed)
	expect(t, "calls when it is back", len(h.calls)-n, 1+maxRepeating)
	for i := n + 1; i < n+100; i++ {
		h.respond(p, i, "200", committed)
		if flying := len(h.calls) - i - 1; flying > maxRepeating {
			t.Fatalf("%d calls at once", flying)
		}
	}
	expect(t, "calls in all", len(h.calls)-n, 100)
	expect(t, "idle", p.calls.idle(), true)
}

func TestShutdownWaitsForOutcomes(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	expect(t, "idle", p.Shutdown(), true)
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	s.OnDone()
	expect(t, "with a call under way", p.Shutdown(), false)
	h.respond(p, 0, "201", granted)
	expect(t, "done", h.done, 0)
	h.respond(p, 1, "200", released)
	expect(t, "done", h.done, 1)
}

// The cache cannot be written when an outcome is known; a little later it can.
func TestContendedWritesAreTriedAgain(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	for i, end := range []func(s *Stream){
		func(s *Stream) { s.OnResponseHeaders(true) },
		func(s *Stream) {
			h.streams[h.current].response = [][2]string{{":status", "429"}}
			s.OnResponseHeaders(true)
		},
	} {
		id := uint32(10*i + 1)
		s, _ := h.open(p, id, "k"+strconv.Itoa(int(i)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		s2, f2 := h.open(p, id+1, "k"+strconv.Itoa(int(i)))
		expect(t, "duplicate", s2.OnRequestHeaders(true), PauseAll)
		h.current = id
		end(s)
		h.ready(p)
		h.noWrite = true
		if i == 0 {
			h.respond(p, len(h.calls)-1, "200", committed)
		} else {
			h.respond(p, len(h.calls)-1, "200", released)
		}
		expect(t, "waiters", p.waiting.size, 1)
		h.noWrite = false
		h.tick(p)
		h.ready(p)
		expect(t, "waiters", p.waiting.size, 0)
		if i == 0 {
			expect(t, "replayed", len(f2.replies), 1)
		} else {
			expect(t, "asked", h.calls[len(h.calls)-1].path, api.PathReserve)
		}
		expect(t, "changes left", len(p.writes), 0)
	}
}

// The sweep finds pending entries that are over and wakes their waiters.
func TestSweepWakesWaiters(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_entries":8,"pending_ttl_seconds":10}`)
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	s2, _ := h.open(p, 2, "k")
	s2.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	s.OnDone()
	h.now += int64(11 * time.Second)
	p.rechecked = h.now // not by looking at all of them
	h.tick(p)
	expect(t, "waiting", p.waiting.size, 0)
	expect(t, "calls", len(h.calls), 2)
}

// If the queue loses a message, later work does not wait forever.
func TestWorkGoesOnAfterALostMessage(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, _ := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	h.queues[p.queue] = nil
	h.tick(p)
	expect(t, "calls", len(h.calls), 1)
	s, _ = h.open(p, 2, "b")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "calls", len(h.calls), 2)
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
	expect(t, "gauge", h.values["oncegate_waiters"], 0)
}

// The first of two calls is refused and its stream answered; the second is not made in
// that stream's name.
func TestCallAfterARefusedOneIsMadeByThePlugin(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	s2, f2 := h.open(p, 2, "b")
	s2.OnRequestHeaders(true)
	h.refused = 1
	h.ready(p)
	expect(t, "status", f.replies[0].status, 503)
	expect(t, "calls", len(h.calls), 1)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f2.resumedRequest, 1)
}

// With a manager that does not answer and large answers, the bytes that the VM holds are bounded.
// Beyond the bound outcomes are recorded without their bodies.
func TestUnacknowledgedBytesAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":8388608}`)
	body := make([]byte, 4<<20)
	id := uint32(0)
	answer := func() (commit int, r api.FinishRequest) {
		id++
		s, f := h.open(p, id, "k"+strconv.Itoa(int(id)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = id
		f.responseBody = body
		s.OnResponseHeaders(false)
		expect(t, "the answer is held", s.OnResponseBody(len(body), true), Pause)
		h.ready(p)
		if err := r.ParseRaw(h.calls[len(h.calls)-1].body); err != nil {
			t.Fatal(err)
		}
		return len(h.calls) - 1, r
	}
	var commits []int
	whole := 0
	for range 10 {
		at, r := answer()
		commits = append(commits, at)
		if !r.Result.BodyOmitted {
			whole++
		}
	}
	expect(t, "outcomes with their bodies", whole, maxHeldBytes/len(body)-1)
	if p.calls.heldBytes > maxHeldBytes+10*1024 {
		t.Errorf("%d bytes are held", p.calls.heldBytes)
	}
	for _, at := range commits {
		h.respond(p, at, "200", committed)
	}
	expect(t, "bytes held", p.calls.heldBytes, 0)
	_, r := answer()
	expect(t, "body omitted when there is room again", r.Result.BodyOmitted, false)
}

// Answers that pass slowly while they are copied count, too.
func TestCopiedBytesAreBounded(t *testing.T) {
	for _, config := range []string{`{"commit":"async","max_response_body_bytes":8388608}`, `{"ledger":"none","max_response_body_bytes":8388608}`} {
		for _, sized := range []bool{true, false} {
			h := newFakeHost(t)
			p := started(t, h, config)
			piece := make([]byte, 4<<20)
			var streams []*Stream
			for i := range uint32(10) {
				s, f := h.open(p, i+1, "k"+strconv.Itoa(int(i)))
				s.OnRequestHeaders(true)
				calls := len(h.calls)
				h.ready(p)
				for n := calls; n < len(h.calls); n++ {
					if h.calls[n].path == api.PathReserve {
						h.respond(p, n, "201", granted)
					}
				}
				h.current = i + 1
				if sized {
					f.response = append(f.response, [2]string{"content-length", strconv.Itoa(len(piece))})
				}
				f.responseBody = piece
				expect(t, "headers", s.OnResponseHeaders(false), Continue)
				expect(t, "body", s.OnResponseBody(len(piece)-1, false), Continue)
				streams = append(streams, s)
			}
			copied := 0
			for _, s := range streams {
				if s.phase == phaseCopying {
					copied++
				}
			}
			expect(t, config+": answers that are copied", copied, maxHeldBytes/len(piece))
			for i, s := range streams {
				h.current = uint32(i + 1)
				s.OnDone()
			}
			h.ready(p)
			for n := range h.calls {
				h.respond(p, n, "200", committed)
			}
			expect(t, config+": bytes held", p.calls.heldBytes, 0)
		}
	}
}

// One VM alone looks through a table of the default size within the default interval.
func TestSweepKeepsItsInterval(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.current = 1
	s.OnResponseHeaders(true)
	h.ready(p)
	h.respond(p, 1, "200", committed)
	pass := func(d time.Duration) {
		for range d / tickPeriod {
			h.now += int64(tickPeriod)
			h.tick(p)
		}
	}
	// It takes a whole round to count, and the one under way may have passed by.
	pass(2*p.config.CleanupInterval + time.Second)
	expect(t, "entries", h.values["oncegate_cache_entries"], 1)
	pass(5 * time.Minute)
	pass(2*p.config.CleanupInterval + time.Second)
	expect(t, "entries when it is over", h.values["oncegate_cache_entries"], 0)
}

// A manager that is away for long causes a few log lines, not one for each outcome.
func TestLostOutcomesCauseFewLogLines(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry":{"max_queued":1}}`)
	lose := func(key string) {
		n := len(h.calls)
		s, _ := h.open(p, uint32(n+1), key)
		s.OnRequestHeaders(true)
		h.refuseProbe(p)
		h.ready(p)
		h.respond(p, n, "201", granted)
		h.current = uint32(n + 1)
		h.refuse = true
		expect(t, "answer", s.OnResponseHeaders(true), Pause)
		h.ready(p)
		h.refuse = false
		h.current = uint32(n + 1)
		s.OnDone()
	}
	told := func() (lines []string) {
		for _, line := range h.logs {
			if strings.Contains(line, "did not reach the ledger") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	for i := range 100 {
		lose("k" + strconv.Itoa(int(i)))
	}
	expect(t, "lines", len(told()), 1)
	h.now += int64(logPeriod)
	lose("later") // the one that was kept goes out, as the manager answered
	lose("still-later")
	expect(t, "lines later", len(told()), 2)
	expect(t, "the others are counted", strings.Contains(told()[1], "; 98 more since"), true)
	expect(t, "abandoned", h.values["oncegate_outcomes_abandoned"], 100)
}

// The plugin must not end before the cache has taken an outcome. Without a ledger, the request would
// run again.
func TestShutdownWaitsForTheCache(t *testing.T) {
	for name, recovers := range map[string]bool{"recovers": true, "stays contended": false} {
		h := newFakeHost(t)
		p := started(t, h, `{"ledger":"none"}`)
		s, _ := h.open(p, 1, "k")
		expect(t, "forwarded", s.OnRequestHeaders(true), Continue)
		h.noWrite = true
		expect(t, "answer", s.OnResponseHeaders(true), Continue)
		s.OnDone()
		expect(t, name+": at once", p.Shutdown(), false)
		h.noWrite = !recovers
		for range writeTries {
			h.tick(p)
		}
		expect(t, name+": done", h.done, 1)
		h.noWrite = false
		again, f := h.open(p, 2, "k")
		again.OnRequestHeaders(true)
		expect(t, name+": replayed", len(f.replies) == 1 && f.replies[0].status == 200, recovers)
	}
}
