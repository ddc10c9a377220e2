package sim

import (
	"context"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// arrive begins the manager's side.
func (c *conn) arrive() {
	w, m := c.v.p.w, c.target
	if c.process = m.run; c.process == nil {
		if w.healed || w.chance(0.8) {
			c.sever(true, true, statusUnavailable)
		} else {
			c.sever(true, true, never)
		}
		return
	}
	m.conns = append(slices.DeleteFunc(m.conns, func(c *conn) bool { return !c.known }), c)
	c.admit()
}

// admit has the manager compare what the gate says with what it is.
func (c *conn) admit() {
	m, p := c.target, c.process
	if p.dead {
		return
	}
	if !p.ready || m.frozen {
		m.later(c, c.admit)
		return
	}
	var headers []api.Header
	if c.shard != "" {
		headers = append(headers, api.Header{Name: api.HeaderShard, Value: c.shard})
	}
	if c.mark != "" {
		headers = append(headers, api.Header{Name: api.HeaderLedger, Value: c.mark})
	}
	q := &request{from: c, method: "GET", path: "/v1/ledger/shard", headers: headers, answered: func(a *answer) {
		if a == nil {
			return
		}
		if a.status == 421 {
			c.refusal = a
		}
		c.admitted = true
		early := c.early
		c.early = nil
		for _, do := range early {
			c.serve(do)
		}
	}}
	m.handle(c.caller(), q)
}

// caller is the context of a call: it ends when the manager sees that nobody waits any more.
func (c *conn) caller() context.Context {
	ctx, cancel := context.WithCancel(background)
	if c.left {
		cancel()
	}
	c.held = append(c.held, cancel)
	return ctx
}

// leave ends the calls that the manager holds, one after the other: at one instant, any might be the first.
func (c *conn) leave() {
	c.left = true
	for i, cancel := range c.held {
		c.v.p.w.after(time.Duration(i)*20*time.Microsecond, cancel)
	}
	c.held = nil
}

// serve has the manager deal with a message, each at an instant of its own.
func (c *conn) serve(do func()) {
	w := c.v.p.w
	if c.process == nil || c.process.dead {
		return
	}
	if !c.admitted {
		c.early = append(c.early, do)
		return
	}
	c.next = max(w.now()+w.between(0, 10*time.Microsecond), c.next+w.between(time.Microsecond, 20*time.Microsecond))
	w.after(c.next-w.now(), do)
}

// rejects is how the manager deals with a message that it cannot read.
func (c *conn) rejects() {
	if !c.process.dead && !c.down.closed {
		c.end(statusInvalid)
	}
}

// end is the manager's end of the stream, after what it has sent.
func (c *conn) end(status int) {
	c.v.p.w.logf(c.target.name, "ends connection %d of %s with status %d", c.id, c.v.name, status)
	c.broken = true
	c.send(&c.down, func() { c.finish(status) })
	c.down.closed, c.up.closed, c.up.dead = true, true, true
}

// call has the manager carry out a call.
func (c *conn) call(call *api.StreamCall) {
	m, number := c.target, call.Number
	switch {
	case c.process.dead:
	case m.frozen:
		m.later(c, func() { c.call(call) })
	case c.refusal != nil:
		if !c.down.closed {
			c.reply(number, c.refusal)
			c.end(statusPrecondition)
		}
	case call.Op == api.OpPing:
		c.reply(number, &answer{status: 200})
	default:
		m.handle(c.caller(), &request{from: c, path: call.Op.Path(), mark: c.mark, body: call.Message, answered: func(a *answer) {
			if a != nil {
				c.reply(number, a)
			}
		}})
	}
}
