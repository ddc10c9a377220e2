package gate

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

const continuing = `{"mode":"body","client_abort":"continue","upstream":{"cluster":"u","timeout_ms":1000}}`

// carriedStream has the ledger grant a key to a request without a body; call 1 is the gate's to upstream.
func carriedStream(t *testing.T, h *fakeHost, p *Plugin) (*Stream, *fakeStream) {
	t.Helper()
	s, f := h.open(p, 1, "k")
	if a := s.OnRequestHeaders(true); a != PauseAll {
		t.Fatalf("OnRequestHeaders: %v", a)
	}
	h.ready(p)
	h.respond(p, 0, "201", api.ReserveReply{State: api.StateReserved, ExpiresIn: time.Minute})
	if len(h.calls) != 2 || h.calls[1].path != "/p" || h.calls[1].timeout != time.Second {
		t.Fatalf("calls %+v", h.calls)
	}
	return s, f
}

// If the host loses the answer to an upstream call, the outcome is unknown and the client learns that.
func TestLostUpstreamAnswerMakesTheOutcomeUnknown(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, continuing)
	_, f := carriedStream(t, h, p)
	h.now += int64(time.Second + lostGrace)
	h.tick(p)
	if len(f.replies) != 0 {
		t.Fatalf("given up too early: %+v", f.replies)
	}
	h.now += int64(time.Second)
	h.tick(p)
	if len(f.replies) != 1 || f.replies[0].status != 504 {
		t.Fatalf("replies %+v", f.replies)
	}
	if n := h.values["oncegate_gate_outcomes_unknown_total"]; n != 1 {
		t.Errorf("%d unknown outcomes", n)
	}
	// A late answer has no effect.
	h.fullHeaders = [][2]string{{":status", "200"}, {headerServiceTime, "1"}}
	h.current = 0
	p.OnCallResponse(1, 0)
	if len(f.replies) != 1 || !p.carrier.idle() || p.carrier.bytes != 0 {
		t.Errorf("after a late answer: %d replies, carrier %+v", len(f.replies), p.carrier)
	}
}

// A plugin that is being removed waits for its upstream calls.
func TestShutdownWaitsForUpstreamCalls(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, continuing)
	s, _ := carriedStream(t, h, p)
	h.current = 1
	s.OnDone()
	h.gone[1] = true
	if p.Shutdown() {
		t.Fatal("shut down at once")
	}
	h.fullHeaders = [][2]string{{":status", "200"}, {headerServiceTime, "1"}}
	h.current = 0
	p.OnCallResponse(1, 0)
	h.ready(p)
	if len(h.calls) != 3 || h.calls[2].path != api.PathCommit || h.done != 0 {
		t.Fatalf("calls %+v, done %d", h.calls, h.done)
	}
	h.respond(p, 2, "200", api.ReserveReply{State: api.StateCommitted})
	h.ready(p)
	if h.done != 1 {
		t.Error("not done when all is recorded")
	}
}

// A client that prefers 202 has it before the gate's call ends. However that call ends, the request must not go upstream
// again when its end comes, and nothing of it may stay when its client leaves.
func TestEndOfAnEarlyAnsweredRequestForwardsNothing(t *testing.T) {
	for name, answer := range map[string][][2]string{
		"unknown":  {{":status", "503"}},
		"released": {{":status", "429"}, {headerServiceTime, "1"}, {headerRetryAfter, "1"}},
		"not sent": {{":status", "503"}, {headerAnswer, "no_healthy_upstream UH 0 -"}},
	} {
		for _, leaves := range []bool{false, true} {
			h := newFakeHost(t)
			p := started(t, h, `{"mode":"body","client_abort":"continue","upstream":{"cluster":"u"},"respond_async":true,"lookup":{"path":"/lost"}}`)
			h.protocol = "HTTP/2"
			s, f, _ := h.upload(p, 1, 20_000, [2]string{"content-length", "20000"}, [2]string{"prefer", "respond-async"})
			f.requestBody = nil
			expect(t, name+": end", s.OnRequestBody(0, true), Pause)
			s.requestEnd.ended = false // as if the call had been made before the end
			h.ready(p)
			h.respond(p, 0, "201", granted)
			expect(t, name+": upstream call", h.calls[1].path, "/p")
			expect(t, name+": waiting replies", p.delayed.withBody.size, 1)
			h.fullHeaders = answer
			h.begin()
			p.OnCallResponse(1, 0)
			h.current = 1
			if leaves {
				s.OnDone()
				h.gone[1] = true
				h.ticks(p, tickPeriod)
			} else {
				expect(t, name+": late end", s.OnRequestBody(0, true), Pause)
				expect(t, name+": replies", len(f.replies), 1)
				expect(t, name+": status", f.replies[0].status, 202)
			}
			expect(t, name+": resumed", f.resumedRequest, 0)
			expect(t, name+": waiting replies at the end", p.delayed.withBody.size, 0)
			expect(t, name+": their bytes", p.delayed.bytes, 0)
		}
	}
}

// The gate's call has no trailers, so the router carries a request with trailers, also if they follow a body of declared
// length. An end that is stuck behind a full buffer is not waited for for long: the router carries that request, too.
func TestCallIsMadeOnlyOnceTheRequestHasEndedWithoutTrailers(t *testing.T) {
	for name, routed := range map[string]bool{"end": false, "trailers": true, "stuck": true} {
		h := newFakeHost(t)
		p := started(t, h, continuing)
		h.protocol = "HTTP/2"
		s, f, action := h.upload(p, 1, 20_000, [2]string{"content-length", "20000"})
		expect(t, name+": last byte", action, Pause)
		h.ready(p)
		expect(t, name+": calls before the end", len(h.calls), 0)
		expect(t, name+": bytes counted before the end", p.uploadBytes, 20_000)
		h.current, f.requestBody = 1, nil
		switch name {
		case "end":
			expect(t, name, s.OnRequestBody(0, true), Pause)
		case "trailers":
			expect(t, name, s.OnRequestTrailers(), Pause)
		default:
			h.ticks(p, 3*tickPeriod)
		}
		h.ready(p)
		expect(t, name+": call", h.calls[0].path, api.PathReserve)
		h.respond(p, 0, "201", granted)
		expect(t, name+": resumed", f.resumedRequest == 1, routed)
		expect(t, name+": upstream calls", len(h.calls) == 1, routed)
		if !routed {
			expect(t, name+": body", len(h.calls[1].body), 20_000)
		}
		expect(t, name+": bytes put back", len(f.requestBody), 0)
		expect(t, name+": waited for", p.awaitingBody.size, 0)
		expect(t, name+": bytes counted", p.uploadBytes, 0)
		expect(t, name+": counted", h.values["oncegate_gate_upstream_routed_total"] == 1, routed)
		expect(t, name+": log lines", len(h.logs), 0)
	}
}

func TestFateFromAnInnerListener(t *testing.T) {
	for said, want := range map[string]fate{
		"via_upstream - 1 10.0.0.1:80":          fateAnswered,
		"via_upstream":                          fateAnswered,
		"":                                      fateUnknown,
		"x UF":                                  fateUnknown,
		"no_healthy_upstream UH 0 -":            fateNotSent,
		"a UF,URX 1 10.0.0.1:80":                fateUnknown,
		"a UF 1 10.0.0.1:80":                    fateNotSent,
		"a UF 2 10.0.0.1:80":                    fateUnknown,
		"direct_response - 0 -":                 fateNotSent,
		"ext_authz_denied UAEX - -":             fateNotSent,
		"request_rate_limited RL 0 -":           fateNotSent,
		"upstream_response_timeout UT 1 -":      fateUnknown,
		"a - 1 10.0.0.1:80":                     fateUnknown,
		"filter_chain_not_found NFCF,brand_new": fateUnknown,
		"upstream_reset_before_response_started{remote_refused_stream_reset} UR 1 10.0.0.1:80": fateNotSent,
		"upstream_reset_before_response_started{remote_refused_stream_reset} UR 2 10.0.0.1:80": fateUnknown,
		"upstream_reset_before_response_started{remote_reset} UR 1 10.0.0.1:80":                fateUnknown,
		"upstream_reset_after_response_started{remote_refused_stream_reset} UR 1 10.0.0.1:80":  fateUnknown,
	} {
		d := parseDescribed(said)
		if got := d.fate(); got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
}
