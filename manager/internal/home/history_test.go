package home_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
)

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
	try := func(client int, d *dc, in ledgertest.GlobalCall, body string, often int) ledgertest.GlobalAnswer {
		for range often {
			call := time.Since(start).Nanoseconds()
			a, err := d.Try(t.Context(), "POST", "/v1/ledger/"+in.Op, "application/json", body)
			if err != nil {
				t.Error(err)
				return ""
			}
			answer := ledgertest.GlobalAnswer(gjson.Get(a.Body, "state").String() + gjson.Get(a.Body, "code").String())
			o := porcupine.Operation{ClientId: client, Input: in, Call: call, Output: answer, Return: time.Since(start).Nanoseconds()}
			switch answer {
			case "home-unavailable":
				continue // nothing was changed
			case "home-unanswered":
				answer, o.Output, o.Return = "", ledgertest.GlobalAnswer(""), 1<<62
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
				switch try(c, d, ledgertest.GlobalCall{Op: "reserve", Key: key, Token: token}, global, 3) {
				case "reserved":
					if dice(3) == 0 {
						try(c, d, ledgertest.GlobalCall{Op: "release", Key: key, Token: token}, fmt.Sprintf(bare, key, token), 5)
						continue
					}
					mu.Lock()
					if ran[key] == nil {
						ran[key] = make(map[string]bool)
					}
					ran[key][token] = true
					mu.Unlock()
					try(c, d, ledgertest.GlobalCall{Op: "commit", Key: key, Token: token}, fmt.Sprintf(commit, key, token), 8)
				case "":
					// As a gate does: it will not run the work, and gives back what it may have.
					try(c, d, ledgertest.GlobalCall{Op: "release", Key: key, Token: token}, global, 5)
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
	ledgertest.CheckGlobal(t, history)
}
