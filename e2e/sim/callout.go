package sim

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/gate"
)

// callout is a gate's call on its way to a manager and back.
type callout struct {
	v      *vm
	id     uint32
	path   string
	shard  string // the shard that it is for; "": any
	mark   string // what the gate remembers of the ledger
	body   []byte
	done   bool
	ctx    context.Context
	leave  context.CancelFunc
	target *manager
}

// call starts a callout, and decides what happens to it on its way.
func (v *vm) call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	w := v.p.w
	if cluster == clusterInner || cluster == clusterRoute {
		return v.carry(headers, body, timeout)
	}
	m := w.manager(v.p.wired(cluster))
	if m == nil {
		return 0, gate.CallNoCluster
	}
	path, _ := find(headers, ":path")
	means, _ := find(headers, api.HeaderShard)
	mark, _ := find(headers, api.HeaderLedger)
	if m.run == nil && w.chance(0.5) {
		w.logf(v.name, "calls %s: refused at once", short(path))
		return 0, gate.CallRefused
	}
	v.lastCall++
	c := &callout{v: v, id: v.lastCall, path: path, shard: strings.Clone(means), mark: strings.Clone(mark), body: append([]byte(nil), body...), target: m}
	c.ctx, c.leave = context.WithCancel(background)
	v.calls[c.id] = c
	w.logf(v.name, "call %d: %s to %s", c.id, describe(path, c.body), m.name)
	w.after(timeout, func() {
		if !c.done {
			c.finish(&answer{status: 504, headers: [][2]string{{":status", "504"}}, body: []byte("upstream request timeout")})
			if !w.chance(0.2) {
				c.leave() // the manager sees that nobody waits any more
			}
		}
	})
	if w.adversary(Garble, 0.02) {
		w.after(w.latency(), func() { c.finish(foreignAnswer(w)) }) // the way to the manager ends there
		return c.id, gate.CallSent
	}
	copies := 1
	if w.adversary(Duplicate, 0.1) {
		copies = 2
	}
	for range copies {
		if w.adversary(Drop, 0.1) {
			w.logf(v.name, "call %d: lost on its way", c.id)
			continue
		}
		if mark == "" {
			m.unmarked++
		}
		w.after(w.latency(), c.arrive)
	}
	return c.id, gate.CallSent
}

// carry starts a gate's own call to upstream.
func (v *vm) carry(headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	w := v.p.w
	if w.adversary(Cut, 0.05) {
		return 0, gate.CallRefused
	}
	v.lastCall++
	c := &callout{v: v, id: v.lastCall, path: "upstream", leave: func() {}}
	v.calls[c.id] = c
	var list [][2]string
	for _, h := range headers {
		list = append(list, [2]string{strings.Clone(h[0]), strings.Clone(h[1])})
	}
	x := &exchange{w: w, call: c, vm: v, headers: list, body: append([]byte(nil), body...)}
	w.logf(v.name, "call %d: to upstream, %s", c.id, x.name())
	w.after(timeout, func() {
		c.finish(&answer{status: 504, headers: [][2]string{{":status", "504"}}, body: []byte("upstream request timeout")})
	})
	w.after(w.between(0, time.Millisecond), x.begin)
	return c.id, gate.CallSent
}

// latency returns how long a message takes. Sometimes that is very long.
func (w *World) latency() time.Duration {
	d := w.between(50*time.Microsecond, 3*time.Millisecond)
	if w.adversary(Delay, 0.15) {
		d = w.between(0, time.Second)
		if w.chance(0.3) {
			d = w.between(0, 8*time.Second)
		}
	}
	return d
}

// adversary reports whether the adversary uses a power now.
func (w *World) adversary(p Power, odds float64) bool {
	return w.plan.Has(p) && !w.healed && w.chance(odds)
}

// arrive hands the call to the manager.
func (c *callout) arrive() {
	w := c.v.p.w
	if c.mark == "" {
		c.target.unmarked--
	}
	if c.target.run == nil {
		if w.chance(0.8) {
			w.after(w.between(0, time.Millisecond), func() {
				c.finish(&answer{status: 503, headers: [][2]string{{":status", "503"}}, body: []byte("connection refused")})
			})
		}
		return
	}
	c.target.handle(c.ctx, &request{path: c.path, shard: c.shard, mark: c.mark, body: c.body, answered: func(a *answer) {
		if a == nil {
			if w.chance(0.7) {
				w.after(w.latency(), func() {
					c.finish(&answer{status: 503, headers: [][2]string{{":status", "503"}}, body: []byte("connection termination")})
				})
			}
			return
		}
		if w.adversary(Drop, 0.1) {
			w.logf(c.target.name, "answer to call %d of %s: lost on its way", c.id, c.v.name)
			return
		}
		if w.adversary(Garble, 0.1) {
			a = garbled(w, a)
			w.logf(c.target.name, "answer to call %d of %s: becomes %d with %d bytes", c.id, c.v.name, a.status, len(a.body))
		}
		w.after(w.latency(), func() { c.finish(a) })
	}})
}

// foreignAnswer returns an answer from a proxy between a gate and its manager.
func foreignAnswer(w *World) *answer {
	status := []int{200, 403, 404, 429, 500, 502, 503, 504}[w.rnd.IntN(8)]
	return &answer{status: status, headers: [][2]string{{":status", strconv.Itoa(status)}}, body: []byte("no manager here")}
}

// garbled returns an answer as a broken proxy on the way passes it on.
func garbled(w *World, a *answer) *answer {
	b := *a
	switch list, err := api.ViewRawAnswers(nil, a.body); {
	case w.chance(0.3):
		return foreignAnswer(w)
	case err == nil && w.chance(0.5): // too few or too many
		n := w.rnd.IntN(len(list) + 3)
		if n == len(list) || n == 0 {
			n = len(list) + 1
		}
		b.body = api.AppendRawAnswers(nil, n)
		for i := range n {
			one := list[min(i, len(list)-1)]
			b.body = api.AppendRawAnswer(b.body, one.Status, one.RetryAfterSeconds, one.Body)
		}
	case len(a.body) > 0:
		b.body = a.body[:w.rnd.IntN(len(a.body))]
	}
	return &b
}

// finish hands the answer to the gate, once.
func (c *callout) finish(a *answer) {
	v := c.v
	if c.done {
		return
	}
	c.done = true
	delete(v.calls, c.id)
	if !v.alive() {
		return
	}
	v.p.w.logf(v.name, "call %d: answered %s", c.id, describeAnswer(a))
	v.enter(nil, func() {
		v.reading = a
		defer func() { v.reading = nil }()
		v.plugin.OnCallResponse(c.id, len(a.body))
	})
}

func describeAnswer(a *answer) string {
	if _, ok := find(a.headers, "x-run"); ok {
		return strconv.Itoa(a.status) + " by upstream"
	}
	if _, ok := find(a.headers, "oncegate-manager"); !ok {
		return strconv.Itoa(a.status) + " by the proxy"
	}
	return strconv.Itoa(a.status) + describeReply(a)
}
