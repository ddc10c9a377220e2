package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
)

// waitForEntry makes the stream wait until another attempt's pending entry ends. If it may
// not wait, it gets 409. The current stream is s.
func (s *Stream) waitForEntry(expires, now int64) verdict {
	p := s.plugin
	if !s.mayWait(now) {
		return s.conflict(expires - now)
	}
	switch p.table.AddWaiter(&s.hash, p.queue, now) {
	case cache.Ended:
		// The entry ended between the look and this call, so nothing will wake this stream.
		return verdictAgain
	default:
		// If the entry has no room for this VM's queue, the tick looks instead.
	}
	p.link(s)
	return verdictPause
}

// mayWait reports whether the stream may wait, or wait longer.
func (s *Stream) mayWait(now int64) bool {
	return s.route.WaitForPending && !s.ownerDead && now < s.deadline(now) && s.roomLeft()
}

// roomLeft reports whether there is room for another waiter. The waiters of one key never
// take more room than they leave free, so that a storm on one key leaves room for others.
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

// deadline is when a duplicate stops waiting. It never waits longer than
// PendingWait, even if the clock is set back.
func (s *Stream) deadline(now int64) int64 {
	if now < s.firstDecided {
		s.firstDecided = now
	}
	return s.firstDecided + int64(s.route.PendingWait)
}

// conflict answers 409. remaining is the longest time for which the other attempt's
// reservation can still hold, nanoseconds.
func (s *Stream) conflict(remaining int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.conflict)
	if !s.recordWait() {
		// The duplicate was refused without waiting: the original may be done soon.
		remaining = 0
	}
	s.replyProblem(pendingProblem(remaining))
	return verdictReplied
}

// recordWait reports whether the duplicate waited, and records for how long.
func (s *Stream) recordWait() bool {
	if !s.hasWaited {
		return false
	}
	p := s.plugin
	p.metrics.sample(p.metrics.wait, (p.host.Now()-s.firstDecided)/1e6)
	return true
}

func (p *Plugin) link(s *Stream) {
	s.own()
	if p.uploads > maxUploadBytes/2 {
		// Requests that run now need the room. If this one runs later, the router has its body.
		s.dropBody()
	}
	s.phase = phaseWaiting
	s.hasWaited = true
	p.waiting.add(s)
	p.metrics.add(p.metrics.waiters, 1)
}

func (p *Plugin) unlink(s *Stream) {
	p.waiting.remove(s)
	p.metrics.add(p.metrics.waiters, -1)
}

// wakeWaiters makes waiters decide again: those whose time is over, and those that were woken.
// False: there were none. Once the callback is spent, the next one continues.
func (p *Plugin) wakeWaiters() (busy bool) {
	if p.waiting.size == 0 {
		p.overdue, p.wokenAll, p.woken = false, false, p.woken[:0]
	}
	if !p.overdue && !p.wokenAll && len(p.woken) == 0 {
		return false
	}
	now := p.host.Now()
	if p.overdue {
		// A wake-up may have got lost, so they look one last time.
		p.overdue = !p.decideAgain(func(s *Stream) bool { return now >= s.deadline(now) })
	}
	if p.wokenAll && !p.spent() {
		p.woken = p.woken[:0]
		p.wokenAll = !p.decideAgain(func(s *Stream) bool { return s.ready(now) })
	}
	for len(p.woken) > 0 && !p.spent() {
		hash := p.woken[len(p.woken)-1]
		p.woken = p.woken[:len(p.woken)-1]
		if !p.decideAgain(func(s *Stream) bool { return s.hash == hash && s.ready(now) }) {
			p.woken = append(p.woken, hash)
		}
	}
	return true
}

// ready reports whether a woken waiter may look now.
func (s *Stream) ready(now int64) bool { return now >= s.notBefore || s.failure != nil }

// decideAgain makes the waiters that picked selects decide again. False: the callback is spent
// and some of them are left. A stream that must wait longer joins the end of the list, so
// the loop counts the streams that wait now and looks at each of them once.
func (p *Plugin) decideAgain(picked func(*Stream) bool) (all bool) {
	s := p.waiting.first
	for left := p.waiting.size; left > 0 && s != nil; left-- {
		next := s.next
		if picked(s) {
			if p.spent() {
				return false
			}
			p.unlink(s)
			switch {
			case !p.choose(s.id):
				s.phase = phaseDone
			case s.failure == nil:
				s.act(s.decide())
			case s.failure.Code == api.CodeOutcomeUnknown:
				s.act(s.outcomeUnknown())
			default:
				s.act(s.unprotected(s.failure))
			}
		}
		s = next
	}
	return true
}

// failWaiters answers the local waiters of an entry with a problem. The attempt that they wait
// for failed, and each of them would fail in turn for the same reason.
func (p *Plugin) failWaiters(hash *cache.Hash, problem *api.Problem) {
	for s := p.waiting.first; s != nil; s = s.next {
		if s.hash == *hash {
			s.failure = problem
		}
	}
	p.woken = append(p.woken, *hash)
}
