package home_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/home"
)

// Several data centres are one ledger for a global key: some order of the calls explains every answer, whichever data
// centre was asked, whatever the network did. A call without an answer may have been made or not, and later than its
// caller noticed.

type input struct{ op, key, token string }

// output is an answer: a state or a problem's code. "" stands for a call that may have been made.
type output string

// entry is what one ledger holds of a key.
type entry struct{ state, token string }

var model = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := make(map[string][]porcupine.Operation)
		for _, o := range history {
			key := o.Input.(input).key
			by[key] = append(by[key], o)
		}
		var parts [][]porcupine.Operation
		for _, p := range by {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() []any { return []any{entry{}} },
	Step: func(state, in, out any) []any {
		s := state.(entry)
		next, answer := step(s, in.(input))
		switch out.(output) {
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

func step(s entry, in input) (entry, output) {
	mine := s.token == in.token
	switch {
	case in.op == "reserve" && s.state == "":
		return entry{"pending", in.token}, "reserved"
	case in.op == "reserve" && s.state == "committed":
		return s, "committed"
	case in.op == "reserve" && mine:
		return s, "reserved"
	case in.op == "reserve":
		return s, "pending"
	case in.op == "commit" && (s.state == "" || mine):
		return entry{"committed", in.token}, "committed"
	case in.op == "release" && s.state == "":
		return s, "released"
	case !mine:
		return s, "fenced"
	case s.state == "committed":
		return s, "conflict"
	default:
		return entry{}, "released"
	}
}

// TestHistoriesOfGlobalKeys: callers at all data centres work on the same global keys while the network between these
// breaks, loses answers and repeats calls.
func TestHistoriesOfGlobalKeys(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		for round := range 4 {
			t.Run(fmt.Sprintf("%d data centres, round %d", n, round), func(t *testing.T) {
				t.Parallel()
				testHistory(t, n, rand.New(rand.NewPCG(uint64(n), uint64(round))))
			})
		}
	}
}

func testHistory(t *testing.T, n int, random *rand.Rand) {
	w := newWorld(t, n, home.Options{})
	var mu sync.Mutex // of random, ran and history
	dice := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	away := w.names[dice(n)] // cut off at times
	w.set(func(from, to string) fault {
		switch f := dice(10); {
		case (from == away || to == away) && f < 5, f == 0:
			return cut
		case f == 1 || f == 2:
			return lost
		case f == 3:
			return twice
		}
		return arrives
	})
	start := time.Now()
	ran := make(map[string]map[string]bool) // by key: the tokens that were told to run and did not give up
	var history []porcupine.Operation
	// try makes a call at one data centre until it is answered, at most often times. It records each try.
	try := func(client int, d *dc, in input, body string, often int) output {
		for range often {
			call := time.Since(start).Nanoseconds()
			a, err := d.Try(t.Context(), "POST", "/v1/ledger/"+in.op, "application/json", body)
			if err != nil {
				t.Error(err)
				return ""
			}
			answer := output(gjson.Get(a.Body, "state").String() + gjson.Get(a.Body, "code").String())
			o := porcupine.Operation{ClientId: client, Input: in, Call: call, Output: answer, Return: time.Since(start).Nanoseconds()}
			switch answer {
			case "home-unavailable":
				continue // nothing was changed
			case "home-unanswered":
				answer, o.Output, o.Return = "", output(""), 1<<62
			}
			mu.Lock()
			history = append(history, o)
			mu.Unlock()
			if answer != "" {
				return answer
			}
		}
		return ""
	}
	var callers sync.WaitGroup
	for c := range 2 * n {
		callers.Add(1)
		go func() {
			defer callers.Done()
			d := w.dcs[w.names[c%n]]
			for i := range 12 {
				key := fmt.Sprintf("key-%d", i)
				token := fmt.Sprintf("%d-%d", c, i)
				global := fmt.Sprintf(reserve, key, token)
				switch try(c, d, input{"reserve", key, token}, global, 3) {
				case "reserved":
					if dice(3) == 0 {
						try(c, d, input{"release", key, token}, fmt.Sprintf(bare, key, token), 5)
						continue
					}
					mu.Lock()
					if ran[key] == nil {
						ran[key] = make(map[string]bool)
					}
					ran[key][token] = true
					mu.Unlock()
					try(c, d, input{"commit", key, token}, fmt.Sprintf(commit, key, token), 8)
				case "":
					// As a gate does: it will not run the work, and gives back what it may have.
					try(c, d, input{"release", key, token}, global, 5)
				}
			}
		}()
	}
	callers.Wait()
	for key, tokens := range ran {
		if len(tokens) > 1 {
			t.Errorf("%s ran %d times: %v", key, len(tokens), tokens)
		}
	}
	if len(ran) == 0 {
		t.Error("nothing ran")
	}
	for _, part := range model.Partition(history) {
		if result := porcupine.CheckOperationsTimeout(model.ToModel(), part, time.Minute); result != porcupine.Ok {
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, o := range part {
				t.Logf("%d..%d client %d %+v: %q", o.Call/1000, o.Return/1000, o.ClientId, o.Input, o.Output)
			}
			t.Errorf("no order of these calls explains the answers: %s", result)
		}
	}
}
