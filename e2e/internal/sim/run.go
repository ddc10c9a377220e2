package sim

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Report is the result of one seed.
type Report struct {
	Seed     uint64
	Plan     Plan
	Failures []string
	Timeline []string // empty unless it was asked for or something failed
	// Runs are the executions, Calls the calls that managers worked on. Cuts are connections that broke.
	// Conflicts are keys that several data centres ran.
	// Repeats are executions that a loss cost.
	Runs, Calls, Cuts, Conflicts, Repeats int
}

// Run lets the world of a seed run. The adversary has the powers that are forced, and some of
// those that are allowed.
func Run(t *testing.T, seed uint64, allowed, forced Power, timeline bool) Report {
	var w *World
	synctest.Test(t, func(*testing.T) {
		w = newWorld(seed, allowed, forced)
		w.live()
		w.close()
	})
	// Most worlds have a history or two that take long to explain.
	if len(w.failures) == 0 && seed%16 == 0 && !w.plan.Has(Clock|Operator|Centres) {
		w.failures = append(w.failures, w.history.check()...)
	}
	r := Report{Seed: seed, Plan: w.plan, Failures: w.failures, Runs: len(w.upstream.runs), Calls: w.history.calls, Cuts: w.cuts, Conflicts: w.conflicts, Repeats: w.repeats}
	if timeline || len(r.Failures) > 0 {
		r.Timeline = w.line.Text()
	}
	return r
}

func newWorld(seed uint64, allowed, forced Power) *World {
	rnd := rand.New(rand.NewPCG(seed, 0x5eed))
	w := &World{seed: seed, rnd: rnd, plan: newPlan(rnd, allowed, forced), began: time.Now(), completed: make(chan struct{}, 1), led: make(map[string]*manager)}
	w.upstream.w = w
	w.logf("WORLD", "seed %d: %s", seed, &w.plan)
	return w
}

// live runs the world from its start to its end.
func (w *World) live() {
	for _, name := range w.plan.managers() {
		w.managers = append(w.managers, newManager(w, name, w.firstList(name)))
	}
	for _, name := range []string{"a", "b", "c", "d"}[:w.plan.Proxies] {
		w.proxies = append(w.proxies, newProxy(w, name))
	}
	w.populate()
	w.torment()
	w.reshard()
	w.after(time.Second, w.checkBounds)
	w.run(w.plan.Length)
	if len(w.failures) > 0 {
		return
	}
	w.endDoubles()
	w.heal()
	w.agreeSoon()
	w.settle()
	w.agree()
	w.probe()
	w.settle()
	if len(w.failures) == 0 {
		w.checkEnd()
	}
}

// settle lets time pass until nothing happens any more, or until its limit is reached.
func (w *World) settle() {
	for limit := w.now() + waitsForever + 2*time.Second; w.now() < limit && len(w.failures) == 0; {
		w.run(w.now() + 2*time.Second)
		busy := false
		for _, p := range w.proxies {
			for _, v := range append(p.retired, p.vms...) {
				busy = busy || len(v.streams) > 0 || v.underWay()
			}
		}
		if !busy {
			break
		}
	}
	if len(w.failures) == 0 {
		w.run(w.now() + 7*time.Second) // the longest delay between two tries of a gate
	}
}
