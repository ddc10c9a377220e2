package gate

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
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

// conn returns the connection with this id; nil: it was closed.
func (l *ledger) conn(id uint32) *conn {
	for i := range l.conns {
		if n := &l.conns[i]; n.id == id && id != 0 {
			return n
		}
	}
	return nil
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

// requestConnection deals with a call that has no connection. It has one opened, unless it is too early for another try,
// because the manager cannot be reached now. Then a reserve and a look-up wait for the manager. If it has been away for so
// long that they would hardly live to see it again, they wait for one try only, so that no request fails once the manager
// is back; requests that may be forwarded without protection do not wait even for that. Other calls fail at once, because
// the gate repeats them anyway: no client waits, and the cache answers duplicates meanwhile.
func (l *ledger) requestConnection(n *conn, c *call, now int64) {
	if early := n.retryAt - now; early <= 0 || early > int64(lastBackoff) {
		n.wanted, l.wanted = true, true
		return
	}
	waits := c.kind == callReserve || c.kind == callLookUp
	long := n.failures > 0 && now-n.since >= int64(l.p.config.Manager.Timeout)
	if !waits || long && (n.failed > c.sent || c.route.FailureMode == config.FailOpen) {
		c.fail(n.why, now)
	}
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

// connectFailed records a try that brought no message.
func (l *ledger) connectFailed(n *conn, why string, now int64) {
	if n.failures == 0 {
		n.since = now
	}
	backoff := lastBackoff
	if n.failures < 5 {
		backoff = firstBackoff << n.failures
	}
	n.failures++
	n.failed, n.retryAt, n.why = now, now+int64(backoff), why
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
	switch {
	case m.Mark == "":
	case m.Status == 421: // the manager is another one than the call means, and says nothing about that one
		l.rememberOtherLedger(&l.shards[n.shard], m.Mark, m.RetryAfterSeconds, now)
	default:
		l.rememberMark(&l.shards[n.shard], m.Mark, now)
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

// onClose deals with the end of a connection, which the manager, the host or somebody between them caused.
func (l *ledger) onClose(id uint32, status int) {
	l.p.host.CloseStream(id) // the host keeps what belongs to the stream until then
	l.toClose = slices.DeleteFunc(l.toClose, func(d uint32) bool { return d == id })
	n := l.conn(id)
	if n == nil {
		return
	}
	why, again := closeReason(status)
	if status == grpcUnavailable && !n.answered {
		// Such is the end when nobody accepts the connection. The calls are not the reason.
		for _, c := range n.calls {
			if c != nil {
				c.sends--
			}
		}
	}
	l.connectionEnded(n, why, again, l.p.host.Now())
}

// closeReason says what a connection's status means for its calls, and whether it makes sense to send them again.
func closeReason(status int) (why string, again bool) {
	switch status {
	case grpcUnauthenticated:
		return "the manager does not accept the gate's credentials", false
	case grpcPermissionDenied:
		return "the manager does not allow the gate's calls", false
	case grpcUnimplemented:
		return "the server there is not a manager, or does not get the calls by HTTP/2", false
	}
	return "the connection ended with gRPC status " + strconv.Itoa(status), true
}

// connectionEnded deals with a connection that is over. Its calls are sent again, by another connection, or fail. They may
// have been carried out.
func (l *ledger) connectionEnded(n *conn, why string, again bool, now int64) {
	if !n.answered {
		l.connectFailed(n, why, now)
	}
	calls := slices.DeleteFunc(n.calls, func(c *call) bool { return c == nil })
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.number, b.number) })
	l.underWay -= n.waiting
	*n = conn{shard: n.shard, large: n.large, failures: n.failures, since: n.since, failed: n.failed, retryAt: n.retryAt, why: why}
	for _, c := range calls {
		if c.kind == callRenew && c.renews == nil {
			continue // its reservation has ended, and could be made again after its release
		}
		c.uncertain = true
		if !again || c.sends >= maxSends {
			c.fail(why, now)
		}
		l.ready = append(l.ready, c)
	}
	l.blocked = false
	l.p.requestCallback()
}

// checkConns gives up the calls whose time is over, and connections to managers that show no sign of life.
func (l *ledger) checkConns() {
	now := l.p.host.Now()
	for i := range l.conns {
		if n := &l.conns[i]; n.id != 0 {
			l.checkConn(n, now)
		}
	}
	for _, c := range l.ready {
		if c.failure == nil && now > c.until {
			why := "too many calls are under way"
			if n := l.connOf(c); n.id == 0 && n.why != "" {
				why = n.why
			}
			c.fail("no connection: "+why, now)
		}
	}
}

func (l *ledger) checkConn(n *conn, now int64) {
	for _, c := range n.calls {
		if c == nil || now <= c.until {
			continue
		}
		n.removeCall(c.number)
		l.underWay--
		c.uncertain = true
		c.fail("timeout", now)
		l.ready = append(l.ready, c)
	}
	timeout := int64(l.p.config.Manager.Timeout)
	silence := int64(pingIdle)
	if n.waiting > 0 {
		silence = int64(pingBusy)
	}
	switch {
	case n.pingSent != 0 && now-n.pingSent > timeout:
		l.toClose = append(l.toClose, n.id)
		n.answered = false // a manager that stands still is not tried again at once
		l.connectionEnded(n, "the manager does not answer", true, now)
	case n.pingSent == 0 && now-n.lastMessage > silence:
		l.frame = api.AppendStreamCall(l.frame[:0], pingNumber, api.OpPing, nil, nil)
		if l.p.host.SendStream(n.id, l.frame) {
			n.pingSent = now
		}
	}
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
