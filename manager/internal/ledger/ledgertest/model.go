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
	// Op is reserve, renew, unknown, commit, reject, release or resolve (as committed).
	// Downtime stands for time in which no manager served; no caller made it.
	Op, Key, Token string
	// Body is what a commit, reject or resolve records.
	Body string
	// TTL in milliseconds of what the call writes.
	TTL int64
	// Unknown is how long the outcome is unknown after a reservation that the call
	// makes or renews has run out, in milliseconds. 0: not at all.
	Unknown int64
	// Begin and End of the call, Unix milliseconds, rounded outwards.
	Begin, End int64
}

// Outcome is the output of an operation of Model. The zero value says that the
// answer is not known.
type Outcome struct {
	Known bool
	// Refused is "fenced", "conflict", "outcome-unknown" or "not-found"; empty: the
	// call was not refused.
	Refused string
	// State, Left (milliseconds) and Body are the answer to a reserve; State and Left
	// to a renew or unknown.
	State string
	Left  int64
	Body  string
}

type entryState struct {
	state  string // "", pending, unknown, committed, rejected
	token  string
	body   string
	lo, hi int64 // it expires at some instant in [lo, hi]
	after  int64 // for a reservation: how long its outcome is unknown after that
}

// found is an entry as a call may have found it.
type found struct {
	state string     // the entry's state at that instant
	known entryState // what is known about the entry if the call found it so
	later int64      // how long after known's expiry that of state is
}

// meet lists the entries that the call may have found.
func (s entryState) meet(c Call) []found {
	if s.state == "" {
		return []found{{known: s}}
	}
	var all []found
	add := func(f found, lo, hi int64) {
		f.known.lo, f.known.hi = max(s.lo, lo), min(s.hi, hi)
		if f.known.lo <= f.known.hi {
			all = append(all, f)
		}
	}
	add(found{state: s.state, known: s}, c.Begin+1, s.hi)
	if s.after > 0 {
		add(found{state: "unknown", known: s, later: s.after}, c.Begin+1-s.after, c.End)
	}
	add(found{known: s}, s.lo, c.End-s.after)
	return all
}

// left narrows the known expiry by the time that is left, as the answer says it.
func (f found) left(c Call, left int64) (found, bool) {
	// The answer's time was rounded up or down by at most one.
	f.known.lo = max(f.known.lo, c.Begin+left-1-f.later)
	f.known.hi = min(f.known.hi, c.End+left+1-f.later)
	return f, f.known.lo <= f.known.hi
}

// reaction is how the ledger reacts to a call.
type reaction struct {
	refused, state, body string // as in Outcome
	// next is what it writes, if anything.
	next *entryState
}

func fresh(state, token string, c Call) *entryState {
	s := &entryState{state: state, token: token, lo: c.Begin + c.TTL, hi: c.End + c.TTL + 1}
	switch state {
	case "pending":
		s.after = c.Unknown
	case "committed", "rejected":
		s.body = c.Body
	}
	return s
}

// outcomeOf is the state that a call records.
var outcomeOf = map[string]string{"commit": "committed", "reject": "rejected", "unknown": "unknown"}

// react is the table of package ledger.
func react(f found, c Call) reaction {
	own := f.known.token == c.Token
	final := f.state == "committed" || f.state == "rejected"
	switch c.Op {
	case "reserve":
		switch {
		case f.state == "":
			return reaction{state: "reserved", next: fresh("pending", c.Token, c)}
		case f.state == "unknown":
			return reaction{refused: "outcome-unknown"}
		case final:
			return reaction{state: f.state, body: f.known.body}
		case own:
			return reaction{state: "reserved"}
		}
		return reaction{state: "pending"}
	case "resolve":
		switch f.state {
		case "":
			return reaction{refused: "not-found"}
		case "unknown":
			return reaction{next: fresh("committed", f.known.token, c)}
		}
		return reaction{refused: "conflict"}
	}
	same := outcomeOf[c.Op]
	switch {
	case f.state != "" && !own:
		return reaction{refused: "fenced"}
	case f.state != "" && f.state == same && same == "unknown":
		return reaction{state: same}
	case f.state != "" && f.state == same:
		return reaction{}
	case final:
		return reaction{refused: "conflict"}
	}
	switch c.Op {
	case "renew":
		return reaction{state: "reserved", next: fresh("pending", c.Token, c)}
	case "unknown":
		return reaction{state: same, next: fresh(same, c.Token, c)}
	case "release":
		if f.state == "" {
			return reaction{}
		}
		return reaction{next: &entryState{}}
	}
	return reaction{next: fresh(same, c.Token, c)}
}

// Model is one entry of the ledger, for porcupine. Inputs are Calls on one key,
// outputs are Outcomes.
var Model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{entryState{}} },
	Step: func(state, input, output any) []any {
		s, c, o := state.(entryState), input.(Call), output.(Outcome)
		if c.Op == Downtime {
			return s.extended(c)
		}
		if o.Known {
			return explain(s, c, o)
		}
		// The call did not happen, or it happened with any outcome that changes something.
		next := []any{s}
		for _, f := range s.meet(c) {
			if r := react(f, c); r.next != nil {
				next = append(next, *r.next)
				for _, f := range kept(f, c) {
					next = append(next, f.known)
				}
			}
		}
		return next
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}).ToModel()

// Downtime is the Op of a time in which no manager served: at least from Begin to
// End, and not for MaxDowntime more.
const (
	Downtime    = "downtime"
	MaxDowntime = 60_000
)

// extended lists what may become of an entry in a downtime: a reservation that was
// alive when it began lasts longer by that.
func (s entryState) extended(c Call) []any {
	if s.state != "pending" {
		return []any{s}
	}
	longer := s
	longer.lo, longer.hi = s.lo+c.End-c.Begin, s.hi+c.End-c.Begin+MaxDowntime
	if s.lo > c.Begin {
		return []any{longer}
	}
	return []any{s, longer}
}

// kept lists what a renewal may leave of a reservation that would have lasted longer than
// the renewal asks for.
func kept(f found, c Call) []found {
	if c.Op != "renew" || f.state != "pending" {
		return nil
	}
	f.known.after, f.known.lo = c.Unknown, max(f.known.lo, c.Begin+c.TTL)
	if f.known.lo > f.known.hi {
		return nil
	}
	return []found{f}
}

// explain returns the states after a call that was answered; none when nothing
// explains the answer.
func explain(s entryState, c Call, o Outcome) []any {
	var next []any
	for _, f := range s.meet(c) {
		r := react(f, c)
		if r.refused != o.Refused || r.state != o.State || r.body != o.Body {
			continue
		}
		hasState := r.state != "" // what is left
		longer := c.Op == "renew" && f.state == "pending" && f.known.lo > c.End+c.TTL+1
		if !longer && r.next != nil && (!hasState || o.Left == c.TTL) {
			next = append(next, *r.next)
		}
		unchanged := kept(f, c)
		if r.next == nil {
			unchanged = []found{f}
		}
		for _, f := range unchanged {
			ok := true
			if hasState {
				f, ok = f.left(c, o.Left)
			}
			if ok {
				next = append(next, f.known)
			}
		}
	}
	return next
}
