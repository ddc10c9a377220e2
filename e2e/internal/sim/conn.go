package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/gate"
)

// conn is a gRPC stream of a gate to a manager. Messages keep their order in each direction.
type conn struct {
	v           *vm
	id          uint32
	cluster     string
	target      *manager
	shard, mark string // of the metadata
	large       bool
	up, down    lane
	known       bool // the gate has not heard of its end
	broken      bool
	waiting     map[uint64]bool // the calls that the gate has no reply to
	// The manager's side.
	process  *process // nil: it has not arrived
	next     time.Duration
	admitted bool
	refusal  *answer  // to every call
	early    []func() // what came before it was admitted
	left     bool     // the manager sees that nobody waits any more
	held     []context.CancelFunc
}

// lane is one direction of a connection.
type lane struct {
	last   time.Duration // when the message that was sent last arrives
	closed bool          // nothing is sent any more
	dead   bool          // nothing arrives any more
}

// Statuses of gRPC.
const (
	statusInvalid      = 3
	statusPrecondition = 9
	statusUnavailable  = 14
	statuses           = 17
)

// OpenStream implements gate.Host.
func (v *vm) OpenStream(cluster, _ string, metadata [][2]string) (uint32, gate.CallStatus) {
	v.step()
	v.contextless("opens a connection")
	w := v.p.w
	m := w.manager(v.p.wired(cluster))
	if m == nil {
		w.logf(v.name, "knows no cluster %s", cluster)
		return 0, gate.CallNoCluster
	}
	if m.run == nil && w.chance(0.5) || w.adversary(Drop, 0.03) {
		w.logf(v.name, "connects to %s: refused at once", m.name)
		return 0, gate.CallRefused
	}
	v.lastConn++
	c := &conn{v: v, id: v.lastConn, cluster: strings.Clone(cluster), target: m, known: true, waiting: make(map[uint64]bool)}
	for _, f := range metadata {
		switch value := strings.Clone(f[1]); f[0] {
		case api.HeaderShard:
			c.shard = value
		case api.HeaderLedger:
			c.mark = value
		case api.HeaderStream:
			c.large = value == api.StreamLarge
		}
	}
	v.conns[c.id] = c
	w.logf(v.name, "connects to %s: connection %d, large %v", m.name, c.id, c.large)
	if w.adversary(Garble, 0.04) { // the way to the manager ends there
		c.up.closed, c.down.closed, c.broken = true, true, true
		status := w.anyStatus()
		w.after(w.transit(), func() { c.finish(status) })
		return c.id, gate.CallSent
	}
	if c.mark == "" {
		m.unmarked++
	}
	w.after(c.way(&c.up), func() {
		if c.mark == "" {
			m.unmarked--
		}
		if !c.up.dead {
			c.arrive()
		}
	})
	return c.id, gate.CallSent
}

// contextless checks that the running callback, or the gate's choice, is the plugin's.
func (v *vm) contextless(does string) {
	if v.current != nil {
		v.p.w.fail("%s %s in a stream's context: what comes would be lost with the stream", v.name, does)
	}
}

// anyStatus is a status with which a stream ends.
func (w *World) anyStatus() int {
	if w.chance(0.3) {
		return statusUnavailable
	}
	return w.rnd.IntN(statuses)
}

// transit returns how long a message takes. Those that are sent after it wait for it.
func (w *World) transit() time.Duration {
	d := w.between(50*time.Microsecond, 3*time.Millisecond)
	if w.adversary(Delay, 0.06) {
		d = w.between(0, time.Second)
		if w.chance(0.3) {
			d = w.between(0, 8*time.Second)
		}
	}
	return d
}

// way returns after what time a message arrives that is sent now.
func (c *conn) way(l *lane) time.Duration {
	now := c.v.p.w.now()
	l.last = max(now+c.v.p.w.transit(), l.last+time.Microsecond)
	return l.last - now
}

// send has something arrive at the other end.
func (c *conn) send(l *lane, do func()) {
	if l.closed {
		return
	}
	c.v.p.w.after(c.way(l), func() {
		if !l.dead {
			do()
		}
	})
}

// SendStream implements gate.Host.
func (v *vm) SendStream(id uint32, message []byte) bool {
	v.step()
	v.contextless("sends a message")
	w, c := v.p.w, v.conns[id]
	if c == nil {
		w.fail("%s sends a message on connection %d, which has ended", v.name, id)
		return false
	}
	message = slices.Clone(message)
	var call api.StreamCall
	if err := call.View(message); err != nil {
		w.fail("%s sends %s a message that cannot be read: %v", v.name, c.target.name, err)
		return false
	}
	if c.waiting[call.Number] {
		w.fail("%s makes two calls %d on connection %d", v.name, call.Number, id)
	}
	if w.adversary(Drop, 0.005) {
		c.sever(true, true, statusUnavailable)
		return false
	}
	if call.Op != api.OpPing {
		c.waiting[call.Number] = true
		w.logf(v.name, "connection %d: call %d, %s", id, call.Number, describe(call.Op.Path(), call.Message))
	}
	if w.adversary(Drop, 0.04) {
		c.breakOff()
	}
	if w.adversary(Garble, 0.01) {
		c.send(&c.up, func() { c.serve(c.rejects) })
		return true
	}
	c.send(&c.up, func() { c.serve(func() { c.call(&call) }) })
	if w.adversary(Duplicate, 0.04) { // the gate repeats what the manager is about to get
		w.logf(v.name, "connection %d ends, and the call continues", id)
		c.sever(false, true, statusUnavailable)
	}
	return true
}

// CloseStream implements gate.Host.
func (v *vm) CloseStream(id uint32) {
	v.step()
	v.contextless("closes a connection")
	c := v.conns[id]
	if c == nil {
		if v.closing != id {
			v.p.w.fail("%s closes connection %d, which has ended", v.name, id)
		}
		v.closing = 0
		return
	}
	v.p.w.logf(v.name, "closes connection %d", id)
	if v.p.w.chance(0.2) {
		v.p.w.after(v.p.w.between(0, time.Millisecond), func() { v.closed(id, statusUnavailable) })
	}
	c.forgotten()
}

// StreamMessage implements gate.Host.
func (v *vm) StreamMessage(size int) []byte { return clip(v.message, size) }

// forgotten is what follows when the gate has no part in the connection any more.
func (c *conn) forgotten() {
	c.known = false
	delete(c.v.conns, c.id)
	c.sever(true, true, never)
}

// never is no status: the gate does not hear of the end.
const never = -1

// breakOff breaks the connection in one direction or both, and the gate may hear of it.
func (c *conn) breakOff() {
	w := c.v.p.w
	status := never
	if w.chance(0.6) {
		status = statusUnavailable
		if w.chance(0.3) {
			status = w.anyStatus()
		}
	}
	up, down := true, true
	if status == never {
		switch w.rnd.IntN(3) {
		case 0:
			up = false
		case 1:
			down = false
		}
	}
	c.sever(up, down, status)
}

// sever breaks the connection. Of what is on its way a first part arrives, if anything. The gate hears of the status in any
// case, unless it is never.
func (c *conn) sever(up, down bool, status int) {
	w := c.v.p.w
	if c.known {
		w.cuts++
		w.logf(c.target.name, "connection %d of %s breaks: to the manager %v, to the gate %v, status %d", c.id, c.v.name, up, down, status)
	}
	c.broken = true
	part := func(l *lane) {
		l.closed = true
		if w.chance(0.5) {
			w.after(w.between(0, max(l.last-w.now(), 0)), func() { l.dead = true })
		}
	}
	if up && !c.up.closed {
		if w.chance(0.8) {
			w.after(c.way(&c.up), c.leave) // the manager sees that nobody waits any more
		}
		part(&c.up)
	}
	if down && !c.down.closed {
		part(&c.down)
	}
	switch {
	case status == never:
	case w.chance(0.5):
		w.after(c.way(&c.down), func() { c.finish(status) })
	default:
		w.after(w.between(10*time.Microsecond, 3*time.Millisecond), func() { c.finish(status) })
	}
}

// finish tells the gate that the connection has ended.
func (c *conn) finish(status int) {
	if !c.known {
		return
	}
	c.forgotten()
	c.v.closed(c.id, status)
}

func (v *vm) closed(id uint32, status int) {
	if v.alive() {
		v.p.w.logf(v.name, "connection %d: has ended with status %d", id, status)
		v.enter(nil, func() {
			v.closing = id
			v.plugin.OnStreamClose(id, status)
			if v.closing != 0 {
				v.p.w.fail("%s does not close connection %d in the callback about its end", v.name, id)
			}
		})
	}
}

// reply sends the gate the reply to a call.
func (c *conn) reply(number uint64, a *answer) {
	w := c.v.p.w
	if w.adversary(Drop, 0.03) {
		c.breakOff()
	}
	var r api.ReserveReply
	if !c.large && w.plan.SmallReplies && a.status < 300 && r.ParseRaw(a.body) == nil && len(r.Result.Body) > 0 {
		p := api.Problem{Status: 503, Code: api.CodeLargeAnswer, Title: "Large answer"}
		a = &answer{status: 503, headers: a.headers, body: p.AppendJSON(nil)}
	}
	after, _ := find(a.headers, "retry-after")
	seconds, _ := strconv.Atoi(after)
	mark, _ := find(a.headers, api.HeaderLedger)
	message := api.AppendStreamReply(nil, number, a.status, seconds, mark, a.body)
	if w.adversary(Garble, 0.04) {
		switch w.rnd.IntN(3) {
		case 0:
			status := w.anyStatus()
			w.logf(c.target.name, "connection %d of %s: a proxy ends it with status %d", c.id, c.v.name, status)
			c.sever(true, true, status)
			return
		case 1:
			message = message[:w.rnd.IntN(len(message))]
		default:
			message = api.AppendStreamReply(nil, number, a.status, seconds, mark, a.body[:w.rnd.IntN(len(a.body)+1)])
		}
		w.logf(c.target.name, "connection %d of %s: the reply to call %d becomes %d bytes", c.id, c.v.name, number, len(message))
	}
	c.send(&c.down, func() { c.deliver(number, message) })
}

// deliver hands a message to the gate.
func (c *conn) deliver(number uint64, message []byte) {
	v := c.v
	if !c.known || !v.alive() {
		return
	}
	if c.waiting[number] {
		delete(c.waiting, number)
		v.p.w.logf(v.name, "connection %d: reply %d, %s", c.id, number, describeMessage(message))
	}
	v.enter(nil, func() {
		v.message = message
		defer func() { v.message = nil }()
		v.plugin.OnStreamMessage(c.id, len(message))
	})
}

func describeMessage(message []byte) string {
	var r api.StreamReply
	if err := r.View(message); err != nil {
		return err.Error()
	}
	return fmt.Sprint(r.Status) + describeReply(&answer{status: r.Status, body: r.Body})
}

// dropConns ends the VM's connections without telling the gate.
func (v *vm) dropConns() {
	for _, id := range ids(v.conns) {
		v.conns[id].forgotten()
	}
}

// disconnect ends the connections to a process that has died.
func (m *manager) disconnect() {
	w := m.w
	conns := m.conns
	m.conns = nil
	for _, c := range conns {
		switch {
		case !c.known:
		case w.plan.Has(Drop) && !w.healed && w.chance(0.2):
			c.sever(true, true, never)
		default:
			c.sever(true, true, statusUnavailable)
		}
	}
}

// rewire has a cluster of the proxy lead to another manager: new connections, and mostly also those that it has.
func (p *proxy) rewire(cluster, to string) {
	p.wires[cluster] = to
	if cluster == to {
		delete(p.wires, cluster)
	}
	if p.w.chance(0.7) {
		p.eachConn(func(c *conn) {
			if c.cluster == cluster {
				c.sever(true, true, statusUnavailable)
			}
		})
	}
}

// eachConn calls do with all connections of the proxy's gates.
func (p *proxy) eachConn(do func(c *conn)) {
	for _, v := range slices.Concat(p.retired, p.vms) {
		for _, id := range ids(v.conns) {
			do(v.conns[id])
		}
	}
}

// mend ends the connections of which only one end knows that they are broken.
func (p *proxy) mend() {
	p.eachConn(func(c *conn) {
		if c.broken {
			c.sever(true, true, statusUnavailable)
		}
	})
}

// underWay reports whether a call of the VM is under way.
func (v *vm) underWay() bool {
	for _, c := range v.conns {
		if len(c.waiting) > 0 {
			return true
		}
	}
	return len(v.calls) > 0
}
