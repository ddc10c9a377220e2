package main

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/api"
)

// The ledger as seen from outside by clients that have a wall clock on the same
// machine. A call happens at some instant between its begin and its end, so the
// expiry that it sets is known as an interval only; every later answer narrows
// it. A call that was cut off either happened or not.

type call struct {
	op         string // reserve, commit, reject, release
	key        string
	token      string
	body       string
	ttl        int64 // ms
	begin, end int64 // Unix ms, rounded outwards
}

type outcome struct {
	known   bool
	status  int
	state   string // of a reserve
	left    int64  // ms, of a reserve
	body    string // of a reserve that was answered with a result
	problem string
}

type entryState struct {
	state  string // "", pending, committed, rejected
	token  string
	body   string
	lo, hi int64 // it expires at some instant in [lo, hi]
}

// mayBeLive and mayBeGone tell what the call may have found.
func (s entryState) mayBeLive(c call) bool { return s.state != "" && c.begin < s.hi }
func (s entryState) mayBeGone(c call) bool { return s.state == "" || c.end >= s.lo }

// seen narrows the state by the fact that the call found it alive, and with
// that much time left when left is not negative.
func (s entryState) seen(c call, left int64) (entryState, bool) {
	s.lo = max(s.lo, c.begin+1)
	if left >= 0 {
		// What is left was rounded up or down by at most one.
		s.lo, s.hi = max(s.lo, c.begin+left-1), min(s.hi, c.end+left+1)
	}
	return s, s.lo <= s.hi
}

// over narrows the state by the fact that the call found it expired.
func (s entryState) over(c call) entryState {
	s.hi = min(s.hi, c.end)
	return s
}

func fresh(state string, c call, body string) entryState {
	return entryState{state: state, token: c.token, body: body, lo: c.begin + c.ttl, hi: c.end + c.ttl + 1}
}

var entryModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{entryState{}} },
	Step: func(state, input, output any) []any {
		s, c, o := state.(entryState), input.(call), output.(outcome)
		if !o.known {
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
func effects(s entryState, c call) []entryState {
	var next []entryState
	switch c.op {
	case "reserve":
		if s.mayBeGone(c) {
			next = append(next, fresh("pending", c, ""))
		}
	case "commit", "reject":
		if s.mayBeGone(c) || s.mayBeLive(c) && s.state == "pending" && s.token == c.token {
			next = append(next, fresh(outcomeOf[c.op], c, c.body))
		}
	case "release":
		if s.mayBeLive(c) && s.state == "pending" && s.token == c.token {
			next = append(next, entryState{})
		}
	}
	return next
}

// explain returns the states after a call that was answered; none when nothing
// explains the answer.
func explain(s entryState, c call, o outcome) []any {
	var next []any
	alive := func(cond bool, left int64) {
		if narrowed, ok := s.seen(c, left); cond && s.mayBeLive(c) && ok {
			next = append(next, narrowed)
		}
	}
	own := s.token == c.token
	final := s.state == "committed" || s.state == "rejected"
	done := outcomeOf[c.op]
	switch {
	case c.op == "reserve" && o.state == "reserved":
		alive(s.state == "pending" && own, o.left)
		if s.mayBeGone(c) && o.left == c.ttl {
			next = append(next, fresh("pending", c, ""))
		}
	case c.op == "reserve" && o.state == "pending":
		alive(s.state == "pending" && !own, o.left)
	case c.op == "reserve":
		alive(final && s.state == o.state && s.body == o.body, o.left)
	case o.problem == string(api.CodeFenced):
		alive(!own, -1)
	case o.problem == string(api.CodeConflict):
		alive(own && final && s.state != done, -1)
	case c.op == "release" && o.status == 200:
		if s.mayBeLive(c) && own && s.state == "pending" {
			next = append(next, entryState{})
		}
		if s.state == "" {
			next = append(next, s)
		} else if s.mayBeGone(c) {
			next = append(next, s.over(c))
		}
	case o.status == 200:
		alive(own && s.state == done, -1)
		if s.mayBeGone(c) || s.mayBeLive(c) && own && s.state == "pending" {
			next = append(next, fresh(done, c, c.body))
		}
	}
	return slices.Clip(next)
}
