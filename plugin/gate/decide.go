package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// maxDecisions bounds how often one callback decides again because the entry changed
// meanwhile.
const maxDecisions = 4

// decide finds out what to do with the request.
func (s *Stream) decide() verdict {
	for range maxDecisions {
		if v := s.decideOnce(); v != verdictAgain {
			return v
		}
	}
	// The entry changes faster than the gate can look, so wait for the tick.
	s.plugin.link(s)
	return verdictPause
}

func (s *Stream) decideOnce() verdict {
	p := s.plugin
	now := p.host.Now()
	if !s.decided {
		s.decided, s.firstDecided = true, now
	}
	e := &p.entry
	if p.table.Lookup(&s.hash, now, e) {
		return s.found(e, now)
	}
	if c := p.calls.outcomeCall(&s.hash); c != nil {
		return s.unacknowledged(c, now)
	}
	if !p.host.Random(s.token[:]) {
		return s.unprotected(unavailableProblem(0))
	}
	p.asked = cache.Reservation{
		Hash: s.hash, Token: s.token, Fingerprint: s.fingerprint.Short(), Owner: p.queue,
		Expires: s.pendingEnd(now), CacheOnly: s.ledgerNone(),
	}
	result, queues := p.table.Reserve(&p.asked, now, e)
	p.wakeAll(queues)
	switch result {
	case cache.Existing:
		return s.found(e, now)
	case cache.Created:
		s.owner = true
	default:
		s.owner = false
		if s.ledgerNone() {
			// No ledger can decide instead of the cache.
			return s.unprotected(overloadedProblem())
		}
	}
	return s.proceed(now)
}

// proceed continues with a request that is new as far as the cache knows.
func (s *Stream) proceed(now int64) verdict {
	if s.route.Ledger == config.LedgerManager {
		s.shard = s.plugin.calls.firstOwner(&s.attempt)
		return s.reserve(0, false)
	}
	s.expires = now + int64(s.route.PendingTTL)
	return s.forward(now)
}

// reserve asks the ledger for the right to run the request. The manager may hold the call for wait nanoseconds while another
// attempt is pending. It may not hold the first one: nearly all keys are new, and the gate notices a manager that hangs within the
// time of an ordinary call. open: an earlier reserve of the attempt may still be carried out.
func (s *Stream) reserve(wait int64, open bool) verdict { return s.ask(callReserve, wait, open) }

// ask makes a call for whose reply the stream waits.
func (s *Stream) ask(kind callKind, wait int64, open bool) verdict {
	s.own()
	c := s.newCall(kind)
	c.wait, c.open = nanoseconds(wait), open
	c.stream, s.call = s, c
	s.phase = phaseReserving
	s.plugin.calls.add(c)
	return verdictPause
}

// found deals with a request whose entry is in the cache.
func (s *Stream) found(e *cache.Entry, now int64) verdict {
	p := s.plugin
	mine := cache.Fingerprint(s.fingerprint.Short())
	if e.Learned && !mine.Within(&e.Fingerprint) && s.route.Ledger == config.LedgerManager {
		// The ledger has compared another duplicate with the first request, not this one.
		return s.askBeside(now)
	}
	if !mine.Matches(&e.Fingerprint) {
		if s.route.Ledger == config.LedgerUpstream {
			// Upstream keeps the ledger, and may compare less strictly than the gate.
			s.owner = false
			return s.forward(now)
		}
		return s.mismatch()
	}
	switch e.State {
	case api.StateUnknown:
		return s.outcomeUnknown()
	case api.StatePending:
		if p.dead(e.Owner, now) {
			return s.orphaned(e, now)
		}
		return s.waitForEntry(e.Expires, now)
	}
	if state := e.State; s.replayCached(e) {
		s.countReplay(state)
		return verdictReplied
	}
	// The first request is done, but its answer is not in the cache.
	if s.ledgerNone() {
		s.replay(&api.Result{BodyOmitted: true})
		return verdictReplied
	}
	switch c := p.calls.outcomeCall(&s.hash); {
	case c != nil:
		return s.unacknowledged(c, now)
	case e.CacheOnly:
		// The ledger does not know the outcome yet, so it would let the request run.
		return s.conflict(0)
	}
	return s.askBeside(now)
}

// unacknowledged deals with an outcome that this VM has and the ledger has not acknowledged. The
// cache's entry does not help: it was evicted, or has not been written yet.
func (s *Stream) unacknowledged(c *call, now int64) verdict {
	p := s.plugin
	mine, entry := cache.Fingerprint(s.fingerprint.Short()), cache.Fingerprint(c.fingerprint.Short())
	switch {
	case !mine.Matches(&entry):
		return s.mismatch()
	case c.kind == callUnknown:
		return s.outcomeUnknown()
	case c.cached && s.replayRaw(c.result):
		p.countHit(c.kind.state())
		return verdictReplied
	case !s.mayWait(now):
		return s.conflict(0)
	}
	p.link(s)
	return verdictPause
}

// askBeside asks the ledger about a key without touching its entry in the cache, which does not
// help.
func (s *Stream) askBeside(now int64) verdict {
	s.owner = false
	if !s.plugin.host.Random(s.token[:]) {
		return s.unprotected(unavailableProblem(0))
	}
	return s.proceed(now)
}

// orphaned deals with a pending entry whose VM is dead, so nothing in this proxy will end it. Only
// the ledger may know the request's outcome; without a ledger it stays unknown.
func (s *Stream) orphaned(e *cache.Entry, now int64) verdict {
	s.plugin.metrics.count(s.plugin.metrics.orphaned)
	s.ownerDead = true
	switch {
	case !s.ledgerNone():
		return s.askBeside(now)
	case s.route.UnknownTTL == 0:
		return s.conflict(e.Expires - now)
	}
	return s.outcomeUnknown()
}

// outcomeUnknown refuses a duplicate of a request that may have run.
func (s *Stream) outcomeUnknown() verdict {
	p := s.plugin
	p.metrics.count(p.metrics.unknown)
	s.recordWait()
	return s.refuse(unknownProblem())
}

func (s *Stream) mismatch() verdict {
	p := s.plugin
	p.metrics.count(p.metrics.mismatch)
	s.recordWait()
	return s.refuse(mismatchProblem())
}

// unprotected deals with a request that cannot be protected.
func (s *Stream) unprotected(problem *api.Problem) verdict {
	if s.route.FailureMode == config.FailOpen {
		return s.bypass()
	}
	return s.unavailable(problem)
}

// unavailable refuses a request that cannot be protected.
func (s *Stream) unavailable(problem *api.Problem) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.managerError)
	s.recordWait()
	return s.refuse(problem)
}

// bypass forwards the request without protection.
func (s *Stream) bypass() verdict {
	p := s.plugin
	p.metrics.count(p.metrics.bypass)
	s.recordWait()
	s.mark = statusBypassed
	s.owner = false
	s.phase = phasePass
	return verdictForward
}

// forward sends the request upstream under the reservation that was made at since.
func (s *Stream) forward(since int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.miss)
	s.own()
	s.recordWait()
	s.mark, s.reservedAt = statusExecuted, since
	p.startRenewing(&s.reservation, since)
	if s.continues() {
		return s.carry()
	}
	return s.routed()
}

// routed lets the router carry the request.
func (s *Stream) routed() verdict {
	s.dropBody()
	s.phase = phaseForwarded
	return verdictForward
}

func (s *Stream) ledgerUpstream() bool { return s.route.Ledger == config.LedgerUpstream }

func (s *Stream) ledgerNone() bool { return s.route.Ledger == config.LedgerNone }

// countReplay counts a replay, by whether the duplicate has waited for it.
func (s *Stream) countReplay(state api.State) {
	p := s.plugin
	if s.recordWait() {
		p.metrics.count(p.metrics.waited)
	} else {
		p.countHit(state)
	}
}

func (p *Plugin) countHit(state api.State) {
	if state == api.StateRejected {
		p.metrics.count(p.metrics.hitRejected)
	} else {
		p.metrics.count(p.metrics.hitCommitted)
	}
}
