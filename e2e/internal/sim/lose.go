package sim

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// A machine that loses its disk. Its manager starts as a new ledger, which knows no key. It may run none of those that the
// lost one knew, as long as anybody remembers that ledger.

// markKey is the key in shared data under which a gate keeps what it remembers of a manager's ledger.
const markKey = "oncegate.l."

// ledger names the manager and its disk.
func (m *manager) ledger() string {
	if m.disks == 0 {
		return m.name
	}
	return fmt.Sprintf("%s-%d", m.name, m.disks)
}

// lose empties the disk of a manager as soon as it may.
func (w *World) lose(m *manager) {
	if w.healed {
		return
	}
	if !w.remembered(m) {
		w.after(300*time.Millisecond, func() { w.lose(m) })
		return
	}
	m.kill()
	w.logf(m.name, "loses its disk")
	m.disk = new(simulated.Disk)
	m.disks++
	for _, r := range w.upstream.runs {
		r.lost = r.lost || r.recorded == m
	}
	w.after(w.outage(), m.revive)
}

// remembered reports whether each proxy remembers the ledger, and says so with each call. A gate that has not met a ledger
// cannot miss it.
func (w *World) remembered(m *manager) bool {
	for _, p := range w.proxies {
		if _, ok := p.data[markKey+m.name]; !ok || !p.up {
			return false
		}
	}
	return m.unmarked == 0 && m.noticed()
}

// noticed reports whether the manager knows of the disk that it lost last, if any.
func (m *manager) noticed() bool {
	if m.loss != nil {
		return m.gone || !m.loss.sure() || m.forgot() != m.loss.knew
	}
	return m.disks == 0 || m.forgot() != ""
}

// forgot is since when and why the manager knows that its ledger forgot something; "": it knows of nothing.
func (m *manager) forgot() string {
	if p := m.run; p != nil && p.ready {
		return p.manager.Forgot()
	}
	why, err := simulated.Forgot(m.disk)
	if err != nil {
		m.w.fail("%s has a quarantine that cannot be read: %v", m.name, err)
	}
	return why
}

// forgotten reports whether a manager does not know yet that its disk was lost.
func (w *World) forgotten() bool {
	for _, m := range w.managers {
		if !m.noticed() {
			return true
		}
	}
	return false
}

// runOf returns the execution that an answer is of, nil for none.
func (u *upstream) runOf(body string) *run {
	var id int
	if n, _ := fmt.Sscanf(body, "run %d of", &id); n == 1 {
		return u.runs[id-1]
	}
	return nil
}

// recorded notes that a manager has acknowledged an outcome.
func (w *World) recorded(e *record) {
	if r := w.upstream.runOf(e.call.Body); r != nil {
		r.recorded, r.lost = e.m, r.op.id != "" && w.plan.Has(Centres) && w.decider(e.m, r.op.id, r.op.global).forgotSince(time.Duration(e.at))
		if r.recordedAt == 0 {
			r.recordedAt = time.Duration(e.at)
		}
		if w.decides(e.m, r) {
			r.forgotten = nil // the ledger that is there now has it
		}
	}
}
