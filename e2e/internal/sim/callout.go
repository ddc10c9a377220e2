package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/plugin/gate"
)

// callout is a gate's call to upstream.
type callout struct {
	v    *vm
	id   uint32
	done bool
}

// carry starts a gate's own call to upstream.
func (v *vm) carry(headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	w := v.p.w
	if w.adversary(Cut, 0.05) {
		return 0, gate.CallRefused
	}
	v.lastCall++
	c := &callout{v: v, id: v.lastCall}
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
	return strconv.Itoa(a.status) + " by the proxy"
}
