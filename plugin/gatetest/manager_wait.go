package gatetest

import (
	"context"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// waiter is a reserve that waits for a key. The real manager would hold it by the machine's clock. So it
// is asked without a wait, and again when the answer may have changed: after another call about the key,
// and when the reservation is over.
type waiter struct {
	ask    func() simulated.Answer
	answer func(simulated.Answer)
	over   bool // it has waited long enough
}

func name(scope, key string) string { return scope + "\x00" + key }

// handle makes the manager answer a call.
func (m *Manager) handle(c *Call, headers []api.Header, message []byte, answer func(simulated.Answer)) {
	ask := func() simulated.Answer { return m.manager.Do(context.Background(), c.Path, headers, message) }
	id := name(c.Scope, c.Key)
	m.handling.Lock()
	a := ask()
	if a.Status == 202 && c.Wait > 0 {
		w := &waiter{ask: ask, answer: answer}
		m.waiting[id] = append(m.waiting[id], w)
		first := len(m.waiting[id]) == 1
		m.handling.Unlock()
		m.clock.AfterFunc(c.Wait, func() {
			m.handling.Lock()
			w.over = true
			m.handling.Unlock()
			m.wake(id)
		})
		if first {
			m.watch(id, a)
		}
		return
	}
	m.handling.Unlock()
	answer(a)
	if c.Path != api.PathReserve {
		m.wake(id)
	}
}

// watch wakes the waiters of a key when the reservation in a is over.
func (m *Manager) watch(id string, a simulated.Answer) {
	var r api.ReserveReply
	if r.ParseRaw(a.Body) == nil {
		m.clock.AfterFunc(r.ExpiresIn, func() {
			if a := m.wake(id); a.Status == 202 {
				m.watch(id, a) // the reservation was renewed
			}
		})
	}
}

// wake asks the manager again for the calls that wait for a key, in their order, and returns the last
// answer. Calls whose key is still pending keep waiting.
func (m *Manager) wake(id string) (last simulated.Answer) {
	m.handling.Lock()
	var keep []*waiter
	var sends []func()
	for _, w := range m.waiting[id] {
		a := w.ask()
		if last = a; a.Status == 202 && !w.over {
			keep = append(keep, w)
			continue
		}
		if a.Status == 201 {
			m.watch(id, a) // the calls after it wait for this new reservation
		}
		sends = append(sends, func() { w.answer(a) })
	}
	if m.waiting[id] = keep; len(keep) == 0 {
		delete(m.waiting, id)
	}
	m.handling.Unlock()
	for _, f := range sends {
		f()
	}
	return last
}
