package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Messages and ticks: what happens beside the streams.

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
	h.ready(p)
	expect(t, "done", h.done, 1)
	expect(t, "connection", h.conns[0], "")
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
		expect(t, "changes left", len(p.changes), 0)
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
	p.lastRecheck = h.now // not by looking at all of them
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

// One VM alone looks through a table of the default size within the default interval.
func TestSweepKeepsItsInterval(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"committed_ttl_seconds":300}`)
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
	expect(t, "entries", h.values["oncegate_gate_cache_entries"], 1)
	pass(5 * time.Minute)
	pass(2*p.config.CleanupInterval + time.Second)
	expect(t, "entries when it is over", h.values["oncegate_gate_cache_entries"], 0)
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
		for range maxChangeTries {
			h.tick(p)
		}
		expect(t, name+": done", h.done, 1)
		h.noWrite = false
		again, f := h.open(p, 2, "k")
		again.OnRequestHeaders(true)
		expect(t, name+": replayed", len(f.replies) == 1 && f.replies[0].status == 200, recovers)
	}
}

// The gate asks the host for the token's variable only if its configuration names one.
func TestTokenOfTheEnvironment(t *testing.T) {
	h := newFakeHost(t)
	h.env = map[string]string{"T": "t0ken"}
	expect(t, "authorization", started(t, h, `{"manager": {"auth_token_env": "T"}}`).calls.authorization, "Bearer t0ken")
	expect(t, "authorization", started(t, h, `{"manager": {"auth_token": "clear"}}`).calls.authorization, "Bearer clear")
	expect(t, "authorization", started(t, h, "").calls.authorization, "")
	for name, value := range map[string]string{"EMPTY": "", "BLANK": "t0ken t0ken"} {
		h.env[name] = value
		err := New(h).Start([]byte(`{"manager": {"auth_token_env": "` + name + `"}}`))
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "t0ken") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := New(h).Start([]byte(`{"manager": {"auth_token_env": "MISSING"}}`)); err == nil || !strings.Contains(err.Error(), "MISSING") {
		t.Errorf("MISSING: %v", err)
	}
}
