package sim

import (
	"slices"
	"strconv"
	"time"
)

// The checks of what must always hold.

// ahead is by how much the clocks of the managers have been set forward in total. Their windows end
// earlier by that time.
func (w *World) ahead() (d time.Duration) {
	for _, m := range w.managers {
		d += m.ahead
	}
	return d
}

// checkRun checks an execution that begins: no other one may be within its window.
func (w *World) checkRun(r *run) {
	if w.plan.Has(Open) {
		return // which were protected is known at the end
	}
	w.checkWindow(r)
}

// windowSlack is for the rounding of TTLs to milliseconds.
const windowSlack = 5 * time.Millisecond

func (w *World) checkWindow(r *run) {
	for _, earlier := range r.op.runs {
		if earlier == r || earlier.bypassed || r.bypassed || earlier.start > r.start {
			continue
		}
		if !r.op.global && r.vm.p.near() != earlier.vm.p.near() {
			continue // two data centres may run a local key; agree checks that all learn of it
		}
		if w.mayRepeat(earlier, r) {
			w.repeats++
			continue
		}
		until := earlier.start + earlier.protection - (r.ahead - earlier.ahead) - windowSlack
		if r.start < until {
			w.fail("%s was executed twice: run %d at %v, run %d at %v", r.op.name, earlier.id, earlier.start, r.id, r.start)
		}
	}
}

// checkAnswer checks an answer that a client got.
func (w *World) checkAnswer(t *try, status string) {
	op := t.c.op
	text, ours := find(t.header, "x-run")
	if !ours {
		_, resolved := find(t.header, headerResolved)
		switch {
		case resolved:
		case t.status >= 200 && t.status < 300:
			w.fail("%s got %d %q, which no execution has answered", t.c.name, t.status, t.body)
		case t.status == 422 && !op.wrong:
			w.fail("%s got %d %q, but its key is used for one request only", t.c.name, t.status, t.body)
		case t.status == 400 || t.status == 500:
			w.fail("%s got %d %q", t.c.name, t.status, t.body)
		case t.c.last:
			w.checkProbe(t, status)
		case status == "outcome-unknown" && !w.plan.Has(disturbing):
			for _, r := range op.runs {
				if r.vm.survived() && (r.answered || r.exchange.live()) {
					w.fail("%s got 409 (outcome-unknown), although the gate of run %d is alive and has or will have its outcome", t.c.name, r.id)
				}
			}
		}
		return
	}
	n, _ := strconv.Atoi(text)
	r := w.upstream.runs[n-1]
	switch {
	case r.op != op:
		w.fail("%s got the answer to %s", t.c.name, r.op.name)
	case r.sum != sum(t.c.body):
		w.fail("%s got the answer to another request with its key", t.c.name)
	case t.status != r.status || string(t.body) != r.body:
		w.fail("%s got %d %q, but run %d answered %d %q", t.c.name, t.status, t.body, r.id, r.status, r.body)
	}
}

// disturbing are the powers that may keep a gate from renewing a reservation or from learning an outcome.
const disturbing = Delay | Drop | Trap | Restart | Clock | Leave | Cut | Forget | Open | Garble | Miswire | Partition

// endWait is for how long a gate's reply waits for the end of its request in HTTP/2, with a late tick.
const endWait = 150 * time.Millisecond

// checkProbe checks a problem that an operation gets when the adversary has left.
func (w *World) checkProbe(t *try, status string) {
	op := t.c.op
	if w.plan.Has(Forget | Open) {
		return
	}
	for _, r := range op.runs {
		if !op.global && r.start > w.probed && r.vm.p.near() != t.s.v.p.near() {
			continue // the other data centre has just run it
		}
		if !op.global && status == "outcome-unknown" && r.vm.p.near() != t.s.v.p.near() && op.sent[t.s.v.p.near()] {
			continue // this data centre has sent it, too, and lost the outcome
		}
		if status == "quarantine" && w.plan.NewShards != nil {
			continue // the key's earlier owner lost its disk, and the later one may have the outcome
		}
		if status == "request-pending" && r.answeredAt >= t.began && w.now()-r.answeredAt < endWait {
			continue // it met the running request, and its reply waited for the end of its own
		}
		if l := r.forgotten; l != nil && l.back != 0 {
			continue // the ledger that was put back may hold the key for an attempt that had ended since, and fence this one
		}
		if r.answered && r.vm.survived() && t.status != 410 && !r.lost {
			w.fail("%s got %d (%s), although the gate that had the answer of run %d is alive", t.c.name, t.status, status, r.id)
		}
	}
	// A reserve that arrives seconds after its caller gave it up and released it reserves for nobody. So does one whose release
	// a ledger forgot.
	back := slices.ContainsFunc(w.managers, func(m *manager) bool { return m.loss != nil && m.loss.back != 0 })
	if status == "outcome-unknown" && len(op.sent) == 0 && !op.harmed && !w.plan.Has(Delay) && !back {
		w.fail("%s got %d (%s), although nothing of it was ever sent to upstream", t.c.name, t.status, status)
	}
}

// checkBounds checks the bounds of everything that grows.
func (w *World) checkBounds() {
	for _, p := range w.proxies {
		bytes := 0
		for _, s := range p.data {
			bytes += len(s.value)
		}
		if bytes > 262144 || len(p.data) > 64*2+16 {
			w.fail("%s has %d bytes in %d values of shared data", p.name, bytes, len(p.data))
		}
	}
	for _, m := range w.managers {
		if used := m.disk.Used(); used > 2<<20 { // a half of it is the reserve of the state, which a start on a full disk needs
			w.fail("%s uses %d bytes of its disk", m.name, used)
		}
		if p := m.run; p != nil && p.ready && !m.frozen {
			w.aside(func() func() {
				n, err := p.manager.Entries(background)
				return func() {
					if err == nil && !p.dead && n > w.plan.MaxKeys*9/8+1 {
						w.fail("%s has %d entries in a window of %d", m.name, n, w.plan.MaxKeys)
					}
				}
			})
		}
	}
	if !w.healed {
		w.after(5*time.Second, w.checkBounds)
	}
}

// checkEnd checks what must hold when the adversary has left and all is quiet.
func (w *World) checkEnd() {
	if w.plan.Has(Open) {
		for _, r := range w.upstream.runs {
			r.bypassed = r.stream != nil && (r.stream.mark == "" || r.stream.mark == "bypassed") // the gate calls for what it protects
		}
		for _, r := range w.upstream.runs {
			w.checkWindow(r)
		}
	}
	for _, m := range w.managers {
		if w.plan.Has(Window) {
			break
		}
		if m.gone {
			continue
		}
		// The entries of strangers have expired and are swept.
		w.aside(func() func() {
			n, err := m.run.manager.Entries(background)
			return func() {
				if most := len(w.ops) + w.spoiled + w.strays + 2; err != nil || n > most {
					w.fail("%s has %d entries in the end (%v), not %d at most: expired ones are not swept", m.name, n, err, most)
				}
			}
		})
	}
	w.run(w.now() + time.Second)
	for _, p := range w.proxies {
		for _, v := range p.retired {
			if v.alive() {
				w.fail("%s, an old gate, still has %d streams or outcomes that the ledger does not know", v.name, len(v.streams))
			}
		}
		for _, v := range p.vms {
			if !v.alive() {
				continue
			}
			if len(v.streams) > 0 {
				w.fail("%s still has %d streams", v.name, len(v.streams))
			}
			if !v.plugin.Shutdown() {
				w.fail("%s still has outcomes that the ledger does not know", v.name)
			}
		}
	}
}
