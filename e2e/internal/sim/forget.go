package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// Data centres that forget: one loses its disk, is put back to an earlier state, or has a second manager of its origin
// beside the first one.
//
// What that may cost:
//   - An outcome that no other data centre holds goes with the disk, and its key may run again.
//   - A ledger that was put back knows itself, so it takes keys until the first word of a data centre that remembers more.
//     Until then it may run again what it forgot. Both outcomes are in the list of conflicts in the end.
//   - Such a data centre takes no new keys for the rest of the world.
//
// An empty ledger, the lost one's successor or the second manager, waits until all of its peers have spoken. So if one of
// them remembers the first ledger, nothing runs again.

// loss is a time at which a data centre forgot something.
type loss struct {
	at   time.Duration
	back time.Duration // when the disk was cloned that is there now; 0: that is empty
	knew string        // what the disk that is there now knew of earlier losses
	// knowing are other data centres that hold an outcome that was forgotten: they remember more of the ledger than the disk
	// has. heard is when one of these answered first; 0: none has.
	knowing map[string]bool
	heard   time.Duration
}

func (l *loss) sure() bool { return len(l.knowing) > 0 }

// forgets reports whether an outcome, or an execution, of which a manager first heard at some time is forgotten.
func (l *loss) forgets(at time.Duration) bool { return at > l.back }

// forgotSince reports whether the manager forgot something after a call had begun. What it decided in that call may be lost,
// also when its caller says so later.
func (m *manager) forgotSince(began time.Duration) bool { return m.loss != nil && began < m.loss.at }

// decider is the manager that decides about an operation in the data centre of m: m itself, or the key's home.
func (w *World) decider(m *manager, id string, global bool) *manager {
	if !global {
		return m
	}
	scope, key, _ := strings.Cut(id, " ")
	return w.leads(w.plan.Shards[api.Home(w.plan.Shards, scope, key)])
}

// leads is the manager to which the peers' URL of a data centre leads.
func (w *World) leads(origin string) *manager {
	if m := w.led[origin]; m != nil {
		return m
	}
	return w.manager(origin)
}

// held has each data centre but one send what it holds, and then calls do with it. One that is away sends nothing.
func (w *World) held(but string, do func(views map[string]*simulated.View)) {
	views, left := make(map[string]*simulated.View), 0
	for _, m := range w.managers {
		p := m.run
		if m.origin == but || m.twin || p == nil || !p.ready || m.frozen {
			continue
		}
		left++
		w.aside(func() func() {
			v, err := p.manager.View(background)
			return func() {
				if left--; err == nil && !p.dead {
					views[m.origin] = v
				}
				if left == 0 {
					do(views)
				}
			}
		})
	}
}

// forgetSoon has a data centre forget something as soon as it may: what another one forgot before has been noticed, so that
// the others' memories count.
func (w *World) forgetSoon(m *manager, what func(views map[string]*simulated.View)) {
	again := func() { w.after(300*time.Millisecond, func() { w.forgetSoon(m, what) }) }
	switch {
	case w.healed || m.gone:
	case w.losing || w.forgotten():
		again()
	default:
		w.losing = true
		asked := false
		w.held(m.origin, func(views map[string]*simulated.View) {
			asked, w.losing = true, false
			if !w.healed && !m.gone {
				what(views)
			}
		})
		w.after(100*time.Millisecond, func() {
			if !asked {
				w.losing = false
				again()
			}
		})
	}
}

// loseCentre empties the disk of a data centre.
func (w *World) loseCentre(m *manager) {
	w.forgetSoon(m, func(views map[string]*simulated.View) {
		m.kill()
		w.logf(m.name, "loses its disk")
		m.disk = new(simulated.Disk)
		w.forget(m, &loss{at: w.now()}, views)
		w.aftermath(m)
	})
}

// putBack puts the disk of a data centre back to what it was some time ago.
func (w *World) putBack(m *manager) {
	if m.gone || m.twin {
		return
	}
	clone, at, disks := m.disk.Clone(), w.now(), m.disks
	w.logf(m.name, "its disk is copied")
	w.after(w.between(100*time.Millisecond, 15*time.Second), func() {
		w.forgetSoon(m, func(views map[string]*simulated.View) {
			if m.disks != disks {
				return // it is the disk of another ledger
			}
			m.kill()
			w.logf(m.name, "is put back to what it was at %v", at)
			m.disk = clone.Clone()
			l := &loss{at: w.now(), back: at, knew: m.forgot()}
			w.forget(m, l, views)
			w.aftermath(m)
		})
	})
}

// aftermath is what follows a loss: the proxies may have lost what they remember as well, the other data centres may be
// away, and clients repeat what they sent before.
func (w *World) aftermath(m *manager) {
	outage := w.outage()
	w.after(outage, m.revive)
	proxies := slices.DeleteFunc(slices.Clone(w.proxies), func(p *proxy) bool { return p.near() != m.origin })
	if w.plan.Has(Restart) {
		for _, p := range proxies {
			p.kill()
			w.after(w.between(0, outage), p.revive)
		}
	}
	if w.plan.Has(Partition) && w.chance(0.7) {
		w.cutOff(m)
	}
	for i, op := range w.ops {
		for _, p := range proxies {
			if len(op.runs) > 0 && !op.wrong {
				c := &client{w: w, op: op, name: fmt.Sprintf("after%d%s", i, p.name), body: []byte("pay " + op.name), left: 1}
				w.after(outage+w.between(0, 3*time.Second), func() { c.sendThrough(p) })
			}
		}
	}
}

// forget notes what a data centre has forgotten, and what the others hold of it.
func (w *World) forget(m *manager, l *loss, views map[string]*simulated.View) {
	m.loss = l
	m.disks++
	l.knowing = make(map[string]bool)
	for _, o := range w.outcomes {
		if o.by == m && l.forgets(o.began) {
			for name, v := range views {
				if v.Holds(o.key, o.body) {
					l.knowing[name] = true
				}
			}
		}
	}
	w.outcomes = slices.DeleteFunc(w.outcomes, func(o outcome) bool {
		mine := (o.by == nil || o.by == m || o.manager == m.name) && l.forgets(o.began)
		// What its own data centre forgot before may not have come back to it yet.
		var was *loss
		if o.by != nil {
			was = o.by.loss
		}
		if !mine && (was == nil || o.began > was.at || !was.forgets(o.began)) {
			return false
		}
		for _, v := range views {
			if v.Holds(o.key, o.body) {
				return false
			}
		}
		if r := w.upstream.runOf(o.body); r != nil {
			r.lost = true
		}
		return true
	})
	w.known = slices.DeleteFunc(w.known, func(o outcome) bool { return o.manager == m.name })
	for _, r := range w.upstream.runs {
		// What was forgotten before may not have come back by the time of the copy.
		if w.decides(m, r) && (r.recordedAt == 0 || l.forgets(r.recordedAt) || r.forgotten != nil) {
			r.forgotten = l
		}
	}
}

// decides reports whether the manager decided about an execution.
func (w *World) decides(m *manager, r *run) bool {
	if r.op.global {
		return r.op.id == "" || w.decider(nil, r.op.id, true) == m
	}
	return r.vm.p.near() == m.origin
}

// mayRepeat reports whether an execution may have been repeated by a later one, because nobody knew of it in time.
func (w *World) mayRepeat(r, later *run) bool {
	l := r.forgotten
	if l == nil || later.start < l.at {
		return false
	}
	if !l.sure() {
		return true
	}
	if l.back == 0 {
		return false
	}
	granted := later.op.granted[later.vm.p.near()] // 0: its key was not known then
	const toTake = 100 * time.Millisecond          // what a manager needs until an answer counts
	return l.heard == 0 || granted < l.heard+toTake
}

// gives notes that a manager has given a key to an attempt.
func (w *World) gives(e *record, reply *api.ReserveReply) {
	id := strings.TrimPrefix(e.key, e.m.ledger()+" ")
	for _, op := range w.ops {
		if op.id == id && reply.State == api.StateReserved && e.call.Op == "reserve" && !op.tokens[e.call.Token] {
			op.tokens[e.call.Token] = true
			op.granted[e.m.origin] = time.Duration(e.at)
		}
	}
}

// hears notes that a data centre has an answer to a call for changes.
func (m *manager) hears(from string) {
	if l := m.loss; l != nil && l.heard == 0 && l.knowing[from] {
		l.heard = m.w.now()
	}
}

// double starts a second manager of a data centre, on an empty disk. Peers reach one of the two.
func (w *World) double(first *manager) {
	if first.twin || w.led[first.origin] != nil {
		return
	}
	w.forgetSoon(first, func(views map[string]*simulated.View) {
		second := &manager{w: w, name: first.name + "x", origin: first.origin, twin: true, disk: new(simulated.Disk)}
		second.shift.Store(int64(w.between(-12*time.Hour, 12*time.Hour)))
		second.disks, second.loss = 1, &loss{at: w.now(), knowing: make(map[string]bool)}
		for _, o := range w.outcomes {
			for name, v := range views {
				if o.by == first && v.Holds(o.key, o.body) {
					second.loss.knowing[name] = true
				}
			}
		}
		if !second.loss.sure() || w.led[first.origin] != nil {
			return // of two ledgers that nobody knows yet, either may be the first
		}
		w.logf(second.name, "is a second manager of %s", first.origin)
		first.doubled = true
		w.led[first.origin] = first
		if w.chance(0.3) {
			w.logf("network", "the peers of %s reach %s from now on", first.origin, second.name)
			w.led[first.origin] = second
		}
		w.managers = append(w.managers, second)
		second.start()
		for _, p := range w.proxies {
			if p.near() == first.origin && w.chance(0.7) {
				w.after(w.between(0, 5*time.Second), func() {
					if second.gone {
						return
					}
					if w.plan.Has(Restart) { // it is new as well, and remembers no ledger
						p.kill()
						p.revive()
					}
					w.logf(p.name, "its cluster %s leads to %s", first.name, second.name)
					p.rewire(first.name, second.name)
				})
			}
		}
		w.after(w.between(5*time.Second, 30*time.Second), func() { w.endDouble(second) })
	})
}

// endDouble ends a second manager for good. What it alone knows is lost.
func (w *World) endDouble(second *manager) {
	if second.gone {
		return
	}
	end := func(views map[string]*simulated.View) {
		if second.gone {
			return
		}
		w.logf(second.name, "is found and ended")
		second.kill()
		second.gone = true
		w.led[second.origin] = w.manager(second.origin)
		for _, p := range w.proxies {
			delete(p.wires, second.origin)
		}
		w.forget(second, &loss{at: w.now()}, views)
	}
	w.held("", end)
	w.after(100*time.Millisecond, func() { end(nil) })
}

// endDoubles ends all second managers.
func (w *World) endDoubles() {
	for _, m := range slices.Clone(w.managers) {
		if m.twin {
			w.endDouble(m)
		}
	}
	w.run(w.now() + 200*time.Millisecond)
}
