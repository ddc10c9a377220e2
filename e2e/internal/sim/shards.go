package sim

import (
	"slices"
	"time"
)

// A change of the list of shards. Gates and managers get the new list in any order. A gate forgets the previous list
// only when no entry is left at an earlier owner.

func (w *World) manager(name string) *manager {
	for _, m := range w.managers {
		if m.name == name {
			return m
		}
	}
	return nil
}

// firstList is the list with which a manager starts first. A new manager starts with the new list, and some have none.
func (w *World) firstList(name string) []string {
	switch p := &w.plan; {
	case !p.Named:
		return nil
	case !slices.Contains(p.Shards, name):
		return p.NewShards
	case w.chance(0.3):
		return nil
	default:
		return p.Shards
	}
}

// reshard schedules a change of the list.
func (w *World) reshard() {
	if w.plan.NewShards == nil {
		return
	}
	some := func() time.Duration { return w.between(0, w.plan.changes) }
	for _, p := range w.proxies {
		w.after(some(), func() { p.advance(stageBoth) })
	}
	for _, m := range w.managers {
		w.after(some(), m.relist)
	}
	w.forgetPrevious(0)
}

// relist restarts the manager with the new list.
func (m *manager) relist() {
	w := m.w
	if w.plan.NewShards == nil || slices.Equal(m.list, w.plan.NewShards) {
		return
	}
	m.list = w.plan.NewShards
	if m.run == nil {
		return // its next process will have it
	}
	w.logf(m.name, "is given another list")
	m.kill()
	if w.healed {
		m.start()
		return
	}
	w.after(w.outage(), m.revive)
}

// settled reports whether all gates have the new list and all managers serve with it.
func (w *World) settled() bool {
	for _, p := range w.proxies {
		if p.stage == stageOld {
			return false
		}
	}
	for _, m := range w.managers {
		if r := m.run; r == nil || !r.ready || m.frozen || !slices.Equal(r.list, w.plan.NewShards) {
			return false
		}
	}
	return true
}

// forgetPrevious has the gates forget the previous list when all managers have served with the new one for so long
// that no earlier entry can be left. The time in which a manager was away does not count, because it runs down no entry.
func (w *World) forgetPrevious(passed time.Duration) {
	const step = 200 * time.Millisecond
	var setBack time.Duration
	for _, m := range w.managers {
		setBack += m.setBack
	}
	if passed > w.plan.longest()+setBack+2*time.Second {
		for _, p := range w.proxies {
			w.after(w.between(0, 3*time.Second), func() { p.advance(stageNew) })
		}
		return
	}
	calm := w.settled()
	w.after(step, func() {
		if w.healed {
			return
		}
		if calm && w.settled() {
			passed += step
		}
		w.forgetPrevious(passed)
	})
}
