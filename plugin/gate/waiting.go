package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
)

// Duplicates that wait.

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
