package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// 50 requests with one key at once, over 2 proxies of 2 workers each that share one
// manager: one execution, 50 equal answers.
func TestConcurrentDuplicatesRunOnce(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600})
		s.startProxy(t)
		for round, headers := range [][]string{
			{"x-demo-delay-ms", "200"}, {}, {"x-demo-body-bytes", "100000"}, {"x-demo-status", "404"},
		} {
			key := newKey()
			const n = 50
			answers, errs := make([]answer, n), make([]error, n)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					<-start
					answers[i], errs[i] = do(t.Context(), s.proxies[i%2], pay(key, headers...))
				})
			}
			close(start)
			wg.Wait()
			firsts := 0
			for i := range n {
				if errs[i] != nil {
					t.Fatalf("round %d, request %d: %v", round, i, errs[i])
				}
				if err := answers[i].sameAs(answers[0]); err != nil {
					t.Errorf("round %d: answers 0 and %d: %v", round, i, err)
				}
				if !answers[i].replayed() {
					firsts++
				}
			}
			if firsts != 1 {
				t.Errorf("round %d: %d answers say that they are the first", round, firsts)
			}
			s.wantExecutions(t, key, 1)
		}
	})
}

// A small retry storm over two proxies: clients lose patience and ask again, and upstreams
// drop, delay and fail. Nothing runs twice whatever gets lost, and all whole answers to one
// key are the same.
func TestRetryStormRunsEachKeyOnce(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 0.2, "pending_ttl_seconds": 600})
		s.startProxy(t)
		const keysPerStorm, clients, tries = 20, 4, 6
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var wg sync.WaitGroup
		var mu sync.Mutex
		recorded := map[string]answer{}
		var all []string
		for k := range keysPerStorm {
			key := newKey()
			rnd := rand.New(rand.NewPCG(seed, uint64(k)))
			c := pay(key, "x-demo-delay-ms", fmt.Sprint(rnd.IntN(30)))
			switch rnd.IntN(5) {
			case 0:
				c.headers["x-demo-drop"] = "after"
			case 1:
				c.headers["x-demo-status"] = "500"
			case 2:
				c.headers["x-demo-body-bytes"] = "20000"
			}
			for i := range clients {
				rnd := rand.New(rand.NewPCG(seed, uint64(1000+k*clients+i)))
				wg.Go(func() {
					for range tries {
						// From hopeless to ample: connections are cut at every point of an exchange.
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(100)*rnd.IntN(100))*time.Millisecond/10)
						a, err := do(ctx, s.proxies[rnd.IntN(2)], c)
						cancel()
						if err != nil || a.status == 409 || a.status == 503 {
							continue // lost, still running, or upstream dropped it
						}
						mu.Lock()
						if first, ok := recorded[key]; !ok {
							recorded[key] = a
						} else if err := a.sameAs(first); err != nil {
							t.Errorf("key %s: %v", key, err)
						}
						mu.Unlock()
					}
				})
			}
			all = append(all, key)
		}
		wg.Wait()
		for _, key := range all {
			if n := s.executions(t, key); n > 1 {
				t.Errorf("key %s was executed %d times", key, n)
			}
		}
		if len(recorded) == 0 {
			t.Error("no call got an answer")
		}
	})
}
