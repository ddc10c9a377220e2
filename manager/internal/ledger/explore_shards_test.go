package ledger

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// The change of a list of shards as an explicit small model: one key that moves from one ledger to another, two gates that
// make a few attempts each, and an operator who changes lists step by step. What a ledger does with a reserve is said by
// decideReserve. All states that can be reached are looked at, the nearest first. A call may be carried out at any time
// after it was sent, and its answer may get lost; an attempt that is under way keeps the lists that its gate had when it
// began, as in a proxy that drains. No reservation runs out: what is shown is that no two ledgers hold the key at once.

const (
	giver = iota // owns the key by the old list
	taker        // owns it by the new one
)

// lists are what a gate is configured with.
type lists uint8

const (
	oldList lists = iota
	bothLists
	newList
)

// first is the ledger that an attempt asks first, next the one that it asks when that says that the key has moved; -1: nobody.
func (l lists) first() int { return [...]int{giver, giver, taker}[l] }
func (l lists) next() int  { return [...]int{-1, taker, -1}[l] }

type shardAttempt struct {
	tries    uint8
	began    lists // with which it began
	at       int8  // the ledger that it asked last
	sent     bool  // a reserve is on its way
	answer   verdict
	answered bool // there is an answer
	runs     bool // it was reserved, and works
}

type shardState struct {
	entry    [2]struct{ token, done uint8 } // of each ledger, token 0: none
	moved    [2]bool                        // the ledger has the new list
	gates    [2]lists
	attempts [2]shardAttempt
}

// shardRules may leave one out, to see what it is for.
type shardRules struct {
	managersWithoutList                               bool // nobody refuses a key
	gatesLate, previousTooShort, previousGone, goBack bool // wrong orders
}

func (s *shardState) reserve(r shardRules, at int, token uint8) verdict {
	var e *record
	if held := s.entry[at]; held.token != 0 {
		e = &record{state: api.StatePending, token: []byte{held.token}, expires: exploreNow + 1}
		if held.done != 0 {
			e.state = api.StateCommitted
		}
	}
	elsewhere := s.moved[at] == (at == giver) && !r.managersWithoutList
	v := decideReserve(e, exploreNow, string(rune(token)), "", elsewhere)
	if v == verdictInsert {
		s.entry[at].token = token
	}
	return v
}

type shardStep struct {
	what string
	to   shardState
}

func (s shardState) steps(r shardRules) (all []shardStep) {
	add := func(what string, change func(*shardState)) {
		to := s
		change(&to)
		all = append(all, shardStep{what, to})
	}
	// The operator.
	for g := range s.gates {
		if s.gates[g] == oldList {
			add("gate gets both lists", func(to *shardState) { to.gates[g] = bothLists })
			if r.previousGone {
				add("gate gets the new list alone", func(to *shardState) { to.gates[g] = newList })
			}
		}
		if s.gates[g] == bothLists && s.moved == [2]bool{true, true} && (s.entry[giver].token == 0 || r.previousTooShort) {
			add("gate forgets the old list", func(to *shardState) { to.gates[g] = newList })
		}
	}
	if !s.moved[taker] {
		add("taker gets the list", func(to *shardState) { to.moved[taker] = true })
	}
	if !s.moved[giver] && (s.gates[0] != oldList && s.gates[1] != oldList || r.gatesLate) {
		add("giver gets the list", func(to *shardState) { to.moved[giver] = true })
	}
	if s.moved[giver] && r.goBack {
		add("giver goes back", func(to *shardState) { to.moved[giver] = false })
	}
	// Time: an outcome is forgotten, and the key may run again.
	for l := range s.entry {
		if s.entry[l].done != 0 {
			add("an outcome is forgotten", func(to *shardState) { to.entry[l].token, to.entry[l].done = 0, 0 })
		}
	}
	for g := range s.attempts {
		a, token := s.attempts[g], uint8(g)*8+s.attempts[g].tries
		switch {
		case a.runs:
			add("it commits", func(to *shardState) {
				to.entry[a.at].done = 1
				to.attempts[g] = shardAttempt{tries: a.tries}
			})
			add("nothing ran, it releases", func(to *shardState) {
				to.entry[a.at].token = 0
				to.attempts[g] = shardAttempt{tries: a.tries}
			})
		case a.answered:
			add("the answer is lost", func(to *shardState) { to.attempts[g].answered, to.attempts[g].sent = false, true })
			add("the answer comes", func(to *shardState) {
				n := &to.attempts[g]
				n.answered = false
				switch a.answer {
				case verdictInsert, verdictOwn:
					n.runs = true
				case verdictMoved:
					if next := a.began.next(); next >= 0 && int(a.at) != next {
						n.at, n.sent = int8(next), true
						return
					}
					*n = shardAttempt{tries: a.tries} // 503
				default:
					*n = shardAttempt{tries: a.tries} // 409, or the recorded answer
				}
			})
		case a.sent:
			add("a reserve is carried out", func(to *shardState) {
				n := &to.attempts[g]
				n.sent, n.answered, n.answer = false, true, to.reserve(r, int(a.at), token)
			})
		case a.tries < 2:
			add("an attempt begins", func(to *shardState) {
				began := s.gates[g]
				to.attempts[g] = shardAttempt{tries: a.tries + 1, began: began, at: int8(began.first()), sent: true}
			})
		}
	}
	return all
}

// explore returns the shortest way to a state in which both ledgers hold the key, and how many states there are.
func (r shardRules) explore() (way []string, states int) {
	type origin struct {
		from shardState
		what string
	}
	start := shardState{}
	seen := map[shardState]origin{start: {}}
	for queue := []shardState{start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if s.entry[giver].token != 0 && s.entry[taker].token != 0 {
			for s != start {
				way = append([]string{seen[s].what}, way...)
				s = seen[s].from
			}
			return way, len(seen)
		}
		for _, step := range s.steps(r) {
			if _, ok := seen[step.to]; !ok {
				seen[step.to] = origin{s, step.what}
				queue = append(queue, step.to)
			}
		}
	}
	return nil, len(seen)
}

// With the steps in their order no two ledgers hold a key at once, and managers that get the list before
// the gates do no harm either. Each rule that is left out does.
func TestNoTwoLedgersHoldAKey(t *testing.T) {
	for name, r := range map[string]shardRules{"in order": {}, "managers before gates": {gatesLate: true}} {
		way, states := r.explore()
		t.Logf("%s: %d states", name, states)
		if way != nil || states < 1000 {
			t.Errorf("%s: %d states; both ledgers hold the key after:\n%s", name, states, strings.Join(way, "\n"))
		}
	}
	for name, r := range map[string]shardRules{
		"managers without a list":               {managersWithoutList: true},
		"previous_shards too short":             {previousTooShort: true},
		"no previous_shards":                    {previousGone: true},
		"a manager that goes back to old lists": {goBack: true},
	} {
		way, _ := r.explore()
		t.Logf("%s:\n%s", name, strings.Join(way, "\n"))
		if way == nil {
			t.Errorf("%s: it does no harm, so what is the rule for?", name)
		}
	}
}
