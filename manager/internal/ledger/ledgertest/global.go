package ledgertest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Several data centres are one ledger for a global key: some order of the calls explains every answer, whichever data
// centre was asked, whatever the network did. Nothing expires meanwhile.

// GlobalCall is a call about a global key. Op is reserve, renew, unknown, commit, reject or release.
type GlobalCall struct{ Op, Key, Token string }

// GlobalAnswer is a state or a problem's code. "" stands for a call that may have been made, perhaps later than its caller
// noticed: its operation then returns at the end of time.
type GlobalAnswer string

// CheckGlobal judges a history of GlobalCalls and GlobalAnswers.
func CheckGlobal(t testing.TB, history []porcupine.Operation) {
	t.Helper()
	for _, part := range global.Partition(history) {
		if result := porcupine.CheckOperationsTimeout(global.ToModel(), part, time.Minute); result != porcupine.Ok {
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, o := range part {
				t.Logf("%d..%d client %d %+v: %q", o.Call/1000, o.Return/1000, o.ClientId, o.Input, o.Output)
			}
			t.Errorf("no order of these calls explains the answers: %s", result)
		}
	}
}

// globalEntry is what the data centres together hold of a key.
type globalEntry struct{ state, token string }

var global = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		by := make(map[string][]porcupine.Operation)
		for _, o := range history {
			key := o.Input.(GlobalCall).Key
			by[key] = append(by[key], o)
		}
		for _, p := range by {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() []any { return []any{globalEntry{}} },
	Step: func(state, in, out any) []any {
		s := state.(globalEntry)
		next, answer := s.react(in.(GlobalCall))
		switch out.(GlobalAnswer) {
		case answer:
			return []any{next}
		case "":
			return []any{next, s}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string {
		return fmt.Sprintf("%+v: %s", in, out)
	},
}

// react is that of Model, without expiry. An answer without a state of its own is that of the call.
func (s globalEntry) react(in GlobalCall) (globalEntry, GlobalAnswer) {
	r := react(found{state: s.state, known: entryState{token: s.token}}, Call{Op: in.Op, Token: in.Token})
	if r.next != nil {
		s = globalEntry{r.next.state, r.next.token}
	}
	return s, GlobalAnswer(cmp.Or(r.refused, r.state, outcomeOf[in.Op], "released"))
}
