package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// What data centres must hold in the end.

// outcome is one that a manager has acknowledged to a gate, has answered to one, or has learned of another manager.
type outcome struct {
	manager, key, body string // key is scope and key
	token              string // of one that a gate sent
	at                 time.Duration
	// Of one that was acknowledged: when the call began, and which manager decided about the key; nil: an
	// answer that was cut does not say.
	began time.Duration
	by    *manager
}

// tell notes that a gate sends a manager an outcome.
func (w *World) tell(m *manager, key string, c *simulated.Call) {
	if !w.plan.Has(Centres) || c.Op != "commit" && c.Op != "reject" {
		return
	}
	if w.sentAt == nil {
		w.sentAt, w.offered = make(map[string]time.Duration), make(map[string]map[string]bool)
	}
	if _, ok := w.sentAt[c.Body]; !ok {
		w.sentAt[c.Body] = w.now()
	}
	o := outcome{manager: m.name, key: key, body: c.Body, token: c.Token}
	o.addTo(w.offered)
}

// addTo adds the outcome to sets by key.
func (o *outcome) addTo(sets map[string]map[string]bool) {
	if sets[o.key] == nil {
		sets[o.key] = make(map[string]bool)
	}
	// Answers that were cut have no body, but those of two attempts still differ.
	sets[o.key][cmp.Or(o.body, "no body, of "+o.token)] = true
}

// acknowledged notes an outcome that a manager has acknowledged or answered.
func (w *World) acknowledged(e *record, reply *api.ReserveReply) {
	if !w.plan.Has(Centres) {
		return
	}
	if !reply.State.Terminal() {
		w.gives(e, reply)
		return
	}
	o := outcome{manager: e.m.name, key: strings.TrimPrefix(e.key, e.m.ledger()+" "), body: e.call.Body, token: e.call.Token, at: w.now(), began: time.Duration(e.at)}
	switch e.call.Op {
	case "commit", "reject":
		if r := w.upstream.runOf(o.body); r != nil {
			r.op.id = o.key
			o.by = w.decider(e.m, o.key, r.op.global)
			if o.by.forgotSince(o.began) {
				return
			}
		}
		w.outcomes = append(w.outcomes, o)
	case "reserve":
		o.body = string(reply.Result.Body)
		w.known = append(w.known, o)
	}
}

// agreeSoon checks that what was acknowledged is everywhere soon after the adversary has left.
func (w *World) agreeSoon() {
	if !w.plan.Has(Centres) {
		return
	}
	known := slices.Clone(w.outcomes)
	w.run(w.now() + w.plan.healingBound())
	for name, v := range w.views() {
		w.checkKept(name, v, known)
	}
}

// agree checks, when no request is under way any more, that all data centres hold the same.
func (w *World) agree() {
	if !w.plan.Has(Centres) {
		return
	}
	w.run(w.now() + w.plan.healingBound())
	for _, m := range w.managers {
		if m.loss != nil && !m.gone {
			w.logf(m.name, "has forgotten something; others know: %v; it knows: %v", m.loss.sure(), m.forgot() != m.loss.knew)
		}
	}
	views := w.views()
	first := w.managers[0].name
	for _, name := range slices.Sorted(maps.Keys(views)) {
		v := views[name]
		w.checkKept(name, v, w.outcomes)
		for what, pair := range map[string][2]string{
			"digests": {fmt.Sprint(v.Digests), fmt.Sprint(views[first].Digests)}, "answers": {fmt.Sprint(v.Winners), fmt.Sprint(views[first].Winners)},
			"conflicts": {fmt.Sprint(v.Conflicts), fmt.Sprint(views[first].Conflicts)},
		} {
			if pair[0] != pair[1] {
				w.fail("%s and %s hold different %s:\n%s\n%s", name, first, what, pair[0], pair[1])
			}
		}
	}
	if len(w.failures) == 0 {
		w.checkConflicts(views[first])
	}
}

// views reads what all managers hold.
func (w *World) views() map[string]*simulated.View {
	all := make(map[string]*simulated.View)
	for _, m := range w.managers {
		if len(w.failures) > 0 {
			return nil
		}
		if m.gone {
			continue
		}
		if m.run == nil || !m.run.ready {
			w.fail("%s does not serve", m.name)
			return nil
		}
		w.aside(func() func() {
			v, err := m.run.manager.View(background)
			return func() {
				if err != nil {
					w.fail("%s cannot read what it holds: %v", m.name, err)
					return
				}
				all[m.name] = v
			}
		})
	}
	w.run(w.now() + time.Millisecond)
	return all
}

// checkKept checks that a data centre holds acknowledged outcomes, as the answer to retries or in a conflict.
func (w *World) checkKept(name string, v *simulated.View, outcomes []outcome) {
	for _, o := range outcomes {
		if v.Holds(o.key, o.body) || w.again(o, v) {
			continue
		}
		w.fail("%s does not hold %q, which %s has acknowledged; it answers %q, and its conflicts are %q", name, o.body, o.manager, v.Winners[o.key], v.Conflicts[o.key])
	}
}

// again reports whether the outcome is one of two that a data centre recorded because it had forgotten the first, where
// both lost: of these, one is listed.
func (w *World) again(o outcome, v *simulated.View) bool {
	return o.by != nil && o.by.disks > 0 && slices.ContainsFunc(v.Conflicts[o.key], func(r simulated.Ran) bool { return r.Origin == o.by.origin && r.Body != v.Winners[o.key] })
}

// checkConflicts checks that conflicts have what was acknowledged, and nothing that no gate sent. An outcome may be
// there whose manager and gate were both killed before it was acknowledged.
func (w *World) checkConflicts(v *simulated.View) {
	ran := make(map[string]map[string]bool)
	for i := range w.outcomes {
		if !w.again(w.outcomes[i], v) || v.Holds(w.outcomes[i].key, w.outcomes[i].body) {
			w.outcomes[i].addTo(ran)
		}
	}
	for key, bodies := range ran {
		if n := max(len(v.Conflicts[key]), 1); n < len(bodies) || n > len(w.offered[key]) {
			w.fail("%d outcomes of %q were acknowledged, %d sent, and the conflicts have %q", len(bodies), key, len(w.offered[key]), v.Conflicts[key])
		}
	}
	w.conflicts += len(v.Conflicts)
	if w.plan.Has(Expire) {
		return // an attempt after one that ran out wins over earlier outcomes
	}
	// What a data centre knows and answers does not change because work that it does itself ends later.
	for _, a := range w.known {
		for _, o := range w.outcomes {
			if o.manager == a.manager && o.key == a.key && o.body != a.body && w.sentAt[o.body] > a.at && v.Winners[o.key] == o.body {
				w.fail("%s knew of %q, and what a gate sent it later, %q, is the winner", a.manager, a.body, o.body)
			}
		}
	}
}
