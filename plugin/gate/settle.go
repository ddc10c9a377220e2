package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// What the gate does once a call to the ledger has ended. All of it runs in the plugin context.

// action acts on the reply to a call. s is the stream that waits for the reply, and the current one; nil: none waits any
// more.
type action func(p *Plugin, c *call, r *reply, s *Stream)

// actions has the action for each kind of call and each kind of reply. Where it has none, that of replyUnavailable counts:
// the manager does not give such a reply to such a call, or does not say by it that it did what was asked.
var actions = [...][replyKinds]action{
	callReserve: {
		replyGranted:     (*Plugin).forwardGranted,
		replyPending:     (*Plugin).waitForOther,
		replyRecorded:    (*Plugin).replayFound,
		replyMismatch:    (*Plugin).refuseMismatch,
		replyFenced:      (*Plugin).refuseConflict,
		replyConflict:    (*Plugin).refuseConflict,
		replyUnknown:     (*Plugin).refuseUnknown,
		replyMoved:       (*Plugin).askNewOwner,
		replyUnavailable: (*Plugin).refuseOrBypass,
	},
	callCommit: outcomeActions,
	callReject: outcomeActions,
	callRelease: {
		replyDone:        (*Plugin).endRelease,
		replyFenced:      (*Plugin).endRelease,
		replyConflict:    (*Plugin).endRelease,
		replyUnknown:     (*Plugin).endRelease,
		replyTooLarge:    (*Plugin).endRelease,
		replyUnavailable: (*Plugin).retryRelease,
	},
	callRenew: {
		replyDone:        (*Plugin).extendReservation,
		replyFenced:      (*Plugin).loseReservation,
		replyConflict:    (*Plugin).loseReservation,
		replyUnavailable: (*Plugin).retryRenewal,
	},
	callUnknown: {
		replyDone:        (*Plugin).endReport,
		replyFenced:      (*Plugin).endFencedReport,
		replyConflict:    (*Plugin).endReport, // the ledger knows more about the outcome than the gate
		replyUnknown:     (*Plugin).endReport,
		replyTooLarge:    (*Plugin).abandonReport,
		replyRefused:     (*Plugin).abandonReport,
		replyUnavailable: (*Plugin).retryReport,
	},
	callLookUp: {
		replyPending:     (*Plugin).showPending,
		replyRecorded:    (*Plugin).showRecorded,
		replyUnresolved:  (*Plugin).showUnknown,
		replyNothing:     (*Plugin).showNothing,
		replyUnavailable: (*Plugin).showUnavailable,
	},
}

// outcomeActions are the actions for a commit or a reject.
var outcomeActions = [replyKinds]action{
	replyDone:        (*Plugin).endOutcome,
	replyFenced:      (*Plugin).dropOutcome,
	replyConflict:    (*Plugin).dropOutcome,
	replyUnknown:     (*Plugin).dropOutcome,
	replyTooLarge:    (*Plugin).reduceOutcome,
	replyRefused:     (*Plugin).reduceOutcome,
	replyUnavailable: (*Plugin).retryOutcome,
}

// settle acts on the reply to a call.
func (l *ledger) settle(c *call, r *reply) {
	r.uncertain = r.uncertain || c.uncertain
	l.heldBytes -= len(c.message)
	l.endRetry(c)
	l.checkAvailability(c, r)
	s := l.p.waitingStream(c)
	if c.kind == callLookUp && s == nil || c.kind == callRenew && c.renews == nil {
		return // the stream, or the reservation, has ended
	}
	act := actions[c.kind][r.kind]
	if act == nil {
		act = actions[c.kind][replyUnavailable]
	}
	act(l.p, c, r, s)
}

// checkAvailability notices from a reply whether the shard's manager is down.
func (l *ledger) checkAvailability(c *call, r *reply) {
	s := &l.shards[c.shard]
	wasDown := s.down
	if r.kind == replyUnavailable || r.kind == replyRefused {
		l.logFailure(s, c, r)
	} else {
		l.logRecovery(s)
	}
	s.down = r.kind == replyUnavailable && r.shardError != api.CodeKeyMoved && r.refusal == ""
	if wasDown && !s.down {
		l.retryNow(s, r.at)
	}
}

// waitingStream takes the waiting stream from the call and makes it the current one. nil: no stream waits any more.
func (p *Plugin) waitingStream(c *call) *Stream {
	s := c.stream
	c.stream = nil
	if s == nil {
		return nil
	}
	s.call = nil
	if !p.makeCurrent(s.id) {
		s.phase = phaseDone
		return nil
	}
	return s
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
	s.apply(s.forward(c.sent))
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

// The actions for a commit or a reject. The answer of a stream that waits goes to the client then.

// endOutcome is for an outcome that the ledger has recorded.
func (p *Plugin) endOutcome(c *call, r *reply, s *Stream) {
	p.calls.unindex(c)
	c.cacheFor = r.answer.ExpiresIn
	p.cacheOutcome(c, r.at, true)
	s.answerRecorded()
}

// dropOutcome is for an outcome that the ledger did not record, because it has another one, or another attempt has the key.
func (p *Plugin) dropOutcome(c *call, r *reply, s *Stream) {
	p.calls.unindex(c)
	p.metrics.count(p.metrics.fenced)
	p.releaseEntry(c, r.at)
	p.allowEviction(c, r.at)
	s.answerRecorded()
}

// reduceOutcome sends the status alone to a ledger whose limit is lower than the gate's, or that does not accept something
// in the answer. The status still prevents a second run.
func (p *Plugin) reduceOutcome(c *call, r *reply, s *Stream) {
	if !c.answerDropped {
		c.dropAnswer(p)
		if c.stream = s; s != nil {
			s.call = c
		}
		p.calls.add(c)
		return
	}
	p.cacheOutcome(c, r.at, false)
	p.calls.abandon(c, "the manager refuses to record an outcome")
	s.answerRecorded()
}

// retryOutcome is for an outcome that has not reached the ledger. Upstream ran the request. The client and the duplicates
// in this proxy get the answer now, and the ledger gets it as soon as it can be reached.
func (p *Plugin) retryOutcome(c *call, r *reply, s *Stream) {
	p.cacheOutcome(c, r.at, false)
	p.calls.retryLater(c)
	s.answerRecorded()
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

// The actions for a look-up.

// showPending looks again after recheckPeriod, because the manager does not hold look-ups.
func (p *Plugin) showPending(_ *call, r *reply, s *Stream) {
	if !s.mayWait(r.at) {
		s.answerPending()
		return
	}
	s.notBefore = r.at + int64(recheckPeriod)
	p.startWaiting(s)
}

func (p *Plugin) showRecorded(_ *call, r *reply, s *Stream) {
	s.remembered = int64(r.answer.ExpiresIn)
	s.replay(&r.answer.Result)
}

func (p *Plugin) showUnknown(_ *call, _ *reply, s *Stream) { s.outcomeUnknown() }

// showNothing answers that the key is unknown, unless it may have moved to another ledger.
func (p *Plugin) showNothing(c *call, _ *reply, s *Stream) {
	if owner := p.calls.owner(&s.attempt); owner != c.shard {
		s.askLedger(owner)
		return
	}
	s.notFound()
}

func (p *Plugin) showUnavailable(_ *call, r *reply, s *Stream) {
	s.unavailable(unavailableProblem(r.retryAfter))
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
