package sim

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// torment schedules what the adversary does to processes, clocks and windows. The code of
// messages, connections and clients decides what it does to those.
func (w *World) torment() {
	some := func(p Power, most int, do func()) {
		if !w.plan.Has(p) {
			return
		}
		for range 1 + w.rnd.IntN(most) {
			w.after(w.between(0, w.plan.Length), func() {
				if !w.healed {
					do()
				}
			})
		}
	}
	some(Kill, 4, func() {
		m := w.someManager()
		if m.run == nil {
			return
		}
		m.kill()
		w.after(w.outage(), m.revive)
	})
	some(Stop, 3, func() {
		m := w.someManager()
		m.freeze()
		w.after(w.outage(), m.thaw)
	})
	some(Lose, 2, func() {
		if w.plan.Has(Centres) {
			w.loseCentre(w.someManager())
		} else {
			w.lose(w.someManager())
		}
	})
	some(Back, 2, func() { w.putBack(w.someManager()) })
	some(Twin, 1, func() { w.double(w.someManager()) })
	some(Restart, 3, func() {
		p := w.someProxy()
		if !w.plan.Has(Centres) && w.forgotten() {
			return // what the proxy remembers may be needed
		}
		p.kill()
		w.after(w.between(time.Millisecond, 2*time.Second), p.revive)
	})
	some(Trap, 3, func() {
		p := w.someProxy()
		v := p.vms[w.rnd.IntN(len(p.vms))]
		switch {
		case !v.alive():
		case w.chance(0.5):
			v.trap()
		default:
			v.trapIn = 1 + w.rnd.IntN(60)
		}
	})
	some(Update, 3, func() { w.someProxy().update() })
	some(Clock, 4, func() {
		by := w.between(-5*time.Second, 5*time.Second)
		if w.chance(0.5) {
			p := w.someProxy()
			p.shift += by
			w.logf(p.name, "clock moves by %v", by)
			return
		}
		m := w.someManager()
		m.shift.Add(int64(by))
		m.ahead += max(by, 0)
		m.setBack += max(-by, 0)
		w.logf(m.name, "clock moves by %v", by)
	})
	some(Busy, 6, w.rush)
	some(Miswire, 3, func() {
		p := w.someProxy()
		from, to := w.someManager(), w.someManager()
		where := to.name
		if w.chance(0.2) {
			where = "nowhere"
		}
		w.logf(p.name, "its cluster %s leads to %s", from.name, where)
		p.rewire(from.name, where)
		w.after(w.between(0, 10*time.Second), func() {
			w.logf(p.name, "its cluster %s leads where it should", from.name)
			p.rewire(from.name, from.name)
		})
	})
	some(Partition, 5, w.part)
	some(Window, 4, func() { w.flood(w.plan.MaxKeys+w.rnd.IntN(10), time.Minute) })
	some(Operator, 5, w.resolve)
	some(Spoil, 3, func() {
		w.flood(5, 3*time.Second)
		w.after(w.between(10*time.Millisecond, time.Second), w.spoil)
	})
}

func (w *World) someManager() *manager { return w.managers[w.rnd.IntN(len(w.managers))] }
func (w *World) someProxy() *proxy     { return w.proxies[w.rnd.IntN(len(w.proxies))] }

// outage is how long a manager is away.
func (w *World) outage() time.Duration {
	if w.plan.Has(Away) && w.chance(0.7) {
		return w.between(time.Second, 15*time.Second)
	}
	return w.between(time.Millisecond, 700*time.Millisecond)
}

func (m *manager) revive() {
	if m.run == nil && !m.gone {
		m.start()
	}
}

func (p *proxy) revive() {
	if !p.up {
		p.start()
	}
}

// resolve has an operator resolve unknown outcomes as executed.
func (w *World) resolve() {
	m := w.someManager()
	p := m.run
	if p == nil || !p.ready || m.frozen {
		return
	}
	result := api.Result{Status: 200, Headers: []api.Header{{Name: headerResolved, Value: "by hand"}}}
	w.aside(func() func() {
		keys := p.manager.ResolveUnknown(background, func(scope string) bool { return scope != stranger }, result, w.plan.CommittedTTL)
		return func() {
			if !p.dead && len(keys) > 0 {
				w.logf(m.name, "an operator resolves %v", keys)
			}
		}
	})
}

// headerResolved marks the answers that an operator gives.
const headerResolved = "x-resolved"

// spoil makes a record of a stranger unreadable.
func (w *World) spoil() {
	m := w.someManager()
	p := m.run
	if p == nil || !p.ready || m.frozen {
		return
	}
	w.aside(func() func() {
		spoiled, err := p.manager.Spoil(background, stranger)
		return func() {
			if spoiled {
				w.spoiled++ // it may be there, if it was killed meanwhile
			}
			if spoiled && err == nil && !p.dead {
				w.logf(m.name, "has a record that cannot be read")
			}
		}
	})
}

// stranger is the scope of keys that are not those of operations.
const stranger = "stranger"

// flood has a stranger use n keys, whose outcomes last for ttl.
func (w *World) flood(n int, ttl time.Duration) {
	m := w.someManager()
	w.logf("flood", "%d keys to %s", n, m.name)
	for i := range n {
		key := fmt.Sprintf("flood%d-%d", w.serial, i)
		at := time.Duration(i) * 200 * time.Microsecond
		w.after(at, func() {
			r := api.ReserveRequest{Key: key, Scope: stranger, Token: key, PendingTTL: 2 * time.Second}
			m.handle(background, &request{path: api.PathReserve, body: r.AppendRaw(nil), answered: func(a *answer) {
				if a == nil {
					w.strays++ // it may be there
					return
				}
				if a.status != 201 {
					return
				}
				f := api.FinishRequest{Key: key, Scope: stranger, Token: key, TTL: ttl, Result: api.Result{Status: 200}}
				m.handle(background, &request{path: api.PathCommit, body: f.AppendRaw(nil), answered: func(a *answer) {
					if a == nil {
						w.strays++ // it may be pending still, and unknown after that
					}
				}})
			}})
		})
	}
}

// heal ends the adversary's work: every process runs again, and keeps running.
func (w *World) heal() {
	w.logf("WORLD", "the adversary leaves")
	w.healed = true
	for _, m := range w.managers {
		m.thaw()
		m.relist()
		m.revive()
	}
	clear(w.parted)
	for _, p := range w.proxies {
		clear(p.wires)
		p.mend()
		p.revive()
		p.advance(stageBoth)
		for _, v := range p.vms {
			v.trapIn = 0
		}
	}
}

// probe sends every operation once more through every proxy.
func (w *World) probe() {
	w.probed = w.now()
	w.logf("WORLD", "every operation is asked for once more, through every proxy")
	for i, op := range w.ops {
		if op.wrong {
			continue
		}
		for _, p := range w.proxies {
			c := &client{w: w, op: op, name: fmt.Sprintf("probe%d%s", i, p.name), body: []byte("pay " + op.name), left: 1, last: true}
			w.after(w.between(0, time.Second), func() { c.sendThrough(p) })
		}
	}
}
