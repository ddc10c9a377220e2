package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/internal/fields"
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

func TestStartFailsWithoutWhatItNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*fakeHost)
		want  string
	}{
		"no randomness": {func(h *fakeHost) { h.noRandom = true }, "randomness"},
		"no queue":      {func(h *fakeHost) { h.noQueue = true }, "queue"},
		"no tick":       {func(h *fakeHost) { h.noTick = true }, "tick"},
	} {
		h := newFakeHost(t)
		c.spoil(h)
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
	p.OnStreamMessage(1, 1)
	p.OnStreamClose(1, 1)
	expect(t, "shutdown", p.Shutdown(), true)
}

func TestRequestIsReservedForwardedAndRecorded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(false), Pause)
	expect(t, "calls before the connection is open", len(h.calls), 0)
	h.ready(p)
	expect(t, "call", h.calls[0].path, api.PathReserve)
	h.respond(p, 0, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	h.current = 1
	expect(t, "response headers", s.OnResponseHeaders(false), Continue)
	f.responseBody = []byte("ans")
	expect(t, "first piece", s.OnResponseBody(3, false), Pause)
	f.responseBody = []byte("wer")
	expect(t, "end", s.OnResponseBody(3, true), Pause)
	expect(t, "calls with the connection open", len(h.calls), 2)
	expect(t, "call", h.calls[1].path, api.PathCommit)
	var r api.FinishRequest
	if err := r.ParseRaw(h.calls[1].body); err != nil {
		t.Fatal(err)
	}
	expect(t, "body", string(r.Result.Body), "answer")
	expect(t, "ttl", r.TTL, time.Duration(0))
	h.respond(p, 1, "200", committed)
	expect(t, "resumed", f.resumedResponse, 1)
	s.OnDone()

	s2, f2 := h.open(p, 2, "k")
	expect(t, "duplicate", s2.OnRequestHeaders(true), Pause)
	expect(t, "status", f2.replies[0].status, 200)
	expect(t, "body", f2.replies[0].body, "answer")
}

func TestGateSurvivesAHostThatRefusesEverything(t *testing.T) {
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
	h.tick(p)
}

// If only the cache protects, a cache that does not work protects nothing.
func TestCacheOnlyRouteIsRefusedWithoutACache(t *testing.T) {
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
			mark, _ := fields.Value(f.response, api.HeaderStatus)
			expect(t, "mark", mark, "bypassed")
			continue
		}
		expect(t, config, f.replies[0].status, want)
	}
}

func TestUnreadableHeadersAreRefused(t *testing.T) {
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

func (h hiddenHeaders) RequestHeader(name string) (string, bool) { return fields.Value(h.full, name) }

func TestFateOfAForwardedRequest(t *testing.T) {
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
		"no healthy host, first attempt":      {"no_healthy_upstream", flags(0x2), "", fateNotSent},
		"no healthy host, second attempt":     {"no_healthy_upstream", flags(0x2), "", fateUnknown},
		"answered, second attempt":            {"via_upstream", flags(0), upstream, fateAnswered},
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
		for attempts, n := range map[string]uint64{", first attempt": 1, ", second attempt": 2} {
			if strings.HasSuffix(name, attempts) {
				f.properties["upstream.request_attempt_count"] = flags(n)
			}
		}
		if c.address != "" {
			f.properties["upstream.address"] = []byte(c.address)
		}
		expect(t, name, p.fate(), c.want)
	}
}

// A clock that is set back neither keeps duplicates waiting nor stops the sweep.
func TestClockSetBackKeepsNobodyWaiting(t *testing.T) {
	h := newFakeHost(t)
	h.now = int64(time.Hour)
	p := started(t, h, `{"pending_wait_timeout":5,"pending_ttl_seconds":36000}`)
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	s2, f2 := h.open(p, 2, "k")
	expect(t, "duplicate", s2.OnRequestHeaders(true), PauseAll)
	h.now = int64(time.Minute)
	h.tick(p)
	expect(t, "answered", len(f2.replies), 0)
	h.now += int64(6 * time.Second)
	h.tick(p)
	expect(t, "status", f2.replies[0].status, 409)
	s.OnDone()
}

func TestStructuredKeySetsProperties(t *testing.T) {
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

// A request that is held or was answered does not continue, whatever arrives.
func TestNothingPassesBeforeTheDecision(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(false)
	s2, _ := h.open(p, 2, "k")
	s2.OnRequestHeaders(false)
	s3, _ := h.open(p, 3, "")
	expect(t, "answered", s3.OnRequestHeaders(false), Pause)
	for name, s := range map[string]*Stream{"reserving": s, "waiting": s2, "replied": s3} {
		expect(t, name+": body", s.OnRequestBody(1, false) != Continue, true)
		expect(t, name+": end", s.OnRequestBody(1, true) != Continue, true)
		expect(t, name+": trailers", s.OnRequestTrailers() != Continue, true)
	}
}

// The host hands over less of the answer than it announced: it is not recorded as
// if it were whole.
func TestUnreadableAnswerIsNotRecordedAsWhole(t *testing.T) {
	for _, config := range []string{"", `{"commit":"async"}`} {
		h := newFakeHost(t)
		p := started(t, h, config)
		s, f := h.open(p, 1, "k")
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, 0, "201", granted)
		h.current = 1
		s.OnResponseHeaders(false)
		f.responseBody = []byte("short")
		s.OnResponseBody(10, true)
		h.ready(p)
		var r api.FinishRequest
		if err := r.ParseRaw(h.calls[1].body); err != nil {
			t.Fatal(err)
		}
		expect(t, "body omitted", r.Result.BodyOmitted, true)
		expect(t, "body", len(r.Result.Body), 0)
	}
}

// Without a ledger, the gate admits that a recording is lost.
func TestEvictedCacheOnlyAnswerIsReportedAsLost(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"ledger":"none"}`)
	s, f := h.open(p, 1, "k")
	expect(t, "headers", s.OnRequestHeaders(true), Continue)
	s.OnResponseHeaders(false)
	f.responseBody = []byte("answer")
	expect(t, "body", s.OnResponseBody(6, true), Continue)
	for key := range h.data {
		if strings.Count(key, ".") == 3 { // keys of answers, not of records
			delete(h.data, key)
		}
	}
	s, f = h.open(p, 2, "k")
	s.OnRequestHeaders(true)
	expect(t, "status", f.replies[0].status, 410)
}

// A tunnel has no path; rules for the whole host are for it, too.
func TestConnectIsRefused(t *testing.T) {
	for config, replies := range map[string]int{
		`{"match":[{"methods":["*"]}]}`:                         1,
		`{"match":[{"methods":["*"],"unsupported":"pass"}]}`:    0,
		`{"match":[{"methods":["*"],"path_prefix":"/api"}]}`:    0,
		`{"match":[{"methods":["CONNECT"],"path_prefix":"/"}]}`: 1,
	} {
		h := newFakeHost(t)
		p := started(t, h, config)
		s, f := h.open(p, 1, "k")
		f.request = [][2]string{{":method", "CONNECT"}, {":authority", "h:443"}, {"idempotency-key", "k"}}
		s.OnRequestHeaders(false)
		expect(t, config, len(f.replies), replies)
	}
}
