package gate

import (
	"slices"
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
	return s.forward(now, now)
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

func (s *Stream) ledgerUpstream() bool { return s.route.Ledger == config.LedgerUpstream }

func (s *Stream) ledgerNone() bool { return s.route.Ledger == config.LedgerNone }

// The manager decides where a key is, not the gate: while shards are added or removed, gates and managers may have
// different lists. With manager.previous_shards the gate asks the previous owner of a key first, and the new owner only
// after key-moved. All further calls about the key go to the ledger that reserved it.

// firstOwner returns the position of the shard that the gate asks first about the key.
func (l *ledger) firstOwner(a *attempt) int {
	previous := l.p.config.Manager.Previous
	if len(previous) == 0 {
		return l.owner(a)
	}
	name := previous[api.Owner(previous, a.scope.String(), a.key)]
	return slices.IndexFunc(l.shards, func(s shard) bool { return s.name == name })
}

// owner returns the position of the key's owner.
func (l *ledger) owner(a *attempt) int {
	return api.Owner(l.p.config.Manager.Shards, a.scope.String(), a.key)
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
			return s.forward(now, now)
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

// replayCached replays the answer of an entry. False: the cache does not have it.
func (s *Stream) replayCached(e *cache.Entry, now int64) bool {
	s.remembered = e.Expires - now
	if !e.HasBody {
		return false
	}
	raw, ok := s.plugin.table.Body(e)
	return ok && s.replayRaw(raw)
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

// The actions for a reserve.

// forwardGranted lets the request run: the ledger has granted it the key.
func (p *Plugin) forwardGranted(c *call, r *reply, s *Stream) {
	expires := r.at + int64(r.answer.ExpiresIn)
	if s == nil {
		// The stream has ended, so the request will not run.
		p.releaseUnused(c, expires)
		return
	}
	s.expires, s.uncertain = expires, c.uncertain
	s.apply(s.forward(c.sent, r.at))
}

// forward sends the request upstream under a reservation that was made between since and now. Its first renewal counts from
// since, so that it is not late. Its number for upstream is now: an earlier attempt may have ended after since, but not
// after now.
func (s *Stream) forward(since, now int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.miss)
	s.copyFromHeaders()
	s.recordWait()
	s.status, s.reservedAt = statusExecuted, now
	p.startRenewing(&s.reservation, since)
	if s.outlivesClient() && s.canCarry() {
		return s.carry()
	}
	return s.forwardByRouter()
}

// outlivesClient reports whether the route wants a request to run on when its client has left.
func (s *Stream) outlivesClient() bool {
	return s.route.ClientAbort == config.AbortContinue && !s.ledgerUpstream()
}

// forwardByRouter lets the router carry the request.
func (s *Stream) forwardByRouter() verdict {
	s.dropBody()
	s.phase = phaseForwarded
	return verdictForward
}

// waitForOther waits for an attempt of another gate that has the key. The manager is known to answer now, so it may hold a second
// reserve. The cache's entry stays meanwhile: duplicates in this proxy wait for it. The manager has usually held that reserve for as
// long as the stream may wait. A manager that holds calls for a shorter time is asked again after recheckPeriod.
func (p *Plugin) waitForOther(c *call, r *reply, s *Stream) {
	now := r.at
	if s != nil && c.wait == 0 && s.mayWait(now) {
		s.hasWaited = true
		s.ask(callReserve, s.deadline(now)-now, c.uncertain)
		return
	}
	p.abandonAttempt(c, now)
	if s == nil {
		return
	}
	s.owner = false
	if s.mayWait(now) {
		s.notBefore = now + int64(recheckPeriod)
		p.startWaiting(s)
		return
	}
	s.hasWaited = s.hasWaited || s.route.WaitForPending && !s.async
	s.stillPending(int64(r.answer.ExpiresIn))
}

// replayFound answers with the recorded answer that the ledger returned, and fills the cache with it.
func (p *Plugin) replayFound(c *call, r *reply, s *Stream) {
	a := &r.answer
	if a.ExpiresIn > 0 {
		p.finishEntry(&cache.Outcome{
			Hash: c.hash, Token: c.token, State: a.State, Expires: r.at + int64(a.ExpiresIn),
			Fingerprint: c.fingerprint.Short(), Raw: a.Result.AppendRaw(nil), Learned: true,
		}, r.at)
	} else {
		p.releaseEntry(c, r.at)
	}
	if s != nil {
		s.countReplay(a.State)
		s.remembered = int64(a.ExpiresIn)
		s.replay(&a.Result)
	}
}

func (p *Plugin) refuseMismatch(c *call, r *reply, s *Stream) {
	p.abandonAttempt(c, r.at)
	if s != nil {
		s.mismatch()
	}
}

// refuseConflict refuses a duplicate: another attempt has the key, or this attempt's outcome is known already.
func (p *Plugin) refuseConflict(c *call, r *reply, s *Stream) {
	p.abandonAttempt(c, r.at)
	if s != nil {
		s.conflict(0)
	}
}

func (p *Plugin) refuseUnknown(c *call, r *reply, s *Stream) {
	p.failWaiters(&c.hash, &unknownProblem)
	p.abandonAttempt(c, r.at)
	if s != nil {
		s.outcomeUnknown()
	}
}

// askNewOwner asks the key's new owner, because the previous one keeps nothing about the key any more.
func (p *Plugin) askNewOwner(c *call, r *reply, s *Stream) {
	p.metrics.count(p.metrics.moved)
	if s == nil {
		p.releaseEntry(c, r.at)
		return
	}
	s.shard = p.calls.owner(&s.attempt)
	s.ask(callReserve, 0, false)
}

// refuseOrBypass deals with a reserve that the manager did not answer.
func (p *Plugin) refuseOrBypass(c *call, r *reply, s *Stream) {
	problem := unavailableProblem(r.retryAfter)
	if r.refusal != "" {
		problem.Code, problem.Title = r.refusal, closedTitle(r.refusal)
	}
	// failure_mode is for a ledger that cannot be asked. A ledger that is the wrong one, that may have forgotten the key,
	// that cannot read what it has of it, or that cannot ask the key's home, was asked.
	closed := c.route.FailureMode == config.FailClosed || r.shardError != "" || r.refusal != "" && r.refusal != api.CodeLedgerFull
	if closed {
		p.failWaiters(&c.hash, problem)
	}
	c.uncertain = r.uncertain
	p.abandonAttempt(c, r.at)
	switch {
	case s == nil:
	case closed:
		s.owner = false
		s.unavailable(problem)
	default:
		s.apply(s.bypass())
	}
}

// abandonAttempt ends an attempt that did not get the key. If one of its reserves may have been carried out, the ledger has
// the reservation, now or soon, or takes it for an unknown outcome. Without a release it would block the key.
func (p *Plugin) abandonAttempt(c *call, now int64) {
	if c.uncertain {
		p.releaseUnused(c, now+int64(c.route.PendingTTL))
		return
	}
	p.releaseEntry(c, now)
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

// recordWait reports whether the stream is a duplicate that waited, and records for how long.
func (s *Stream) recordWait() bool {
	if !s.hasWaited || s.isLookUp {
		return false
	}
	p := s.plugin
	p.metrics.record(p.metrics.wait, (p.host.Now()-s.firstDecided)/1e6)
	return true
}
