package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// What the gate does with the ledger's answers. Everything but reserve and askFor runs in the
// plugin context only.

// reserve asks the ledger for the right to run the request. The manager may not hold this
// first call: nearly all keys are new, and the gate notices a manager that hangs within
// the time of an ordinary call.
func (s *Stream) reserve() verdict {
	s.shard = s.plugin.calls.firstOwner(&s.attempt)
	return s.askFor(0, false)
}

// askFor sends a reserve. The manager may hold it for wait nanoseconds while another attempt is
// pending. open: an earlier reserve of the attempt may still be carried out.
func (s *Stream) askFor(wait int64, open bool) verdict {
	s.own()
	c := s.newCall(callReserve)
	c.wait, c.open = nanoseconds(wait), open
	c.stream = s
	s.call = c
	s.phase = phaseReserving
	s.plugin.calls.add(c)
	return verdictPause
}

// takeStream takes the waiting stream from the call and makes it the current one. nil: no stream
// waits any more.
func (p *Plugin) takeStream(c *call) *Stream {
	s := c.stream
	c.stream = nil
	if s == nil {
		return nil
	}
	s.call = nil
	if !p.choose(s.id) {
		s.phase = phaseDone
		return nil
	}
	return s
}

// reserved deals with the answer to a reserve.
func (p *Plugin) reserved(c *call, r *reply) {
	now := r.at
	s := p.takeStream(c)
	switch r.kind {
	case replyOK:
		switch r.answer.State {
		case api.StateReserved:
			if s == nil {
				// The stream has ended, so the request will not run.
				p.release(c, now+int64(r.answer.ExpiresIn))
				return
			}
			s.expires, s.doubtful = now+int64(r.answer.ExpiresIn), c.open
			s.act(s.forward(c.sent))
		case api.StatePending:
			if s != nil && c.wait == 0 && s.mayWait(now) {
				// Another gate works on the key. The manager is known to answer now, so it may hold
				// the second call. The cache's entry stays: duplicates in this proxy wait for it.
				s.hasWaited = true
				s.askFor(s.deadline(now)-now, c.open)
				return
			}
			p.withdraw(c, now)
			if s != nil {
				s.pending(int64(r.answer.ExpiresIn), now)
			}
		default:
			p.learned(c, &r.answer, now)
			if s != nil {
				if s.recordWait() {
					p.metrics.count(p.metrics.waited)
				} else {
					p.countHit(r.answer.State)
				}
				s.replay(&r.answer.Result)
			}
		}
	case replyMismatch:
		p.withdraw(c, now)
		if s != nil {
			s.act(s.mismatch())
		}
	case replyMoved:
		p.keyMoved(c, s, now)
	case replyUnknown:
		p.failWaiters(&c.hash, unknownProblem())
		p.withdraw(c, now)
		if s != nil {
			s.act(s.outcomeUnknown())
		}
	case replyFenced, replyConflict:
		// Another attempt has the key, or this attempt's outcome is known already.
		p.withdraw(c, now)
		if s != nil {
			s.act(s.conflict(0))
		}
	default:
		p.unreserved(c, r, s, now)
	}
}

// pending deals with a key that another gate works on. The manager has usually held the
// call for as long as the stream may wait. A manager that holds calls for a shorter time is
// asked again after recheckPeriod.
func (s *Stream) pending(remaining, now int64) {
	s.owner = false
	if s.mayWait(now) {
		s.notBefore = now + int64(recheckPeriod)
		s.plugin.link(s)
		return
	}
	s.hasWaited = s.hasWaited || s.route.WaitForPending
	s.conflict(remaining)
}

// unreserved deals with a reserve that the manager did not answer.
func (p *Plugin) unreserved(c *call, r *reply, s *Stream, now int64) {
	problem := unavailableProblem(r.retryAfter)
	switch r.closed {
	case api.CodeLedgerFull:
		problem.Code, problem.Title = r.closed, "The idempotency ledger has no room for new keys"
	case api.CodeQuarantine:
		problem.Code, problem.Title = r.closed, "The idempotency ledger may have forgotten keys and takes no new ones yet"
	case api.CodeRecordUnreadable:
		problem.Code, problem.Title = r.closed, "The idempotency ledger cannot read what it has of this key"
	case api.CodeDurability:
		problem.Code, problem.Title = r.closed, "The idempotency ledger cannot protect keys as this route asks"
	case api.CodeWrongHome:
		problem.Code, problem.Title = r.closed, "The data centres do not agree about this key"
	case api.CodeHomeUnavailable, api.CodeHomeUnanswered:
		problem.Code, problem.Title = r.closed, "The data centre that decides about this key cannot be reached"
	}
	// failure_mode is for a ledger that cannot be asked. A ledger that is the wrong one, that may have forgotten the
	// key, that cannot read what it has of it, or that cannot ask the key's home, was asked.
	closed := c.route.FailureMode == config.FailClosed || r.shardError != "" || r.closed != "" && r.closed != api.CodeLedgerFull
	if closed {
		p.failWaiters(&c.hash, problem)
	}
	c.open = r.maybe
	p.withdraw(c, now)
	if s == nil {
		return
	}
	s.owner = false
	if closed {
		p.metrics.count(p.metrics.managerError)
		s.recordWait()
		s.act(s.refuse(problem))
		return
	}
	s.act(s.bypass())
}

// learned fills the cache with an outcome that the ledger returned.
func (p *Plugin) learned(c *call, a *api.ReserveReply, now int64) {
	if a.ExpiresIn <= 0 {
		p.forget(c, now)
		return
	}
	o := cache.Outcome{
		Hash: c.hash, Token: c.token, State: a.State, Expires: now + int64(a.ExpiresIn),
		Fingerprint: c.fingerprint.Short(), Raw: a.Result.AppendRaw(nil), Learned: true,
	}
	p.fill(&o, now)
}

// fill records an outcome in the cache and wakes the waiters of its entry.
func (p *Plugin) fill(o *cache.Outcome, now int64) {
	p.writing = write{outcome: *o, left: writeTries}
	p.write(&p.writing, now)
}

// forget removes the call's pending entry from the cache, if it is there.
func (p *Plugin) forget(c *call, now int64) {
	if !c.owner {
		return
	}
	c.owner = false
	p.writing = write{outcome: cache.Outcome{Hash: c.hash, Token: c.token}, release: true, left: writeTries}
	p.write(&p.writing, now)
}

// write is a change of a pending entry. It is tried again when the cache could not make it
// because too many others wrote to the same bucket. Otherwise the entry would keep duplicates
// waiting until it expires.
type write struct {
	outcome cache.Outcome
	release bool
	left    int // tries that are left
}

const (
	// writeTries bounds how often a change is tried, once per tick.
	writeTries = 10
	// maxWrites bounds the changes that wait for another try. Beyond it they are dropped.
	maxWrites = 64
)

func (p *Plugin) write(w *write, now int64) {
	var result cache.Result
	var queues []uint32
	if w.release {
		result, queues = p.table.Release(&w.outcome.Hash, &w.outcome.Token, now)
	} else {
		result, queues = p.table.Finish(&w.outcome, now)
	}
	p.wake(&w.outcome.Hash, queues)
	w.left--
	if result == cache.Contended && w.left > 0 && len(p.writes) < maxWrites {
		p.writes = append(p.writes, *w)
	}
	w.outcome.Raw = nil // the reused memory must not keep the answer
}

// rewrite tries the failed changes again.
func (p *Plugin) rewrite(now int64) {
	if len(p.writes) == 0 {
		return
	}
	writes := p.writes
	p.writes = nil
	for i := range writes {
		p.write(&writes[i], now)
	}
}

// withdraw ends an attempt that did not get the key. If one of its reserves may have been carried out, the ledger has the
// reservation, now or soon, or takes it for an unknown outcome. Without a release it would block the key.
func (p *Plugin) withdraw(c *call, now int64) {
	if c.open {
		p.release(c, now+int64(c.route.PendingTTL))
		return
	}
	p.forget(c, now)
}

// release gives back a reservation that no request will run under. expires is when the
// reservation ends. The cache's entry stays until the ledger knows of the release, so that
// the next duplicate finds the key free.
func (p *Plugin) release(c *call, expires int64) *call {
	n := *c
	n.kind, n.stream, n.message, n.result = callRelease, nil, nil, nil
	n.wait, n.large, n.open, n.sendTwice = 0, false, false, c.open
	n.attempts, n.deadline = 0, n.forgotten(expires)
	c.owner = false
	p.metrics.count(p.metrics.released)
	p.calls.add(&n)
	return &n
}

// released deals with the answer to a release.
func (p *Plugin) released(c *call, r *reply) {
	p.forget(c, r.at)
	switch {
	case r.kind == replyUnavailable:
		p.calls.repeatLater(c)
	case c.sendTwice:
		p.calls.repeatRelease(c, r.at)
	}
}

// recorded deals with the answer to a commit or a reject.
func (p *Plugin) recorded(c *call, r *reply) {
	now := r.at
	s := p.takeStream(c)
	switch r.kind {
	case replyOK:
		p.calls.unchain(c)
		c.cacheFor = r.answer.ExpiresIn
		p.cacheOutcome(c, now, true)
	case replyFenced, replyConflict, replyUnknown:
		p.calls.unchain(c)
		p.metrics.count(p.metrics.fenced)
		p.forget(c, now)
		p.markSettled(c, now)
	case replyTooLarge, replyRefused:
		if !c.stripped {
			// The ledger's limit is lower than the gate's, or it does not accept something in the
			// answer. The status alone still prevents a second run.
			c.strip(p)
			c.stream = s
			if s != nil {
				s.call = c
			}
			p.calls.add(c)
			return
		}
		p.cacheOutcome(c, now, false)
		p.calls.abandon(c, "the manager refuses to record an outcome")
	default:
		// Upstream ran the request. The client and the duplicates in this proxy get the answer
		// now, and the ledger gets it as soon as it can be reached.
		p.cacheOutcome(c, now, false)
		p.calls.repeatLater(c)
	}
	if s != nil {
		s.answerRecorded()
	}
}

// reported deals with the answer to the report of an unknown outcome.
func (p *Plugin) reported(c *call, r *reply) {
	switch r.kind {
	case replyOK:
	case replyFenced:
		p.metrics.count(p.metrics.fenced)
	case replyConflict, replyUnknown:
		// The ledger knows more about the outcome than the gate.
	case replyTooLarge, replyRefused:
		p.calls.abandon(c, "the manager refuses to record an outcome")
		return
	default:
		p.calls.repeatLater(c)
		return
	}
	p.calls.unchain(c)
	p.forget(c, r.at)
}

// cacheOutcome fills the cache with the call's outcome, once. known: the ledger has it. Until then
// only the cache's entry keeps duplicates in this proxy from asking a ledger that would let
// them run, so the entry is not evicted.
func (p *Plugin) cacheOutcome(c *call, now int64, known bool) {
	if c.cached {
		if known {
			p.markSettled(c, now)
		}
		return
	}
	c.cached = true
	c.owner = false
	keep := c.lasts()
	if c.cacheFor > 0 {
		keep = min(keep, c.cacheFor)
	}
	if c.kind == callReject {
		p.metrics.count(p.metrics.rejected)
	} else {
		p.metrics.count(p.metrics.committed)
	}
	p.fill(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: c.kind.state(),
		Expires: now + int64(keep), Raw: c.result,
		// Where there is no ledger to ask, the entry must outlast its answer.
		CacheOnly: c.route.Ledger == config.LedgerNone || !known,
	}, now)
}

// markSettled lets the cache evict the entry: the ledger has the call's outcome now.
func (p *Plugin) markSettled(c *call, now int64) {
	if c.cached {
		p.table.Settle(&c.hash, &c.token, now)
	}
}
