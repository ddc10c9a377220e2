package ledgertest

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// The ledger as seen from outside by clients that have a wall clock on the same
// machine. A call happens at some instant between its begin and its end, so the
// expiry that it sets is known as an interval only; every later answer narrows
// it. A call that was cut off either happened or not.

// Call is the input of an operation of Model.
type Call struct {
	// Op is reserve, commit, reject or release.
	Op, Key, Token string
	// Body is what a commit or reject records.
	Body string
	// TTL in milliseconds that a reserve, commit or reject asks for.
	TTL int64
	// Begin and End of the call, Unix milliseconds, rounded outwards.
	Begin, End int64
}

// Outcome is the output of an operation of Model. The zero value says that the
// answer is not known.
type Outcome struct {
	Known bool
	// Refused is "fenced" or "conflict" when the call was refused so.
	Refused string
	// State, Left (milliseconds) and Body are the answer to a reserve.
	State string
	Left  int64
	Body  string
}

type entryState struct {
	state  string // "", pending, committed, rejected
	token  string
	body   string
	lo, hi int64 // it expires at some instant in [lo, hi]
}

// mayBeLive and mayBeGone tell what the call may have found.
func (s entryState) mayBeLive(c Call) bool { return s.state != "" && c.Begin < s.hi }
func (s entryState) mayBeGone(c Call) bool { return s.state == "" || c.End >= s.lo }

// seen narrows the state by the fact that the call found it alive, and with
// that much time left when left is not negative.
func (s entryState) seen(c Call, left int64) (entryState, bool) {
	s.lo = max(s.lo, c.Begin+1)
	if left >= 0 {
		// What is left was rounded up or down by at most one.
		s.lo, s.hi = max(s.lo, c.Begin+left-1), min(s.hi, c.End+left+1)
	}
	return s, s.lo <= s.hi
}

// over narrows the state by the fact that the call found it expired.
func (s entryState) over(c Call) entryState {
	s.hi = min(s.hi, c.End)
	return s
}

func fresh(state string, c Call, body string) entryState {
	return entryState{state: state, token: c.Token, body: body, lo: c.Begin + c.TTL, hi: c.End + c.TTL + 1}
}

// Model is one entry of the ledger, for porcupine. Inputs are Calls on one key,
// outputs are Outcomes.
var Model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{entryState{}} },
	Step: func(state, input, output any) []any {
		s, c, o := state.(entryState), input.(Call), output.(Outcome)
		if !o.Known {
			// It did not happen, or it did with any outcome that changes something.
			next := []any{s}
			for _, changed := range effects(s, c) {
				next = append(next, changed)
			}
			return next
		}
		return explain(s, c, o)
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}).ToModel()

// outcomeOf is the state that a call records.
var outcomeOf = map[string]string{"commit": "committed", "reject": "rejected"}

// effects are the states that a call may leave behind when it changes anything.
func effects(s entryState, c Call) []entryState {
	var next []entryState
	switch c.Op {
	case "reserve":
		if s.mayBeGone(c) {
			next = append(next, fresh("pending", c, ""))
		}
	case "commit", "reject":
		if s.mayBeGone(c) || s.mayBeLive(c) && s.state == "pending" && s.token == c.Token {
			next = append(next, fresh(outcomeOf[c.Op], c, c.Body))
		}
	case "release":
		if s.mayBeLive(c) && s.state == "pending" && s.token == c.Token {
			next = append(next, entryState{})
		}
	}
	return next
}

// explain returns the states after a call that was answered; none when nothing
// explains the answer.
func explain(s entryState, c Call, o Outcome) []any {
	var next []any
	alive := func(cond bool, left int64) {
		if narrowed, ok := s.seen(c, left); cond && s.mayBeLive(c) && ok {
			next = append(next, narrowed)
		}
	}
	own := s.token == c.Token
	final := s.state == "committed" || s.state == "rejected"
	done := outcomeOf[c.Op]
	switch {
	case c.Op == "reserve" && o.State == "reserved":
		alive(s.state == "pending" && own, o.Left)
		if s.mayBeGone(c) && o.Left == c.TTL {
			next = append(next, fresh("pending", c, ""))
		}
	case c.Op == "reserve" && o.State == "pending":
		alive(s.state == "pending" && !own, o.Left)
	case c.Op == "reserve":
		alive(final && s.state == o.State && s.body == o.Body, o.Left)
	case o.Refused == "fenced":
		alive(!own, -1)
	case o.Refused == "conflict":
		alive(own && final && s.state != done, -1)
	case c.Op == "release":
		if s.mayBeLive(c) && own && s.state == "pending" {
			next = append(next, entryState{})
		}
		if s.state == "" {
			next = append(next, s)
		} else if s.mayBeGone(c) {
			next = append(next, s.over(c))
		}
	default:
		alive(own && s.state == done, -1)
		if s.mayBeGone(c) || s.mayBeLive(c) && own && s.state == "pending" {
			next = append(next, fresh(done, c, c.Body))
		}
	}
	return next
}
