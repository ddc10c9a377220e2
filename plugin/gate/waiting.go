package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
)

// Streams that wait in lists: duplicates and look-ups for the end of an entry, and replies for the end of their requests.

// list is a list of streams in the order in which they joined. A stream is in one list at most.
type list struct {
	first, last *Stream
	size        int
}

// links is a stream's position in a list.
type links struct {
	list           *list // nil: in none
	previous, next *Stream
}

// add puts a stream that is in no list at the end.
func (l *list) add(s *Stream) {
	s.links = links{list: l, previous: l.last}
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
	l.size++
}

// remove takes a stream out if it is in the list.
func (l *list) remove(s *Stream) {
	if s.list != l {
		return
	}
	if s.previous == nil {
		l.first = s.next
	} else {
		s.previous.next = s.next
	}
	if s.next == nil {
		l.last = s.previous
	} else {
		s.next.previous = s.previous
	}
	s.links = links{}
	l.size--
}

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

// Replies wait for the end of their requests. After a reply that goes out before the request's end, the host closes an
// HTTP/1 connection and resets an HTTP/2 stream. Many clients then lose the reply: over HTTP/1 those that send a large body
// before they read, over HTTP/2 some in any case.

const (
	// endPatience is how long such a reply waits, give or take a tick.
	endPatience = 100 * time.Millisecond
	// shownPatience is how long a reply waits after each piece of a body that the host shows. The host bounds the time of
	// the whole request.
	shownPatience = time.Second
	// endPeriod is the time between two ticks while a reply waits.
	endPeriod = 2 * time.Millisecond
	// maxUnsentBytes bounds the bodies of all replies that wait in one VM. Beyond it a reply does not wait.
	maxUnsentBytes = 1 << 20
)

// localReply is a reply of the gate's own.
type localReply struct {
	status  int
	details string
	headers [][2]string
	body    []byte
}

// delayedReplies are the replies of a VM that wait.
type delayedReplies struct {
	unchecked   list // streams that the next queue callback looks at
	polled      list // streams whose requests had no end by then: each tick looks at them
	withBody    list // those of them whose end the host will show
	bytes       int  // of the replies' bodies
	checkPolled bool // the streams in polled must be looked at
	fastTick    bool // the tick comes every endPeriod
}

// delayReply holds a reply until the request ends or endPatience is over.
func (s *Stream) delayReply(r localReply) {
	p, e := s.plugin, &s.requestEnd
	n := &p.delayed
	s.dropBody()
	s.phase = phaseDelayed
	e.reply = &r
	n.bytes += len(r.body)
	if e.bodyShown || p.bodies.seen && !s.isShort() {
		e.since = p.host.Now()
		n.withBody.add(s)
		return
	}
	if p.inPluginContext {
		e.since = p.host.Now()
		s.requestComplete() // the first look
		n.polled.add(s)
		return
	}
	n.unchecked.add(s)
	p.requestCallback()
}

// dropReply ends the wait and returns the reply.
func (s *Stream) dropReply() *localReply {
	n, r := &s.plugin.delayed, s.requestEnd.reply
	s.list.remove(s)
	n.bytes -= len(r.body)
	s.requestEnd.reply = nil
	return r
}

// sendReply ends the wait and sends the reply. The current stream is s.
func (s *Stream) sendReply() {
	s.send(*s.dropReply())
}

// dropLateBody drops the body that comes while the reply waits, and replies at its end.
func (s *Stream) dropLateBody() Action {
	e, n := &s.requestEnd, &s.plugin.delayed
	if e.ended {
		s.sendReply()
		return Pause
	}
	e.since = s.plugin.host.Now()
	if s.list != &n.withBody {
		s.list.remove(s)
		n.withBody.add(s)
	}
	return Drop
}

// sendReplies sends the replies that need not wait any more. It runs in the plugin context. Once the callback is at its limit, the
// next one continues.
func (p *Plugin) sendReplies() {
	n := &p.delayed
	if n.unchecked.size == 0 && !n.checkPolled {
		return
	}
	now := p.host.Now()
	for s := n.unchecked.first; s != nil && !p.atLimit(); s = n.unchecked.first {
		s.requestEnd.since = now
		switch {
		case !p.makeCurrent(s.id):
			s.cancel()
		case s.requestComplete():
			s.sendReply()
		default:
			n.unchecked.remove(s)
			n.polled.add(s) // each tick looks whether the reply can go out
		}
	}
	if n.checkPolled {
		n.checkPolled = !p.sendOverdue(&n.polled, now) || !p.sendOverdue(&n.withBody, now)
	}
}

// sendOverdue sends the replies of a list whose requests have come in or whose patience is over. False: the callback is at its limit.
func (p *Plugin) sendOverdue(l *list, now int64) bool {
	for s, next := l.first, (*Stream)(nil); s != nil; s = next {
		if p.atLimit() {
			return false
		}
		next = s.next
		if !p.makeCurrent(s.id) {
			s.cancel()
		} else if s.hasWaitedEnough(now) {
			s.sendReply()
		}
	}
	return true
}

// hasWaitedEnough reports whether to send the current stream's reply now.
func (s *Stream) hasWaitedEnough(now int64) bool {
	e := &s.requestEnd
	waited := now - e.since
	switch {
	case waited < 0:
		return true
	case s.list == &s.plugin.delayed.withBody:
		return waited >= int64(shownPatience)
	}
	return waited >= int64(endPatience) || s.requestComplete()
}

// hasWork reports whether the next queue callback has work.
func (n *delayedReplies) hasWork() bool {
	return n.unchecked.size > 0 || n.checkPolled || n.fastTick != n.needsFastTick()
}

// needsFastTick reports whether the tick must come every endPeriod.
func (n *delayedReplies) needsFastTick() bool { return n.polled.size > 0 }

// setTickPeriod changes the tick's period if replies begin or cease to wait for ticks. Only queue callbacks call it: a host
// may not expect a tick to change its own period.
func (p *Plugin) setTickPeriod() {
	n := &p.delayed
	if n.fastTick == n.needsFastTick() {
		return
	}
	n.fastTick = n.needsFastTick()
	period := tickPeriod
	if n.fastTick {
		period = endPeriod
	}
	if !p.host.SetTick(period) {
		p.host.Log(LevelError, "oncegate: the host refused to change the tick period")
	}
}
