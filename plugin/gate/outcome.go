package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// What the answers of the ledger mean. All of this runs in the plugin context.

// reserve asks the ledger for the right to run the request. The call is not one that the
// manager may hold: nearly all keys are new, and a manager that hangs is found out within
// the time of an ordinary call.
func (s *Stream) reserve() verdict {
	s.shard = s.plugin.calls.first(&s.attempt)
	return s.askFor(0)
}

// askFor sends a reserve that the manager may hold for so long while another attempt is
// pending.
func (s *Stream) askFor(wait int64) verdict {
	s.own()
	c := s.newCall(callReserve)
	c.wait = nanoseconds(wait)
	c.stream = s
	s.call = c
	s.phase = phaseReserving
	s.plugin.calls.add(c)
	return verdictPause
}

// take returns the stream that waits for the call, now the current one; nil
// when there is none any more.
func (p *Plugin) take(c *call) *Stream {
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
	s := p.take(c)
	switch r.kind {
	case replyOK:
		switch r.answer.State {
		case api.StateReserved:
			if s == nil {
				// Nobody is there to run it any more.
				p.release(c, now+int64(r.answer.ExpiresIn))
				return
			}
			s.expires = now + int64(r.answer.ExpiresIn)
			s.act(s.forward(c.sent))
		case api.StatePending:
			if s != nil && c.wait == 0 && s.mayWait(now) {
				// Another gate's. Now that the manager is known to answer, it may hold the
				// call. The cache's entry stays: duplicates here wait for this one.
				s.hasWaited = true
				s.askFor(s.deadline(now) - now)
				return
			}
			p.forget(c, now)
			if s != nil {
				s.pending(int64(r.answer.ExpiresIn), now)
			}
		default:
			p.learned(c, &r.answer, now)
			if s != nil {
				if s.waited() {
					p.metrics.count(p.metrics.waited)
				} else {
					p.countHit(r.answer.State)
				}
				s.replay(&r.answer.Result)
			}
		}
	case replyMismatch:
		p.forget(c, now)
		if s != nil {
			s.act(s.mismatch())
		}
	case replyMoved:
		p.moved(c, s, now)
	case replyRefused:
		// An older manager does not know the end of the message.
		if c.plain = true; s == nil {
			p.forget(c, now)
			return
		}
		c.stream, s.call = s, c
		p.calls.add(c)
	case replyUnknown:
		p.failWaiters(&c.hash, unknownProblem())
		p.forget(c, now)
		if s != nil {
			s.act(s.outcomeUnknown())
		}
	case replyFenced, replyConflict:
		// The key was reserved again under our token's feet.
		p.forget(c, now)
		if s != nil {
			s.act(s.conflict(0))
		}
	default:
		p.unreserved(c, r, s, now)
	}
}

// pending deals with a key that another gate works on. The manager has held the
// call as long as it may wait. A manager that holds calls for less is asked
// again, but not at once.
func (s *Stream) pending(remaining, now int64) {
	s.owner = false
	if s.mayWait(now) {
		s.patient = now + int64(recheckPeriod)
		s.plugin.link(s)
		return
	}
	s.hasWaited = s.hasWaited || s.route.WaitForPending
	s.conflict(remaining)
}

// unreserved deals with a reserve that the manager did not answer.
func (p *Plugin) unreserved(c *call, r *reply, s *Stream, now int64) {
	problem := unavailableProblem(r.retryAfter)
	if r.full {
		problem.Code, problem.Title = api.CodeLedgerFull, "The idempotency ledger has no room for new keys"
	}
	// failure_mode is for a ledger that cannot be asked. One that says that it is the wrong one was asked.
	closed := c.route.FailureMode == config.FailClosed || r.astray != ""
	if closed {
		p.failWaiters(&c.hash, problem)
	}
	if r.maybe {
		// The reservation may exist, or will; left alone it would block the key until it
		// runs out.
		p.release(c, now+int64(c.route.PendingTTL)).again = true
	}
	p.forget(c, now)
	if s == nil {
		return
	}
	s.owner = false
	if closed {
		p.metrics.count(p.metrics.managerError)
		s.waited()
		s.act(s.refuse(problem))
		return
	}
	s.act(s.bypass())
}

// learned fills the cache with an outcome that the ledger knew.
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

// fill records an outcome in the cache and wakes who waits for it.
func (p *Plugin) fill(o *cache.Outcome, now int64) {
	p.write(&write{outcome: *o, left: writeTries}, now)
}

// forget removes the call's pending entry from the cache, if it is there.
func (p *Plugin) forget(c *call, now int64) {
	if !c.owner {
		return
	}
	c.owner = false
	p.write(&write{outcome: cache.Outcome{Hash: c.hash, Token: c.token}, release: true, left: writeTries}, now)
}

// write is a change of a pending entry that the cache could not make: too many others wrote
// to the same bucket. Left alone, the entry would keep duplicates waiting until
// it expires.
type write struct {
	outcome cache.Outcome
	release bool
	left    int // tries
}

const (
	// writeTries bounds how often a change is tried, once per tick.
	writeTries = 10
	// maxWrites bounds the changes that wait for another try.
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
}

// rewrite tries the changes again that failed before.
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

// release gives a reservation back that nothing will run under. The cache's entry
// stays until the ledger has heard of it, so that the next duplicate finds the
// key free. expires is when the reservation ends.
func (p *Plugin) release(c *call, expires int64) *call {
	n := *c
	n.kind, n.stream, n.message, n.result = callRelease, nil, nil, nil
	n.wait, n.alone = 0, false
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
		p.calls.later(c)
	case c.again:
		p.calls.repeatOnce(c, r.at)
	}
}

// recorded deals with the answer to a commit or a reject.
func (p *Plugin) recorded(c *call, r *reply) {
	now := r.at
	s := p.take(c)
	switch r.kind {
	case replyOK:
		p.calls.done(c)
		p.keep(c, now, true)
	case replyFenced, replyConflict, replyUnknown:
		p.calls.done(c)
		p.metrics.count(p.metrics.fenced)
		p.forget(c, now)
		p.settled(c, now)
	case replyTooLarge, replyRefused:
		if !c.stripped {
			// The ledger's limit is below ours, or something in the answer is not to its
			// liking. That it ran is still worth recording.
			c.strip()
			c.stream = s
			if s != nil {
				s.call = c
			}
			p.calls.add(c)
			return
		}
		p.keep(c, now, false)
		p.calls.abandon(c, "the manager refuses to record an outcome")
	default:
		// Upstream did run: the client gets its answer, and duplicates that come
		// here get it as well. The ledger hears of it as soon as it can.
		p.keep(c, now, false)
		p.calls.later(c)
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
		// The ledger knows more than we do.
	case replyTooLarge, replyRefused:
		p.calls.abandon(c, "the manager refuses to record an outcome")
		return
	default:
		p.calls.later(c)
		return
	}
	p.calls.done(c)
	p.forget(c, r.at)
}

// keep fills the cache with the call's outcome, once. Until the ledger knows of it, the
// cache's entry is all that keeps duplicates here from asking a ledger that would let them
// run, so it stays.
func (p *Plugin) keep(c *call, now int64, known bool) {
	if c.cached {
		if known {
			p.settled(c, now)
		}
		return
	}
	c.cached = true
	c.owner = false
	if c.kind == callReject {
		p.metrics.count(p.metrics.rejected)
	} else {
		p.metrics.count(p.metrics.committed)
	}
	p.fill(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: c.kind.state(),
		Expires: now + int64(c.ttl()), Raw: c.result,
		// Where there is nobody else to ask, that it ran outlasts its answer.
		Sole: c.route.Ledger == config.LedgerNone || !known,
	}, now)
}

// settled tells the cache that the ledger has the last word on the call's outcome now.
func (p *Plugin) settled(c *call, now int64) {
	if c.cached {
		p.table.Settle(&c.hash, &c.token, now)
	}
}
