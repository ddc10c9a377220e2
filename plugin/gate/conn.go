package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
)

// Connections to managers. Each is a gRPC stream that this VM has to one shard, and carries any number of calls. A shard
// has two: one for small messages, and one for large ones, so that a large message never delays a small one.

const (
	// maxUnderWay bounds the calls on a connection that have no reply yet, and maxUnsent the bytes of their messages: the
	// host buffers what the manager does not read.
	maxUnderWay = 4096
	maxUnsent   = 16 << 20
	// maxSmallMessage bounds the messages on a connection for small ones.
	maxSmallMessage = 64 << 10
	// maxSends bounds how often a call is sent again after the connection has ended with it. A call may be the reason.
	maxSends = 4
	// firstBackoff and lastBackoff bound the time between two tries to connect; it doubles. The first try is immediate.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	// pingBusy is the silence after which the gate asks whether a manager that has calls still answers, and pingIdle that
	// of one that has none.
	pingBusy = time.Second
	pingIdle = 15 * time.Second
)

// A call's number is its position in conn.calls, and in the higher bits how many were sent before it on the connection,
// from 1. So a late reply finds no other call.
const (
	positionBits = 12
	pingNumber   = 1 // of the call that asks for a sign of life
)

// ledger sends calls to the managers. It stores the calls that it could not deliver; see shard.go.
//
// Calls are in slices and not in a map: TinyGo's garbage collector does not treat a pointer that was looked up in a map as
// a root. If the pointer is then deleted from the map, its target can be freed while it is in use. Pointers from a slice
// are safe.
type ledger struct {
	p             *Plugin
	shards        []shard
	conns         []conn     // two for each shard: for small messages, for large ones
	ready         []*call    // to be sent or settled
	blocked       bool       // the ready calls have to wait for a connection
	wanted        bool       // some connection must be opened
	toClose       []uint32   // connections that must be closed
	heldBytes     int        // bytes of the messages of all calls, and of answers that are being copied
	droppable     int        // calls stored for retries that dropAnswer would make smaller
	queued        int        // calls stored for retries, of all shards
	underWay      int        // calls on connections
	authorization string     // empty: none
	losses        limitedLog // lines of the log about lost outcomes, of all shards
	alarms        limitedLog // and about lost reservations
	checkTimeouts bool       // some calls may have waited too long
	checkDue      bool       // some shard must look for retries that are due
	buckets       [bucketCount]*call
	frame         []byte // memory for the next message
	metadata      [][2]string
}

func (l *ledger) init(p *Plugin, token string) {
	l.p = p
	l.addShards(&p.config.Manager)
	if token != "" {
		l.authorization = "Bearer " + token
	}
}

func (l *ledger) idle() bool { return len(l.ready) == 0 && l.queued == 0 && l.underWay == 0 }

// hasWork reports whether the next callback has work.
func (l *ledger) hasWork() bool {
	return len(l.ready) > 0 && !l.blocked || l.checkDue || l.wanted || len(l.toClose) > 0
}

// add sends a call. If the connection has no room, or has to be opened, the call waits for a callback of the plugin
// context.
func (l *ledger) add(c *call) {
	l.heldBytes += len(c.message)
	if c.kind.isOutcome() && !c.indexed {
		l.index(c)
	}
	now := l.p.host.Now()
	l.startCall(c, now)
	if n := l.connOf(c); n.id == 0 {
		if n.retryAt <= now {
			n.wanted, l.wanted = true, true
		}
	} else if len(l.ready) == 0 {
		// A connection belongs to the plugin context.
		back := l.p.current
		l.p.makeCurrent(0)
		sent := l.sendCall(c, now)
		l.p.makeCurrent(back)
		if sent {
			return
		}
	}
	l.ready, l.blocked = append(l.ready, c), false
	l.p.requestCallback()
}

// startCall starts the time that a call has.
func (l *ledger) startCall(c *call, now int64) {
	if c.attempts > 0 {
		l.p.metrics.count(l.p.metrics.retries)
	}
	c.attempts++
	c.sends, c.failure, c.due, c.sent = 0, nil, 0, now
	c.until = now + int64(l.p.config.Manager.Timeout+c.wait)
	if c.deadline == 0 {
		c.deadline = now + int64(c.lasts())
	}
}

// cancel takes back a call that was never sent. False: the ledger may know of it.
func (l *ledger) cancel(c *call) bool {
	for i, r := range l.ready {
		if r == c && !c.uncertain {
			l.ready = append(l.ready[:i], l.ready[i+1:]...)
			l.heldBytes -= len(c.message)
			return true
		}
	}
	return false
}

// sendReady sends the calls that are ready, and settles those that failed. It runs in the plugin context. Calls stay ready
// when the callback is at its limit, or when they have to wait for a connection. False: there was nothing to do.
func (l *ledger) sendReady() (busy bool) {
	if l.checkTimeouts {
		l.checkTimeouts, l.blocked = false, false
		l.p.makeCurrent(0) // a reply may have been sent before
		l.checkConns()
	}
	var due []*call
	if l.queued > 0 {
		due = l.dueRetries()
	}
	ready := l.ready
	if len(due) == 0 && (len(ready) == 0 || l.blocked) {
		return false
	}
	now := l.p.host.Now()
	if len(due) > 0 {
		for _, c := range due {
			l.startCall(c, now)
		}
		ready = append(due, ready...)
	}
	l.ready, l.blocked = nil, false
	waits, back := false, 0
	for i, c := range ready {
		ready[i] = nil
		if l.p.atLimit() {
			ready[back] = c
			back++
			continue
		}
		// If the call before was settled, its stream is the current one.
		l.p.makeCurrent(0)
		switch {
		case c.failure == nil && l.sendCall(c, now):
			busy = true
		case c.failure != nil: // sendCall may have found that it fails
			busy = true
			l.settle(c, c.failure)
		default:
			waits = true
			ready[back] = c
			back++
		}
	}
	// A call that was settled may have made others ready.
	l.blocked = waits && !l.p.atLimit() && len(l.ready) == 0
	l.ready = append(ready[:back], l.ready...)
	return busy
}

// conn is a connection. The zero value is one that is not open.
type conn struct {
	shard int
	large bool

	id          uint32  // the host's; 0: not open
	calls       []*call // those without a reply; nil: free
	free        []uint16
	count       uint64 // of the calls that were sent
	waiting     int    // calls without a reply
	bytes       int    // of their messages
	answered    bool   // a message came
	wanted      bool   // calls wait until it is open
	lastMessage int64  // when the last message came, or when it was opened
	pingSent    int64  // when the ping that has no reply was sent; 0: none was

	failures int   // tries in a row that brought no message
	since    int64 // when the first of them failed
	failed   int64 // when the last of them failed
	retryAt  int64 // no earlier does the gate try again
	why      string
}

// connOf returns the connection that a call goes by.
func (l *ledger) connOf(c *call) *conn {
	at := 2 * c.shard
	if c.large || len(c.message) > maxSmallMessage {
		at++
	}
	return &l.conns[at]
}

// sendCall sends a call, and opens the connection if necessary. It runs while the plugin context is active. False: the call
// has to wait, or has failed.
func (l *ledger) sendCall(c *call, now int64) bool {
	n := l.connOf(c)
	if n.id == 0 {
		l.requestConnection(n, c, now)
		return false
	}
	if n.waiting >= maxUnderWay || n.waiting > 0 && n.bytes+len(c.message) > maxUnsent {
		return false
	}
	body := l.message(c, now)
	at := n.freePosition()
	c.number = (n.count+1)<<positionBits | uint64(at)
	l.frame = api.AppendStreamCall(l.frame[:0], c.number, ops[c.kind], c.trace, body)
	sent := l.p.host.SendStream(n.id, l.frame)
	c.size = len(body)
	if cap(l.frame) > 2*maxSmallMessage {
		l.frame = nil
	}
	if !sent {
		n.free = append(n.free, at)
		l.toClose = append(l.toClose, n.id) // its end has perhaps not come yet
		l.connectionEnded(n, "the proxy refused to send a message", true, now)
		return false
	}
	c.sent = now
	c.sends++
	n.calls[at] = c
	n.count++
	n.waiting++
	n.bytes += c.size
	l.underWay++
	return true
}

// freePosition takes a free position in calls.
func (n *conn) freePosition() uint16 {
	last := len(n.free) - 1
	if last < 0 {
		n.calls = append(n.calls, nil)
		return uint16(len(n.calls) - 1)
	}
	at := n.free[last]
	n.free = n.free[:last]
	return at
}

// connect opens a connection that calls wait for, or closes those that were given up. It must be the first thing that a queue callback
// or a tick does. Envoy calls back into the VM while it refuses a stream; if anything that it does after the callback, such as a reply or
// another refusal, was asked for before, its worker hangs. A stream that is opened in the callback about the end of another gets that
// one's connection, and ends, too. One that is reset in the callback about its message makes Envoy 1.36 abort.
func (l *ledger) connect() {
	if len(l.toClose) > 0 {
		for _, id := range l.toClose {
			l.p.host.CloseStream(id)
		}
		l.toClose = l.toClose[:0]
		return
	}
	if !l.wanted {
		return
	}
	l.wanted, l.blocked = false, false
	opened := false
	for i := range l.conns {
		switch n := &l.conns[i]; {
		case !n.wanted:
		case opened:
			l.wanted = true // the next callback opens it
		default:
			n.wanted, opened = false, true
			l.open(n)
		}
	}
}

func (l *ledger) open(n *conn) {
	if n.id != 0 {
		return
	}
	now := l.p.host.Now()
	id, status := l.p.host.OpenStream(l.shards[n.shard].name, l.p.config.Manager.Authority, l.metadataOf(n, now))
	clear(l.metadata)
	if status != CallSent {
		l.connectFailed(n, openRefusals[status], now)
		return
	}
	n.id, n.answered, n.lastMessage, n.pingSent = id, false, now, 0
	l.p.metrics.count(l.p.metrics.connects)
}

// metadataOf returns what is said once for all calls of a connection. It is valid until the next call of metadataOf.
func (l *ledger) metadataOf(n *conn, now int64) [][2]string {
	s := &l.shards[n.shard]
	h := l.metadata[:0]
	if l.authorization != "" {
		h = append(h, [2]string{"authorization", l.authorization})
	}
	if l.p.config.Manager.Named {
		h = append(h, [2]string{api.HeaderShard, s.name})
	}
	if mark := l.markFor(s, now); mark != "" {
		h = append(h, [2]string{api.HeaderLedger, mark})
	}
	if n.large {
		h = append(h, [2]string{api.HeaderStream, api.StreamLarge})
	}
	l.metadata = h
	return h
}

// close has all connections closed. The plugin has no calls any more. It reports whether none is left.
func (l *ledger) close() bool {
	for i := range l.conns {
		if n := &l.conns[i]; n.id != 0 {
			l.toClose = append(l.toClose, n.id)
			n.id = 0
		}
	}
	return len(l.toClose) == 0
}

// onMessage deals with a message of a manager.
func (l *ledger) onMessage(id uint32, size int) {
	n := l.conn(id)
	if n == nil {
		return // it was closed meanwhile
	}
	p := l.p
	now := p.host.Now()
	var m api.StreamReply
	if size > api.MaxStreamMessage || m.View(p.host.StreamMessage(size)) != nil {
		l.toClose = append(l.toClose, id)
		l.connectionEnded(n, "the manager's message cannot be read", true, now)
		return
	}
	n.answered, n.failures, n.lastMessage, n.pingSent = true, 0, now, 0
	l.blocked = false
	switch s := &l.shards[n.shard]; {
	case m.Mark == "":
	case m.Status == 421: // the manager is another one than the call means, and says nothing about that one
		l.rememberOtherLedger(s, m.Mark, m.RetryAfterSeconds, now)
	case !s.mark.advance(m.Mark, now):
		l.rememberMark(s, m.Mark, now)
	}
	c := n.removeCall(m.Number)
	if c == nil {
		return // a ping, or the gate has given the call up
	}
	l.underWay--
	p.metrics.record(p.metrics.call, (now-c.sent)/1e3)
	r := l.readReply(c, &m)
	if r.kind == replyLarge {
		c.large, c.uncertain = true, c.uncertain || r.uncertain
		l.ready = append(l.ready, c)
		return
	}
	r.at = now
	l.settle(c, &r)
}

// conn returns the connection with this id; nil: it was closed.
func (l *ledger) conn(id uint32) *conn {
	for i := range l.conns {
		if n := &l.conns[i]; n.id == id && id != 0 {
			return n
		}
	}
	return nil
}

// removeCall removes the call of that number; nil: there is none.
func (n *conn) removeCall(number uint64) *call {
	at := number & (1<<positionBits - 1)
	if at >= uint64(len(n.calls)) || n.calls[at] == nil || n.calls[at].number != number {
		return nil
	}
	c := n.calls[at]
	n.calls[at] = nil
	n.free = append(n.free, uint16(at))
	n.waiting--
	n.bytes -= c.size
	return c
}

// unacknowledgedCall returns the call that carries an entry's outcome to the ledger; nil: there is none. The ledger may not
// know that outcome yet, so its own answer about the entry may be out of date.
func (l *ledger) unacknowledgedCall(h *cache.Hash) *call {
	for c := l.buckets[h[len(h)-1]]; c != nil; c = c.next {
		if c.hash == *h {
			return c
		}
	}
	return nil
}

// index makes unacknowledgedCall find the call.
func (l *ledger) index(c *call) {
	first := &l.buckets[c.hash[len(c.hash)-1]]
	c.next, *first = *first, c
	c.indexed = true
}

// unindex undoes index: the ledger has the outcome, or will never have it.
func (l *ledger) unindex(c *call) {
	if !c.indexed {
		return
	}
	c.indexed = false
	for at := &l.buckets[c.hash[len(c.hash)-1]]; *at != nil; at = &(*at).next {
		if *at == c {
			*at, c.next = c.next, nil
			return
		}
	}
}

// makeRoom reports whether the VM may hold so many more bytes. To make room, it removes the bodies of the stored outcomes,
// the oldest of each shard first. The status is enough to never run the request again.
func (l *ledger) makeRoom(bytes int) bool {
	for at := 0; l.droppable > 0 && l.heldBytes+bytes > maxHeldBytes; at++ {
		for i := range l.shards {
			if retries := l.shards[i].retries; at < len(retries) && retries[at].canDropAnswer() {
				c := retries[at]
				l.droppable--
				l.heldBytes -= len(c.message)
				c.dropAnswer(l.p)
				l.heldBytes += len(c.message)
				l.p.metrics.count(l.p.metrics.oversize)
			}
		}
	}
	return l.heldBytes+bytes <= maxHeldBytes
}
