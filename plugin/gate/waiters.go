package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
)

// wait makes the stream wait for the end of another attempt's pending entry, or
// answers 409. The current stream is s.
func (s *Stream) wait(expires, now int64) verdict {
	p := s.plugin
	if !s.mayWait(now) {
		return s.conflict(expires - now)
	}
	switch p.table.AddWaiter(&s.hash, p.queue, now) {
	case cache.Ended:
		// It ended between the look and this call; nobody will wake us for it.
		return verdictAgain
	default:
		// Where the entry could not note us, the tick finds out.
	}
	p.link(s)
	return verdictPause
}

// mayWait tells whether the stream may (go on to) wait.
func (s *Stream) mayWait(now int64) bool {
	return s.route.WaitForPending && !s.orphan && now < s.deadline(now) && s.placeLeft()
}

// placeLeft tells whether there is a place among the waiters. Those of one key never take
// more than are free, so that a storm on one leaves places for others.
func (s *Stream) placeLeft() bool {
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

// deadline is when a duplicate stops waiting. A clock that was set back does
// not make it wait longer than its time.
func (s *Stream) deadline(now int64) int64 {
	if now < s.arrived {
		s.arrived = now
	}
	return s.arrived + int64(s.route.PendingWait)
}

// conflict answers 409. remaining is how long the other attempt's reservation
// still holds, at most.
func (s *Stream) conflict(remaining int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.conflict)
	if !s.waited() {
		// Refused at once: the original may be done in a moment.
		remaining = 0
	}
	s.replyProblem(pendingProblem(remaining))
	return verdictReplied
}

// waited records how long the duplicate waited, if it did.
func (s *Stream) waited() bool {
	if !s.hasWaited {
		return false
	}
	p := s.plugin
	p.metrics.sample(p.metrics.wait, (p.host.Now()-s.arrived)/1e6)
	return true
}

func (p *Plugin) link(s *Stream) {
	s.own()
	if p.uploads > maxUploadBytes/2 {
		// Those that run first need the room; should this one run after all, the router has its body.
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

// wakeWaiters lets waiters decide anew: those whose time is over, and those that were woken.
// false: there were none. What the running callback has no room for stays for the next one.
func (p *Plugin) wakeWaiters() (busy bool) {
	if p.waiting.size == 0 {
		p.overdue, p.wokenAll, p.woken = false, false, p.woken[:0]
	}
	if !p.overdue && !p.wokenAll && len(p.woken) == 0 {
		return false
	}
	now := p.host.Now()
	if p.overdue {
		// One last look, for a wake-up that got lost.
		p.overdue = !p.lookAgain(func(s *Stream) bool { return now >= s.deadline(now) })
	}
	if p.wokenAll && !p.spent() {
		p.woken = p.woken[:0]
		p.wokenAll = !p.lookAgain(func(s *Stream) bool { return s.ready(now) })
	}
	for len(p.woken) > 0 && !p.spent() {
		hash := p.woken[len(p.woken)-1]
		p.woken = p.woken[:len(p.woken)-1]
		if !p.lookAgain(func(s *Stream) bool { return s.hash == hash && s.ready(now) }) {
			p.woken = append(p.woken, hash)
		}
	}
	return true
}

// ready tells whether a waiter that was woken may look.
func (s *Stream) ready(now int64) bool { return now >= s.patient || s.failure != nil }

// lookAgain lets the waiters that chosen picks decide anew. false: some of them are left,
// because the callback is spent. Those that have to go on waiting join the end of the
// list, so it looks at each stream that waits now once.
func (p *Plugin) lookAgain(chosen func(*Stream) bool) (all bool) {
	s := p.waiting.first
	for left := p.waiting.size; left > 0 && s != nil; left-- {
		next := s.next
		if chosen(s) {
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

// failWaiters has the local waiters of an entry told of a problem: what made the one that
// they wait for fail would make each of them fail in turn.
func (p *Plugin) failWaiters(hash *cache.Hash, problem *api.Problem) {
	for s := p.waiting.first; s != nil; s = s.next {
		if s.hash == *hash {
			s.failure = problem
		}
	}
	p.woken = append(p.woken, *hash)
}
