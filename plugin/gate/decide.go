package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// maxDecisions bounds how often one callback decides again because the entry changed meanwhile.
const maxDecisions = 4

// decide finds out what to do with the request.
func (s *Stream) decide() verdict {
	for range maxDecisions {
		if v := s.decideOnce(); v != verdictAgain {
			return v
		}
	}
	// The entry changes faster than the gate can look, so wait for the tick.
	s.plugin.startWaiting(s)
	return verdictPause
}

func (s *Stream) decideOnce() verdict {
	p := s.plugin
	now := p.host.Now()
	if s.firstDecided == 0 {
		s.firstDecided = now
	}
	if s.isLookUp {
		return s.answerLookUp(now)
	}
	e := &p.entry
	if p.table.Lookup(&s.hash, now, e) {
		return s.decideByEntry(e, now)
	}
	if c := p.calls.unacknowledgedCall(&s.hash); c != nil {
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
		return s.decideByEntry(e, now)
	case cache.Created:
		s.owner = true
	default:
		s.owner = false
		if s.ledgerNone() {
			// No ledger can decide instead of the cache.
			return s.unprotected(&overloadedProblem)
		}
	}
	return s.proceed(now)
}

// proceed continues with a request that is new as far as the cache knows.
func (s *Stream) proceed(now int64) verdict {
	if s.route.Ledger == config.LedgerManager {
		s.shard = s.plugin.calls.firstOwner(&s.attempt)
		return s.ask(callReserve, 0, false)
	}
	s.expires = now + int64(s.route.PendingTTL)
	return s.forward(now)
}

// ask makes a call for whose reply the stream waits: a look-up, or a reserve, which asks for the right to run the request.
// The manager may hold a reserve for wait nanoseconds while another attempt is pending. It may not hold the first one:
// nearly all keys are new, and the gate notices a manager that hangs within the time of an ordinary call. uncertain: an
// earlier reserve of the attempt may still be carried out.
func (s *Stream) ask(kind callKind, wait int64, uncertain bool) verdict {
	s.copyFromHeaders()
	c := s.newCall(kind)
	c.wait, c.uncertain = time.Duration(wait), uncertain
	c.stream, s.call = s, c
	s.phase = phaseReserving
	s.plugin.calls.add(c)
	return verdictPause
}

// decideByEntry deals with a request whose entry is in the cache.
func (s *Stream) decideByEntry(e *cache.Entry, now int64) verdict {
	p := s.plugin
	mine := cache.Fingerprint(s.fingerprint.Short())
	if e.Learned && !mine.Within(&e.Fingerprint) && s.route.Ledger == config.LedgerManager {
		// The ledger has compared another duplicate with the first request, not this one.
		return s.askLedgerOnly(now)
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
		if p.isDead(e.Owner, now) {
			return s.decideForOrphan(e, now)
		}
		return s.waitForEntry(e.Expires, now)
	}
	if state := e.State; s.replayCached(e, now) {
		s.countReplay(state)
		return verdictReplied
	}
	// The first request is done, but its answer is not in the cache.
	if s.ledgerNone() {
		s.replay(&api.Result{BodyOmitted: true})
		return verdictReplied
	}
	switch c := p.calls.unacknowledgedCall(&s.hash); {
	case c != nil:
		return s.unacknowledged(c, now)
	case e.CacheOnly:
		// The ledger does not know the outcome yet, so it would let the request run.
		return s.conflict(0)
	}
	return s.askLedgerOnly(now)
}

// unacknowledged deals with an outcome that this VM has and the ledger has not acknowledged. The cache's entry does not
// help: it was evicted, or has not been written yet.
func (s *Stream) unacknowledged(c *call, now int64) verdict {
	mine, entry := cache.Fingerprint(s.fingerprint.Short()), cache.Fingerprint(c.fingerprint.Short())
	switch {
	case !mine.Matches(&entry):
		return s.mismatch()
	case c.kind == callUnknown:
		return s.outcomeUnknown()
	case c.cached && s.replayRaw(c.result):
		s.countReplay(c.kind.state())
		return verdictReplied
	}
	return s.waitForCall(now)
}

// waitForCall makes the stream wait until a call of this VM has delivered the outcome. If it may not wait, it is answered.
func (s *Stream) waitForCall(now int64) verdict {
	if !s.mayWait(now) {
		return s.stillPending(0)
	}
	s.plugin.startWaiting(s)
	return verdictPause
}

// askLedgerOnly asks the ledger about a key without touching its entry in the cache, which does not help.
func (s *Stream) askLedgerOnly(now int64) verdict {
	s.owner = false
	if !s.plugin.host.Random(s.token[:]) {
		return s.unprotected(unavailableProblem(0))
	}
	return s.proceed(now)
}

// decideForOrphan deals with a pending entry whose VM is dead, so nothing in this proxy will end it. Only the ledger may
// know the request's outcome; without a ledger it stays unknown.
func (s *Stream) decideForOrphan(e *cache.Entry, now int64) verdict {
	s.plugin.metrics.count(s.plugin.metrics.orphaned)
	s.ownerDead = true
	switch {
	case !s.ledgerNone():
		return s.askLedgerOnly(now)
	case s.route.UnknownTTL == 0:
		return s.conflict(e.Expires - now)
	}
	return s.outcomeUnknown()
}

// outcomeUnknown refuses a duplicate of a request that may have run.
func (s *Stream) outcomeUnknown() verdict {
	return s.refuseAs(s.plugin.metrics.unknown, &unknownProblem)
}

func (s *Stream) mismatch() verdict { return s.refuseAs(s.plugin.metrics.mismatch, &mismatchProblem) }

// unprotected deals with a request that cannot be protected.
func (s *Stream) unprotected(problem *api.Problem) verdict {
	if s.route.FailureMode == config.FailOpen && !s.isLookUp {
		return s.bypass()
	}
	return s.unavailable(problem)
}

// unavailable refuses a request that cannot be protected.
func (s *Stream) unavailable(problem *api.Problem) verdict {
	return s.refuseAs(s.plugin.metrics.managerError, problem)
}

// bypass forwards the request without protection.
func (s *Stream) bypass() verdict {
	p := s.plugin
	p.metrics.count(p.metrics.bypass)
	s.recordWait()
	s.status = statusBypassed
	s.owner = false
	s.phase = phasePass
	return verdictForward
}

// forward sends the request upstream under the reservation that was made at since.
func (s *Stream) forward(since int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.miss)
	s.copyFromHeaders()
	s.recordWait()
	s.status, s.reservedAt = statusExecuted, since
	p.startRenewing(&s.reservation, since)
	if s.continues() {
		return s.carry()
	}
	return s.forwardByRouter()
}

// forwardByRouter lets the router carry the request.
func (s *Stream) forwardByRouter() verdict {
	s.dropBody()
	s.phase = phaseForwarded
	return verdictForward
}

// countReplay counts a replay, by whether the duplicate has waited for it.
func (s *Stream) countReplay(state api.State) {
	p := s.plugin
	switch {
	case s.recordWait():
		p.metrics.count(p.metrics.waited)
	case state == api.StateRejected:
		p.metrics.count(p.metrics.hitRejected)
	default:
		p.metrics.count(p.metrics.hitCommitted)
	}
}

// waitForEntry makes the stream wait until another attempt's pending entry ends. If it may not wait, it is answered. The
// current stream is s.
func (s *Stream) waitForEntry(expires, now int64) verdict {
	p := s.plugin
	if !s.mayWait(now) {
		return s.stillPending(expires - now)
	}
	if p.table.AddWaiter(&s.hash, p.queue, now) == cache.Ended {
		// The entry ended between the look and this call, so nothing will wake this stream.
		return verdictAgain
	}
	// If the entry has no room for this VM's queue, the tick looks instead.
	p.startWaiting(s)
	return verdictPause
}

// mayWait reports whether the stream may wait, or wait longer.
func (s *Stream) mayWait(now int64) bool {
	return s.route.WaitForPending && !s.ownerDead && now < s.deadline(now) && s.roomLeft()
}

// roomLeft reports whether there is room for another waiter. The waiters of one key never take more room than they leave
// free, so that a storm on one key leaves room for others.
func (s *Stream) roomLeft() bool {
	waiting := &s.plugin.waiting
	free := s.plugin.config.MaxWaiters - waiting.size
	if s.hasWaited || waiting.size < free {
		return free > 0
	}
	same := 0
	for w := waiting.first; w != nil; w = w.next {
		if w.hash == s.hash {
			same++
		}
	}
	return same < free
}

// deadline is when a duplicate or a look-up stops waiting. It never waits longer than it may, even if the clock is set back.
func (s *Stream) deadline(now int64) int64 {
	if now < s.firstDecided {
		s.firstDecided = now
	}
	if s.isLookUp || s.async {
		return s.firstDecided + s.patience
	}
	return s.firstDecided + int64(s.route.PendingWait)
}

// stillPending answers a duplicate or a look-up that may not wait, or not longer. remaining: see conflict.
func (s *Stream) stillPending(remaining int64) verdict {
	switch p := s.plugin; {
	case s.async:
		p.metrics.count(p.metrics.conflict)
		return s.answerPending()
	case s.isLookUp:
		return s.answerPending()
	}
	return s.conflict(remaining)
}

// conflict answers 409. remaining is the longest time for which the other attempt's reservation can still hold,
// nanoseconds.
func (s *Stream) conflict(remaining int64) verdict {
	if !s.hasWaited {
		remaining = 0 // the original may be done soon
	}
	return s.refuseAs(s.plugin.metrics.conflict, pendingProblem(remaining))
}

// recordWait reports whether the stream is a duplicate that waited, and records for how long.
func (s *Stream) recordWait() bool {
	if !s.hasWaited || s.isLookUp {
		return false
	}
	p := s.plugin
	p.metrics.record(p.metrics.wait, (p.host.Now()-s.firstDecided)/1e6)
	return true
}

func (p *Plugin) startWaiting(s *Stream) {
	s.copyFromHeaders()
	if p.uploadBytes > maxUploadBytes/2 {
		// Requests that run now need the room. If this one runs later, the router has its body.
		s.dropBody()
	}
	s.phase = phaseWaiting
	s.hasWaited = true
	p.waiting.add(s)
	p.metrics.add(p.metrics.waiters, 1)
}

func (p *Plugin) stopWaiting(s *Stream) {
	p.waiting.remove(s)
	p.metrics.add(p.metrics.waiters, -1)
}

// wakeWaiters makes waiters decide again: those whose time is over, and those that were woken. False: there were none. Once
// the callback is at its limit, the next one continues.
func (p *Plugin) wakeWaiters() (busy bool) {
	if p.waiting.size == 0 {
		p.deadlinesDue, p.wokenAll, p.wokenKeys = false, false, p.wokenKeys[:0]
	}
	if !p.deadlinesDue && !p.wokenAll && len(p.wokenKeys) == 0 {
		return false
	}
	now := p.host.Now()
	if p.deadlinesDue {
		// A wake-up may have got lost, so they look one last time.
		p.deadlinesDue = !p.decideAgain(func(s *Stream) bool { return now >= s.deadline(now) })
	}
	if p.wokenAll && !p.atLimit() {
		p.wokenKeys = p.wokenKeys[:0]
		p.wokenAll = !p.decideAgain(func(s *Stream) bool { return s.ready(now) })
	}
	for len(p.wokenKeys) > 0 && !p.atLimit() {
		hash := p.wokenKeys[len(p.wokenKeys)-1]
		p.wokenKeys = p.wokenKeys[:len(p.wokenKeys)-1]
		if !p.decideAgain(func(s *Stream) bool { return s.hash == hash && s.ready(now) }) {
			p.wokenKeys = append(p.wokenKeys, hash)
		}
	}
	return true
}

// ready reports whether a woken waiter may look now.
func (s *Stream) ready(now int64) bool { return now >= s.notBefore || s.failure != nil }

// decideAgain makes the waiters that picked selects decide again. False: the callback is at its limit and some of them are left. A
// stream that must wait longer joins the end of the list, so the loop counts the streams that wait now and looks at each of
// them once.
func (p *Plugin) decideAgain(picked func(*Stream) bool) (all bool) {
	s := p.waiting.first
	for left := p.waiting.size; left > 0 && s != nil; left-- {
		next := s.next
		if picked(s) {
			if p.atLimit() {
				return false
			}
			p.stopWaiting(s)
			switch {
			case !p.makeCurrent(s.id):
				s.phase = phaseDone
			case s.failure == nil:
				s.apply(s.decide())
			case s.failure.Code == api.CodeOutcomeUnknown:
				s.apply(s.outcomeUnknown())
			default:
				s.apply(s.unprotected(s.failure))
			}
		}
		s = next
	}
	return true
}

// failWaiters answers the local waiters of an entry with a problem. The attempt that they wait for failed, and each of them
// would fail for the same reason.
func (p *Plugin) failWaiters(hash *cache.Hash, problem *api.Problem) {
	for s := p.waiting.first; s != nil; s = s.next {
		if s.hash == *hash {
			s.failure = problem
		}
	}
	p.wokenKeys = append(p.wokenKeys, *hash)
}
