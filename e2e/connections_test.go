package e2e

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Calls of many requests that go to the manager as one batch, and what happens to them when the batch fails.

const together = 64 // requests whose calls are ready in one turn of the proxy's loop

// cutBatch gives a part of the manager's answer, as parts says, and closes the connection.
func cutBatch(part func(answer []byte) []byte, length func(whole, part int) int) func(net.Conn, []byte) {
	return func(c net.Conn, answer []byte) {
		some := part(answer)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n", managersHeader, api.ContentTypeRaw, length(len(answer), len(some)))
		_, _ = c.Write(some) // the proxy may leave
	}
}

func half(answer []byte) []byte { return answer[:len(answer)/2] }

// fewer leaves out the last of the answers.
func fewer(answer []byte) []byte {
	list, _ := api.ViewRawAnswers(nil, answer) // none: an answer that is too short anyway
	b := api.AppendRawAnswers(nil, max(len(list)-1, 1))
	for _, a := range list[:max(len(list)-1, 0)] {
		b = api.AppendRawAnswer(b, a.Status, a.RetryAfterSeconds, a.Body)
	}
	return b
}

func wholeLength(whole, _ int) int { return whole }
func partLength(_, part int) int   { return part }

// batchFaults are what callers of a batch get.
var batchFaults = []managerFault{
	{name: "cut by the connection's end", write: cutBatch(half, wholeLength)},
	{name: "cut by a reset", write: cutBatch(half, wholeLength), reset: true},
	{name: "cut short and whole", write: cutBatch(half, partLength)},
	{name: "one answer too few", write: cutBatch(fewer, partLength)},
	{name: "no answer", write: text(), reset: true},
	{name: "hang", write: text(), hang: true},
	{name: "502 of another", write: text("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy")},
}

// batchesRefused is the answer of a proxy that passes no batch on. The gate sends none for a while.
var batchesRefused = managerFault{name: "403 of another", write: text("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")}

// newBatchRig has a front before the manager, and a proxy of one worker.
func newBatchRig(t *testing.T, target envoyTarget, mode string) *tableRig {
	t.Helper()
	r := &tableRig{upstream: newHeldUpstream(t)}
	r.stack = &stack{dir: t.TempDir(), target: target, mode: mode, workers: 1, paymentsAddr: r.upstream.address, plugin: map[string]any{
		"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "manager": map[string]any{"timeout_ms": 10_000},
		"commit_retry": map[string]any{"initial_ms": 50, "max_ms": 200},
	}}
	r.stopAtEnd(t)
	r.startManager(t)
	r.front = newManagerFront(t, r.managerAddr)
	r.managerAddr = r.front.address
	r.startProxy(t)
	return r
}

// atOnce has the proxy find requests with new keys in one turn of its loop.
func (r *tableRig) atOnce(t *testing.T, headers ...string) (calls []call, answers *crowdAnswers) {
	t.Helper()
	p := r.proxies[0]
	for range together {
		calls = append(calls, pay(newKey(), headers...))
	}
	p.pause(t)
	answers = sendCalls(t.Context(), p, calls)
	answers.awaitSent(t, together)
	p.resume(t)
	return calls, answers
}

// The answer to a batch of reserves does not arrive, or is changed on its way. A request that is not known to be
// reserved does not run. A client that asks again is served, and each key runs once.
func TestFailedBatchRunsNothingTwice(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		r := newBatchRig(t, target, mode)
		for _, fault := range batchFaults {
			for _, carryOut := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, carried out: %v", fault.name, carryOut), func(t *testing.T) { r.failReserves(t, fault, carryOut) })
			}
		}
		t.Run(batchesRefused.name, func(t *testing.T) { newBatchRig(t, target, mode).failReserves(t, batchesRefused, false) })
	})
}

func (r *tableRig) failReserves(t *testing.T, fault managerFault, carryOut bool) {
	met, lift := r.front.fail(api.PathBatch, "", fault, carryOut)
	defer lift()
	calls, answers := r.atOnce(t)
	<-met.met
	if !fault.hang {
		lift()
	}
	answers.wg.Wait()
	lift()
	for i, c := range calls {
		if err := answers.errs[i]; err != nil {
			t.Fatal(err)
		}
		first := answers.answers[i]
		if first.status != 201 && (first.status != 503 || first.headers.Get("Idempotency-Status") != "manager-unavailable") {
			t.Fatalf("%v", first)
		}
		eventually(t, "a key stays refused", func() error {
			if a := send(t, r.proxies[0], c); a.status != 201 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		r.wantRuns(t, c, 1)
	}
	r.proxies[0].wantNoTrap(t)
}

// The same for outcomes: all clients get their answers, and the ledger gets all outcomes.
func TestBatchesOfOutcomesFail(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		for _, fault := range []managerFault{batchFaults[1], batchFaults[3], batchFaults[5], batchesRefused} { // each needs its own upstream
			t.Run(fault.name, func(t *testing.T) {
				r := newBatchRig(t, target, mode) // whose upstream holds once
				calls, answers := r.atOnce(t, "X-Hold", "yes")
				for _, c := range calls {
					r.awaitRun(t, c)
				}
				met, lift := r.front.fail(api.PathBatch, "", fault, true)
				defer lift()
				r.proxies[0].pause(t)
				r.upstream.release()
				eventually(t, "upstream does not answer", func() error {
					if n := r.upstream.answered.Load(); n < together {
						return fmt.Errorf("%d answers", n)
					}
					return nil
				})
				r.proxies[0].resume(t)
				answers.wg.Wait()
				lift()
				select {
				case <-met.met:
				default:
					t.Log("the outcomes did not go together") // as a proxy of threads may read their answers one by one
				}
				other := r.startProxy(t) // knows only what the ledger knows
				for i, c := range calls {
					if answers.errs[i] != nil || answers.answers[i].status != 201 {
						t.Fatalf("%v, %v", answers.answers[i], answers.errs[i])
					}
					eventually(t, "the ledger does not hear of the outcome", func() error {
						a := send(t, other, c)
						if err := a.sameAs(answers.answers[i]); err != nil {
							return fmt.Errorf("%w: %v", err, a)
						}
						return nil
					})
					r.wantRuns(t, c, 1)
				}
			})
		}
	})
}

// crowdOfKeys is a load of new keys on many connections to two proxies. Its clients repeat a request until it is answered.
type crowdOfKeys struct {
	mu    sync.Mutex
	first map[string]answer
	sent  []string
	stop  chan struct{}
	wg    sync.WaitGroup
}

// load begins to send; ask sends one request, and says whether it was answered for good.
func (s *stack) load(t *testing.T, ask func(key string) (answer, bool)) *crowdOfKeys {
	c := &crowdOfKeys{first: map[string]answer{}, stop: make(chan struct{})}
	for range together {
		c.wg.Go(func() {
			for t.Context().Err() == nil {
				select {
				case <-c.stop:
					return
				default:
				}
				key := newKey()
				c.mu.Lock()
				c.sent = append(c.sent, key)
				c.mu.Unlock()
				for begun := time.Now(); t.Context().Err() == nil; {
					a, ok := ask(key)
					if ok {
						c.mu.Lock()
						c.first[key] = a
						c.mu.Unlock()
						break
					}
					if time.Since(begun) > patience || a.headers.Get("Idempotency-Status") == "outcome-unknown" { // which stays so
						t.Errorf("%s is not answered after %v: %v", key, time.Since(begun), a)
						return
					}
				}
			}
		})
	}
	return c
}

// await waits until n keys are answered.
func (c *crowdOfKeys) await(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the load does not continue", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.first) < n {
			return fmt.Errorf("%d of %d keys are answered", len(c.first), n)
		}
		return nil
	})
}

func (c *crowdOfKeys) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.first)
}

// end ends the load.
func (c *crowdOfKeys) end() {
	close(c.stop)
	c.wg.Wait()
}

// wantBatches checks that calls of proxies went together.
func wantBatches(t *testing.T, proxies ...*proxy) {
	t.Helper()
	for _, p := range proxies {
		if n, err := p.metric("oncegate_gate_callout_batches_total"); err != nil || n == 0 {
			t.Errorf("%s sent %d batches, %v", p.name, n, err)
		}
	}
}

// The manager is killed again and again under batches: each key runs once, and what was answered is recorded.
func TestManagerIsKilledUnderBatches(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
		s.startProxy(t)
		c := s.load(t, func(key string) (answer, bool) {
			a, err := do(t.Context(), s.proxies[key[len(key)-1]%2], pay(key))
			return a, err == nil && a.status == 201
		})
		for range 4 {
			c.await(t, c.answered()+200)
			s.manager.kill()
			s.startManager(t)
		}
		c.await(t, c.answered()+200)
		c.end()
		wantBatches(t, s.proxies...)
		other := s.startProxy(t)
		for key, first := range c.first {
			wantReplay(t, other, pay(key), first)
			s.wantExecutions(t, key, 1)
		}
	})
}

// A proxy is killed under batches: what it had begun may have run and does not run again, and the other one serves all else.
func TestProxyIsKilledUnderBatches(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 0.2, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
		doomed, other := s.proxies[0], s.startProxy(t)
		lost := 0
		c := s.load(t, func(key string) (answer, bool) {
			a, err := do(t.Context(), doomed, pay(key))
			if err == nil && a.status == 201 {
				return a, true
			}
			a, err = do(t.Context(), other, pay(key))
			return a, err == nil && (a.status == 201 || a.headers.Get("Idempotency-Status") == "request-pending")
		})
		c.await(t, 400)
		wantBatches(t, doomed)
		doomed.kill()
		c.await(t, c.answered()+400)
		wantBatches(t, other)
		c.end()
		for key, first := range c.first {
			if first.status != 201 {
				lost++ // its gate died with it
				if n := s.executions(t, key); n > 1 {
					t.Errorf("key %s was executed %d times", key, n)
				}
				continue
			}
			wantReplay(t, other, pay(key), first)
			s.wantExecutions(t, key, 1)
		}
		if lost > together {
			t.Errorf("%d keys were lost with a proxy that had %d requests", lost, together)
		}
	})
}
