package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// How reservations end.

func nanoseconds(n int64) time.Duration { return time.Duration(n) }

// conclude ends a reservation with upstream's answer. It returns the call that reports it to the
// ledger; nil where the route calls none.
func (p *Plugin) conclude(r *reservation, outcome config.Outcome, result *api.Result) *call {
	kind := callCommit
	if outcome == config.OutcomeReject {
		kind = callReject
	}
	called := r.route.Ledger == config.LedgerManager
	if called && !p.calls.makeRoom(len(result.Body)) {
		result.BodyOmitted, result.Headers = true, nil
	}
	if result.BodyOmitted {
		result.Body = nil
		p.metrics.count(p.metrics.oversize)
	}
	p.stopRenewing(r)
	c := r.newCall(kind)
	r.owner = false
	if !called {
		c.result = result.AppendRaw(nil)
		p.cacheOutcome(c, p.host.Now(), true)
		return nil
	}
	c.encode(p, result)
	p.calls.add(c)
	return c
}

// giveBack ends a reservation and frees its key: nothing ran, or upstream asks for a retry.
func (p *Plugin) giveBack(r *reservation) {
	p.stopRenewing(r)
	switch {
	case r.route.Ledger == config.LedgerManager:
		p.release(&r.attempt, r.expires, r.doubtful)
	case r.owner:
		p.metrics.count(p.metrics.released)
		p.forget(r.newCall(callRelease), p.host.Now())
	}
	r.owner = false
}

// unknown ends a reservation without an outcome: upstream may have run the request, so no
// retry may run it. Where upstream keeps the ledger, that ledger knows. Until the ledger has
// the report, the cache answers duplicates. After that each duplicate asks the ledger, so that
// an operator's resolution takes effect.
func (p *Plugin) unknown(r *reservation) {
	if r.route.Ledger == config.LedgerUpstream {
		p.giveBack(r)
		return
	}
	p.stopRenewing(r)
	p.metrics.count(p.metrics.unknownOutcomes)
	c := r.newCall(callUnknown)
	r.owner = false
	if c.route.UnknownTTL == 0 {
		return // the key is taken until the reservation runs out
	}
	c.owner = true
	now := p.host.Now()
	p.fill(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: api.StateUnknown,
		Expires: now + int64(c.lasts()), CacheOnly: true,
	}, now)
	if c.route.Ledger == config.LedgerManager {
		p.calls.add(c)
	}
}

// recordOutcome records the answer's outcome. bare: without the body.
func (s *Stream) recordOutcome(body []byte, bare bool) {
	a := &s.answer
	s.plugin.calls.heldBytes -= a.claimed
	a.claimed = 0
	result := api.Result{Status: a.status, Headers: a.headers, Body: body, BodyOmitted: bare}
	a.headers, a.body = nil, nil
	if s.call = s.plugin.conclude(&s.reservation, a.outcome, &result); s.call != nil {
		s.call.stream = s
	}
}

// emptyResult is the size of the raw form of a result without anything.
var emptyResult = len(new(api.Result).AppendRaw(nil))

// encode builds the message of a commit or reject; its tail is the raw result.
func (c *call) encode(p *Plugin, result *api.Result) {
	n := p.names(&c.attempt)
	f := api.FinishRequest{Key: c.key, Scope: n.scope, Token: n.token, Fingerprint: n.fingerprint, TTL: max(c.ttl(), 0), Durability: c.laterDurability()}
	// One block is enough for the message: each length, number and the frame take a few bytes.
	const few = 4
	size := 16*few + len(f.Key) + len(n.scope) + len(n.token) + len(n.fingerprint) + len(result.Body)
	for i := range result.Headers {
		size += 2*few + len(result.Headers[i].Name) + len(result.Headers[i].Value)
	}
	head := f.AppendRaw(make([]byte, 0, size))
	prefix := len(head) - emptyResult
	c.message = result.AppendRaw(head[:prefix])
	c.result = c.message[prefix:]
}

func (s *Stream) giveBack() {
	s.phase = phaseDone
	s.plugin.giveBack(&s.reservation)
}

// holdOpen ends a reservation whose outcome upstream leaves open. It is settled later.
func (s *Stream) holdOpen() {
	s.phase = phaseDone
	s.plugin.unknown(&s.reservation)
}

func (s *Stream) unknown() {
	s.mark = statusUnknown
	s.phase = phaseDone
	s.plugin.unknown(&s.reservation)
}

// leave settles what the stream has begun. It is for streams that end in any phase.
func (s *Stream) leave() {
	p := s.plugin
	switch s.phase {
	case phaseBody:
		s.mark = statusNotSent
		p.bodies.unwatch(s)
	case phaseWaiting:
		s.mark = statusNotSent
		p.unlink(s)
		s.recordWait()
	case phaseReserving:
		s.mark = statusNotSent
		c := s.call
		s.call = nil
		if c == nil {
			return
		}
		c.stream = nil
		if p.calls.cancel(c) {
			// The ledger never heard of it.
			p.forget(c, p.host.Now())
		}
	case phaseEnding:
		s.dropReply()
		s.phase = phaseDone
	case phaseCarried:
		s.mark = statusContinued
		s.carried.clientGone = true
	case phaseFill, phaseFilling:
		s.clientAnswer.drop(p)
	case phaseSettling:
		s.clientAnswer.drop(p)
		s.detach()
	case phaseForwarded:
		switch {
		case s.beganAnew():
		case s.route.FreeIncomplete && s.ending.incomplete():
			s.giveBack()
			s.mark = statusReleased
		default:
			s.unknown()
		}
	case phaseHolding, phaseCollecting, phaseCopying:
		// Upstream answered, so the request ran and no retry may run it. If the gate never had the
		// whole answer, it records the outcome without the body.
		a := &s.answer
		if s.grading && s.settleGraded(false) {
			return
		}
		s.recordOutcome(a.body, !a.complete() || int64(len(a.body)) != a.passed)
		s.detach()
	case phaseStreaming, phaseRecording:
		s.detach()
	}
}

// detach lets the call continue without the stream.
func (s *Stream) detach() {
	if s.call != nil {
		s.call.stream = nil
		s.call = nil
	}
}

// beganAnew deals with a request that the proxy sends through its filters once more, as
// another stream. It does so when it follows upstream's redirect by itself, or when a filter
// after the gate asks for it. The new stream is a separate request with its own path and
// entry, so only this stream's outcome is settled here. False: the stream ends for another
// reason.
func (s *Stream) beganAnew() bool {
	p := s.plugin
	if details, _ := p.host.Property("response", "code_details"); string(details) != "internal_redirect" {
		return false
	}
	a := &s.answer
	a.status = int(p.number("response", "code"))
	_, retry := p.host.ResponseHeader(headerRetryAfter)
	said := ""
	if name := s.route.OutcomeHeader; name != "" {
		said, _ = p.host.ResponseHeader(name)
	}
	a.outcome = s.route.Outcome(a.status, retry, said)
	switch {
	case s.route.Ledger == config.LedgerUpstream:
		s.giveBack() // upstream's ledger knows what it has recorded
	case a.outcome == config.OutcomeRelease || a.outcome == config.OutcomeNone && p.fate() == fateNotSent:
		s.giveBack()
	case a.outcome == config.OutcomeNone, a.outcome == config.OutcomeHold:
		s.unknown()
	default:
		// Upstream answered, so the request ran. The client gets another answer than this one, so
		// there is no body to record.
		s.recordOutcome(nil, true)
		s.detach()
		s.phase = phaseDone
	}
	return true
}
