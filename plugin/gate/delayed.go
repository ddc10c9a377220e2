package gate

import "time"

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

// endLooks is how many ticks, at least, must find that an HTTP/2 request has not grown before a reply takes it as
// complete, if the host does not show its body. Many clients send the end by itself, after the last byte. Ticks count,
// not time: before a tick that comes late, the host reads what came meanwhile.
const endLooks = 5

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
	n, now := &p.delayed, p.host.Now()
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

// awaitsEnd reports whether a reply to the current stream must wait. In the plugin context the host has all bytes that came
// together with the headers, so a reply to a short request waits only if some are missing.
func (s *Stream) awaitsEnd() bool {
	p, e := s.plugin, &s.requestEnd
	if s.headers != nil {
		e.readHeaders(s.headers)
	}
	switch {
	case e.ended || !e.headersRead:
		return false
	case s.isShort():
		return !p.inPluginContext || !s.allReceived()
	case e.bodyShown || p.bodies.seen:
		return true
	}
	// Outside the plugin context, the first body callback may follow. Inside, nothing more will be known of the end of a
	// chunked HTTP/1 body, nor whether that of a large body is near.
	return !p.inPluginContext || !s.http1() && e.length <= endBytes
}

// allReceived reports whether the host has the whole declared body.
func (s *Stream) allReceived() bool {
	return s.plugin.totalSize() >= s.requestEnd.headers+uint64(s.requestEnd.length)
}

// requestComplete looks whether the request of the current stream has come in, as far as the gate can know without body
// callbacks. In HTTP/1 the host reads the end together with the last byte of a declared body. In HTTP/2 the end may follow
// later, and nothing but some ticks without new bytes suggests that it has come.
func (s *Stream) requestComplete() bool {
	e := &s.requestEnd
	if s.http1() {
		return e.length < 0 || s.allReceived()
	}
	enough := e.headers + uint64(e.length)
	if e.length < 0 {
		enough = e.headers + 1
	}
	e.looks++
	if e.length < 0 || e.size < enough {
		if size := s.plugin.totalSize(); size != e.size {
			e.size, e.grownAt = size, e.looks
		}
	}
	// A client that was slow to send its body is slow to send the end as well.
	return e.size >= enough && e.looks-e.grownAt >= max(endLooks, 2*(e.grownAt-1))
}
