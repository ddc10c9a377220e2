package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// Renewals of reservations whose requests take long.

const (
	// renewsPerTick bounds the renewals that one tick starts.
	renewsPerTick = 256
	// renewRetry is when the gate tries again after a renewal that the manager did not answer.
	renewRetry = int64(time.Second)
)

// renew starts the renewals that are due. It begins where the last tick stopped.
func (p *Plugin) renew(now int64) {
	started := 0
	for range p.renewing {
		if started == renewsPerTick {
			return
		}
		p.renewNext++
		if p.renewNext >= len(p.renewing) {
			p.renewNext = 0
		}
		r := p.renewing[p.renewNext]
		// A clock that was set back must not put the renewal off.
		if early := r.renewAt - now; early > 0 && early <= r.third() || r.renewal != nil {
			continue
		}
		started++
		r.renewAt = now + r.third()
		if r.owner {
			p.table.Renew(&r.hash, &r.token, r.pendingEnd(now), now)
		}
		if r.route.Ledger == config.LedgerManager {
			r.renewal = r.newCall(callRenew)
			r.renewal.renews = r
			p.calls.add(r.renewal)
		}
	}
}

// The actions for a renewal.

// endRenewal ends the wait of the reservation for its renewal.
func (c *call) endRenewal(r *reply) *reservation {
	v := c.renews
	c.renews, v.renewal = nil, nil
	v.uncertain = v.uncertain || r.uncertain
	return v
}

func (p *Plugin) extendReservation(c *call, r *reply, _ *Stream) {
	p.metrics.count(p.metrics.renewed)
	c.endRenewal(r).expires = r.at + int64(r.answer.ExpiresIn)
}

func (p *Plugin) loseReservation(c *call, r *reply, _ *Stream) {
	p.stopRenewing(c.endRenewal(r))
	p.metrics.count(p.metrics.lost)
	p.logLimited(&p.calls.alarms, r.at, LevelError, "a running request lost its reservation to another request or to an outcome; it may run twice")
}

func (p *Plugin) retryRenewal(c *call, r *reply, _ *Stream) {
	v := c.endRenewal(r)
	v.renewAt = r.at + min(v.third(), renewRetry)
}

// Reservations that end without an answer to record.

// endPhase ends the stream's phase together with its reservation. A client that got 202 is served apart from that: its reply
// may wait for the request's end, and what follows of the request must not go upstream.
func (s *Stream) endPhase() {
	if s.phase != phaseDelayed && s.phase != phaseReplied {
		s.phase = phaseDone
	}
}

// releaseKey ends the reservation and frees its key: nothing ran, or upstream asks for a retry.
func (s *Stream) releaseKey() {
	p := s.plugin
	s.endPhase()
	p.stopRenewing(&s.reservation)
	switch {
	case s.route.Ledger == config.LedgerManager:
		p.sendRelease(&s.attempt, s.expires, s.uncertain)
	case s.owner:
		p.metrics.count(p.metrics.released)
		p.releaseEntry(s.newCall(callRelease), p.host.Now())
	}
	s.owner = false
}

// endUnknown ends the reservation without an outcome: upstream may have run the request, so no retry may run it.
func (s *Stream) endUnknown() {
	s.status = statusUnknown
	s.reportUnknown()
}

// reportUnknown is endUnknown for a request whose outcome upstream leaves open. It is settled later. Where upstream keeps
// the ledger, that ledger knows. Until the ledger has the report, the cache answers duplicates. After that each duplicate
// asks the ledger, so that an operator's resolution takes effect.
func (s *Stream) reportUnknown() {
	p := s.plugin
	if s.ledgerUpstream() || s.route.Resumable {
		s.releaseKey()
		return
	}
	s.endPhase()
	p.stopRenewing(&s.reservation)
	p.metrics.count(p.metrics.unknownOutcomes)
	c := s.newCall(callUnknown)
	s.owner = false
	if c.route.UnknownTTL == 0 {
		return // the key is taken until the reservation runs out
	}
	c.owner = true
	now := p.host.Now()
	p.finishEntry(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: api.StateUnknown,
		Expires: now + int64(c.lasts()), CacheOnly: true,
	}, now)
	if c.route.Ledger == config.LedgerManager {
		p.calls.add(c)
	}
}

// incomplete reports whether upstream lacks a part of the body, for a request that it got as it came.
func (e *requestEnd) incomplete() bool {
	return e.headersRead && !e.ended && (e.length < 0 || e.received < e.length)
}

// beganAgain deals with a request that the proxy sends through its filters once more, as another stream. It does so when it
// follows upstream's redirect by itself, or when a filter after the gate asks for it. The new stream is a separate request
// with its own path and entry, so only this stream's outcome is settled here. False: the stream ends for another reason.
func (s *Stream) beganAgain() bool {
	p := s.plugin
	if details, _ := p.host.Property("response", "code_details"); string(details) != "internal_redirect" {
		return false
	}
	a := &s.answer
	a.status = int(p.number("response", "code"))
	_, retry := p.host.ResponseHeader(headerRetryAfter)
	if name := s.route.OutcomeHeader; name != "" {
		a.outcomeValue, _ = p.host.ResponseHeader(name)
	}
	a.outcome = s.route.Outcome(a.status, retry, a.outcomeValue)
	switch {
	case s.route.Ledger == config.LedgerUpstream:
		s.releaseKey() // upstream's ledger knows what it has recorded
	case a.outcome == config.OutcomeRelease || a.outcome == config.OutcomeNone && p.fate() == fateNotSent:
		s.releaseKey()
	case a.outcome == config.OutcomeNone, a.outcome == config.OutcomeHold:
		s.endUnknown()
	default:
		// Upstream answered, so the request ran. The client gets another answer than this one, so there is no body to
		// record.
		s.recordOutcome(nil, true)
		s.detachCall()
		s.phase = phaseDone
	}
	return true
}

// releaseUnused gives back a reservation that no request will run under. expires is when the reservation ends. The cache's
// entry stays until the ledger knows of the release, so that the next duplicate finds the key free.
func (p *Plugin) releaseUnused(c *call, expires int64) {
	p.sendRelease(&c.attempt, expires, c.uncertain)
	c.owner = false
}

// sendRelease has the ledger free the key. sendTwice: see call.
func (p *Plugin) sendRelease(a *attempt, expires int64, sendTwice bool) {
	p.metrics.count(p.metrics.released)
	p.calls.add(&call{kind: callRelease, attempt: *a, deadline: a.forgotten(expires), sendTwice: sendTwice})
}

// The actions for a release.

func (p *Plugin) endRelease(c *call, r *reply, _ *Stream) {
	p.releaseEntry(c, r.at)
	if c.sendTwice {
		p.calls.releaseAgain(c, r.at)
	}
}

func (p *Plugin) retryRelease(c *call, r *reply, _ *Stream) {
	p.releaseEntry(c, r.at)
	p.calls.retryLater(c)
}

// The actions for the report of an unknown outcome.

func (p *Plugin) endReport(c *call, r *reply, _ *Stream) {
	p.calls.unindex(c)
	p.releaseEntry(c, r.at)
}

func (p *Plugin) endFencedReport(c *call, r *reply, s *Stream) {
	p.metrics.count(p.metrics.fenced)
	p.endReport(c, r, s)
}

func (p *Plugin) abandonReport(c *call, _ *reply, _ *Stream) {
	p.calls.abandon(c, "the manager refuses to record an outcome")
}

func (p *Plugin) retryReport(c *call, _ *reply, _ *Stream) { p.calls.retryLater(c) }
