package ledgertest

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// Model refuses histories with a wrong answer.
func TestModelRefusesWrongAnswers(t *testing.T) {
	at := func(i int, c Call, o Outcome) porcupine.Operation {
		c.Begin, c.End = int64(i)*100, int64(i)*100+10
		return porcupine.Operation{ClientId: i, Input: c, Output: o, Call: int64(2 * i), Return: int64(2*i + 1)}
	}
	reserve := Call{Op: "reserve", Token: "t1", TTL: 10_000}
	other := Call{Op: "reserve", Token: "t2", TTL: 10_000}
	commit := Call{Op: "commit", Token: "t1", Body: "b", TTL: 10_000}
	reserved := Outcome{Known: true, State: "reserved", Left: 10_000}
	ok := Outcome{Known: true}
	replay := func(left int64) Outcome {
		return Outcome{Known: true, State: "committed", Body: "b", Left: left}
	}
	holds := reserve
	holds.Unknown = 5_000
	renew := Call{Op: "renew", Token: "t1", TTL: 10_000, Unknown: 5_000}
	resolve := Call{Op: "resolve", Token: "t3", Body: "r", TTL: 10_000}
	refused := func(how string) Outcome { return Outcome{Known: true, Refused: how} }
	for _, c := range []struct {
		what string
		ops  []porcupine.Operation
		want bool
	}{
		{"in order", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, ok), at(2, other, replay(9_900))}, true},
		{"a commit was lost", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, ok), at(2, other, reserved)}, false},
		{"a reservation was lost", []porcupine.Operation{at(0, reserve, reserved), at(1, other, reserved)}, false},
		{"a cut off commit did not happen", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, Outcome{}), at(2, commit, ok)}, true},
		{"a cut off commit did happen", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, Outcome{}), at(2, other, replay(9_900))}, true},
		{"it came and went", []porcupine.Operation{
			at(0, reserve, reserved), at(1, commit, Outcome{}), at(2, other, replay(9_900)), at(3, reserve, reserved),
		}, false},
		{"it expired", []porcupine.Operation{at(0, reserve, reserved), at(101, other, reserved)}, true},
		{"it expired too early", []porcupine.Operation{at(0, reserve, reserved), at(99, other, reserved)}, false},
		{"another body", []porcupine.Operation{at(0, reserve, reserved), at(1, Call{Op: "commit", Token: "t1", Body: "c", TTL: 10_000}, ok), at(2, other, replay(9_900))}, false},
		{"the time left grew", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, ok), at(2, other, replay(12_000))}, false},
		{"the outcome is unknown", []porcupine.Operation{
			at(0, holds, reserved), at(101, other, refused("outcome-unknown")), at(152, other, reserved),
		}, true},
		{"a key whose outcome is unknown came free", []porcupine.Operation{at(0, holds, reserved), at(101, other, reserved)}, false},
		{"it was unknown too early", []porcupine.Operation{at(0, holds, reserved), at(99, other, refused("outcome-unknown"))}, false},
		{"it was unknown too long", []porcupine.Operation{at(0, holds, reserved), at(152, other, refused("outcome-unknown"))}, false},
		{"the late outcome counts", []porcupine.Operation{
			at(0, holds, reserved), at(101, other, refused("outcome-unknown")), at(110, commit, ok), at(111, other, replay(9_900)),
		}, true},
		{"a renewal held it", []porcupine.Operation{
			at(0, holds, reserved), at(90, renew, reserved), at(180, other, Outcome{Known: true, State: "pending", Left: 1_000}),
		}, true},
		{"a renewal was lost", []porcupine.Operation{
			at(0, holds, reserved), at(90, renew, reserved), at(180, other, refused("outcome-unknown")),
		}, false},
		{"a renewal shortened it", []porcupine.Operation{
			at(0, holds, reserved), at(10, Call{Op: "renew", Token: "t1", TTL: 1_000}, Outcome{Known: true, State: "reserved", Left: 1_000}),
		}, false},
		{"a short renewal changed nothing but what comes after", []porcupine.Operation{
			at(0, holds, reserved), at(10, Call{Op: "renew", Token: "t1", TTL: 1_000}, Outcome{Known: true, State: "reserved", Left: 9_000}),
			at(101, other, reserved),
		}, true},
		{"it was resolved", []porcupine.Operation{
			at(0, holds, reserved), at(101, resolve, ok), at(102, other, Outcome{Known: true, State: "committed", Body: "r", Left: 9_900}),
		}, true},
		{"a reservation that held was resolved", []porcupine.Operation{at(0, holds, reserved), at(99, resolve, ok)}, false},
		{"fenced without a rival", []porcupine.Operation{at(0, reserve, reserved), at(1, commit, Outcome{Known: true, Refused: "fenced"})}, false},
	} {
		if got := porcupine.CheckOperations(Model, c.ops); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
