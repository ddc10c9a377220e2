package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

var (
	granted   = api.ReserveReply{State: api.StateReserved, ExpiresIn: time.Minute}
	committed = api.ReserveReply{State: api.StateCommitted}
	released  = api.ReserveReply{State: api.StateReleased}
)

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func TestStartRefused(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(*fakeHost)
		want   string
	}{
		"no randomness": {func(h *fakeHost) { h.noRandom = true }, "randomness"},
		"no queue":      {func(h *fakeHost) { h.noQueue = true }, "queue"},
		"no tick":       {func(h *fakeHost) { h.noTick = true }, "tick"},
	} {
		h := newFakeHost(t)
		c.break_(h)
		p := New(h)
		err := p.Start(nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A plugin whose start was refused gets no streams in Envoy; if it does, they pass.
func TestUnstartedPluginIsHarmless(t *testing.T) {
	h := newFakeHost(t)
	p := New(h)
	if p.Start([]byte(`{"x":1}`)) == nil {
		t.Fatal("started")
	}
	s, _ := h.open(p, 1, "k")
	expect(t, "request", s.OnRequestHeaders(true), Continue)
	expect(t, "response", s.OnResponseHeaders(true), Continue)
	s.OnDone()
	p.OnTick()
	p.OnQueueReady(7)
	p.OnCallResponse(1, 1)
	expect(t, "shutdown", p.Shutdown(), true)
}

func TestWholeWay(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(false), PauseAll)
	expect(t, "calls from the stream's callback", len(h.calls), 0)
	h.ready(p)
	expect(t, "call", h.calls[0].path, api.PathReserve)
	expect(t, "timeout", h.calls[0].timeout, 35*time.Second)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	h.current = 1
	expect(t, "response headers", s.OnResponseHeaders(false), Continue)
	f.responseBody = []byte("answer")
	expect(t, "first piece", s.OnResponseBody(3, false), Pause)
	expect(t, "end", s.OnResponseBody(6, true), Pause)
	expect(t, "calls from the stream's callback", len(h.calls), 1)
	h.ready(p)
	expect(t, "call", h.calls[1].path, api.PathCommit)
	var r api.FinishRequest
	if err := r.ParseRaw(h.calls[1].body); err != nil {
		t.Fatal(err)
	}
	expect(t, "body", string(r.Result.Body), "answer")
	expect(t, "ttl", r.TTL, 5*time.Minute)
	h.respond(p, 1, "200", committed)
	expect(t, "resumed", f.resumedResponse, 1)
	s.OnDone()

	s2, f2 := h.open(p, 2, "k")
	expect(t, "duplicate", s2.OnRequestHeaders(true), Pause)
	expect(t, "status", f2.replies[0].status, 200)
	expect(t, "body", f2.replies[0].body, "answer")
}

// The answer to a callout never comes, not even a timeout's.
func TestLostAnswers(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_wait_timeout":1}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.now += int64(10 * time.Second)
	h.current = 0
	p.OnTick()
	expect(t, "still waiting", len(f.replies), 0)
	h.now += int64(10 * time.Second)
	h.current = 0
	p.OnTick()
	expect(t, "status", f.replies[0].status, 503)
	// The reservation may be there: it is given back.
	expect(t, "call", h.calls[len(h.calls)-1].path, api.PathRelease)
	// And when the answer comes after all, nothing happens.
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 0)
	// The release's answer gets lost, too: it is repeated.
	n := len(h.calls)
	for range 200 {
		h.now += int64(tickPeriod)
		h.current = 0
		p.OnTick()
	}
	if len(h.calls) <= n {
		t.Error("the release was not repeated")
	}
	h.respond(p, len(h.calls)-1, "200", released)
	expect(t, "idle", p.calls.idle(), true)
}

func TestAnsweredTwice(t *testing.T) {
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

// Without messages to itself the VM works at the pace of the tick.
func TestKickGetsLost(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.noEnqueue = true
	s, f := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(true), PauseAll)
	expect(t, "calls", len(h.calls), 0)
	h.current = 0
	p.OnTick()
	expect(t, "calls", len(h.calls), 1)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

func TestGarbageInTheQueue(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	for _, m := range []string{"", "x", "k", "a", strings.Repeat("h", 16), strings.Repeat("l", 17), strings.Repeat("z", 1000)} {
		h.queues[p.queue] = append(h.queues[p.queue], []byte(m))
	}
	h.ready(p)
	expect(t, "messages left", len(h.queues[p.queue]), 0)
	p.OnQueueReady(99)
}

// A stream that the host forgot without telling is never acted on.
func TestStreamIsGone(t *testing.T) {
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
	expect(t, "waiting before", p.waiting, 1)
	h.respond(p, 1, "200", released)
	expect(t, "waiting", p.waiting, 0)
	expect(t, "gauge", h.values["oncegate_waiters"], 0)
}

func TestHostRefusesEverything(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.noReply, h.noResume, h.noData = true, true, true
	s, _ := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(true), PauseAll)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.current = 1
	s.OnResponseHeaders(true)
	h.ready(p)
	h.respond(p, 1, "200", committed)
	s.OnDone()
	h.noRandom = true
	s2, _ := h.open(p, 2, "k2")
	expect(t, "no randomness", s2.OnRequestHeaders(true), Pause)
	h.current = 0
	p.OnTick()
}

// Where the cache alone protects, a cache that does not work protects nothing.
func TestCacheOnlyWithoutACache(t *testing.T) {
	for config, want := range map[string]int{
		`{"ledger":"none"}`:                       503,
		`{"ledger":"none","failure_mode":"open"}`: 0,
	} {
		h := newFakeHost(t)
		p := started(t, h, config)
		h.noData = true
		s, f := h.open(p, 1, "k")
		action := s.OnRequestHeaders(true)
		if want == 0 {
			expect(t, config, action, Continue)
			s.OnResponseHeaders(true)
			mark, _ := lookup(f.response, api.HeaderStatus)
			expect(t, "mark", mark, "bypassed")
			continue
		}
		expect(t, config, f.replies[0].status, want)
	}
}

func TestHeadersThatCannotBeRead(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	full := f.request
	unreadable := hiddenHeaders{h, full}
	p.host = unreadable
	expect(t, "with a key", s.OnRequestHeaders(true), Pause)
	expect(t, "status", f.replies[0].status, 400)
	s2, f2 := h.open(p, 2, "k")
	unreadable.full = full[:3]
	p.host = unreadable
	expect(t, "without a key", s2.OnRequestHeaders(true), Continue)
	expect(t, "replies", len(f2.replies), 0)
}

// hiddenHeaders hands over single headers only.
type hiddenHeaders struct {
	*fakeHost
	full [][2]string
}

func (hiddenHeaders) RequestHeaders() [][2]string { return nil }

func (h hiddenHeaders) RequestHeader(name string) (string, bool) { return lookup(h.full, name) }

func TestFate(t *testing.T) {
	const upstream = "192.0.2.1:80"
	for name, c := range map[string]struct {
		details string
		flags   []byte
		address string
		want    fate
	}{
		"upstream's answer":                   {"via_upstream", flags(0), upstream, fateAnswered},
		"upstream's answer after retries":     {"via_upstream", flags(0x40), upstream, fateAnswered},
		"no healthy host":                     {"no_healthy_upstream", flags(0x2), "", fateNotSent},
		"connect failure":                     {"upstream_reset_before_response_started{x}", flags(0x20), upstream, fateNotSent},
		"circuit breaker":                     {"upstream_reset_before_response_started{overflow}", flags(0x80), "", fateNotSent},
		"no route":                            {"route_not_found", flags(0x100), "", fateNotSent},
		"no cluster":                          {"cluster_not_found", flags(0x1000000), "", fateNotSent},
		"reset":                               {"upstream_reset_before_response_started{x}", flags(0x40), upstream, fateUnknown},
		"timeout":                             {"response_timeout", flags(0x4), upstream, fateUnknown},
		"connect failure after a reset":       {"upstream_reset_before_response_started{x}", flags(0x20 | 0x40), upstream, fateUnknown},
		"no healthy host after a timeout":     {"no_healthy_upstream", flags(0x2 | 0x4), upstream, fateUnknown},
		"another filter before the router":    {"rbac_access_denied", flags(0), "", fateNotSent},
		"another wasm filter":                 {"", flags(0), "", fateNotSent},
		"another filter after the router":     {"lua_response", flags(0), upstream, fateUnknown},
		"no flags at all":                     {"", nil, upstream, fateUnknown},
		"flags that cannot be read":           {"", []byte{1}, upstream, fateUnknown},
		"nothing is known":                    {"", nil, "", fateNotSent},
		"stream idle timeout while uploading": {"stream_idle_timeout", flags(0x10000), "", fateUnknown},
	} {
		h := newFakeHost(t)
		p := started(t, h, "")
		_, f := h.open(p, 1, "k")
		f.properties = map[string][]byte{}
		if c.details != "" {
			f.properties["response.code_details"] = []byte(c.details)
		}
		if c.flags != nil {
			f.properties["response.flags"] = c.flags
		}
		if c.address != "" {
			f.properties["upstream.address"] = []byte(c.address)
		}
		expect(t, name, p.fate(), c.want)
	}
}

// What waits for the ledger is bounded in bytes, too: beyond, bodies are left out.
func TestKeptBytesAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":4194304}`)
	body := make([]byte, 4<<20)
	for i := range uint32(8) {
		s, f := h.open(p, i+1, "k"+string(rune('a'+i)))
		s.OnRequestHeaders(true)
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
	expect(t, "outcomes kept", len(p.calls.repeat), 8)
	if p.calls.kept > maxKeptBytes+8*1024 {
		t.Errorf("%d bytes are kept", p.calls.kept)
	}
	bare := 0
	for _, c := range p.calls.repeat {
		if c.bare {
			bare++
		}
	}
	expect(t, "without body", bare, 5)
}

// A manager that comes back is not met with everything at once.
func TestRepetitionsAreSpread(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.refuse = true
	for i := range uint32(100) {
		s, _ := h.open(p, i+1, "k"+decimal(int64(i)))
		h.refuse = false
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = i + 1
		h.refuse = true
		s.OnResponseHeaders(true)
		h.ready(p)
	}
	h.refuse = false
	n := len(h.calls)
	h.now += int64(10 * time.Second)
	h.current = 0
	p.OnTick()
	expect(t, "calls in one tick", len(h.calls)-n, repeatsPerTick)
}

func TestShutdown(t *testing.T) {
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

// A clock that is set back neither keeps duplicates waiting nor stops the sweep.
func TestClockGoesBack(t *testing.T) {
	h := newFakeHost(t)
	h.now = int64(time.Hour)
	p := started(t, h, `{"pending_wait_timeout":5,"pending_ttl_seconds":36000}`)
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	s2, f2 := h.open(p, 2, "k")
	expect(t, "duplicate", s2.OnRequestHeaders(true), PauseAll)
	h.now = int64(time.Minute)
	h.current = 0
	p.OnTick()
	expect(t, "answered", len(f2.replies), 0)
	h.now += int64(6 * time.Second)
	h.current = 0
	p.OnTick()
	expect(t, "status", f2.replies[0].status, 409)
	s.OnDone()
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
		s, _ := h.open(p, id, "k"+decimal(int64(i)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		s2, f2 := h.open(p, id+1, "k"+decimal(int64(i)))
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
		expect(t, "waiters", p.waiting, 1)
		h.noWrite = false
		h.current = 0
		p.OnTick()
		h.ready(p)
		expect(t, "waiters", p.waiting, 0)
		if i == 0 {
			expect(t, "replayed", len(f2.replies), 1)
		} else {
			expect(t, "asked", h.calls[len(h.calls)-1].path, api.PathReserve)
		}
		expect(t, "changes left", len(p.writes), 0)
	}
}

// The sweep finds pending entries that are over and wakes who waits for them.
func TestSweepWakes(t *testing.T) {
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
	h.current = 0
	p.OnTick()
	expect(t, "waiting", p.waiting, 0)
	expect(t, "calls", len(h.calls), 2)
}

func TestPartsOfAStructuredKey(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "host1.dc1:12345:42:a1b2c3d4e5f6a7b8")
	s.OnRequestHeaders(true)
	expect(t, "client", string(f.properties[propertyClient]), "host1.dc1:12345")
	expect(t, "sequence", string(f.properties[propertySequence]), "42")
	expect(t, "nonce", string(f.properties[propertyNonce]), "a1b2c3d4e5f6a7b8")
	s, f = h.open(p, 2, "plain")
	s.OnRequestHeaders(true)
	expect(t, "properties of a plain key", len(f.properties), 1)
}
