package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
)

// The manager is killed after a commit and restarted, the proxy restarted with an empty
// cache: the retry is answered from the write-ahead log.
func TestCommitSurvivesAManagerCrash(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, nil)
		key, refused := newKey(), newKey()
		first := wantFirst(t, s.proxies[0], pay(key), 201)
		no := wantFirst(t, s.proxies[0], pay(refused, "x-demo-status", "404"), 404)
		s.manager.kill()
		s.proxies[0].spend()
		if err := s.proxies[0].stop(); err != nil {
			t.Error(err)
		}
		s.startManager(t)
		p := s.startProxy(t)
		wantReplay(t, p, pay(key), first)
		wantReplay(t, p, pay(refused, "x-demo-status", "404"), no)
		s.wantExecutions(t, key, 1)
		s.wantExecutions(t, refused, 1)
	})
}

// While the manager is away, nothing runs and the client learns when to come back. When it is
// back, the same key works. The proxy replays what it has cached all the time.
func TestNothingRunsWhileTheManagerIsAway(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, refusing())
		p := s.proxies[0]
		cached, key := newKey(), newKey()
		first := wantFirst(t, p, pay(cached), 201)
		s.manager.kill()
		a := wantProblem(t, p, pay(key), 503, "manager-unavailable")
		if n, err := strconv.Atoi(a.headers.Get("Retry-After")); err != nil || n < 1 {
			t.Errorf("Retry-After: %q", a.headers.Get("Retry-After"))
		}
		s.wantExecutions(t, key, 0)
		wantReplay(t, p, pay(cached), first)
		s.startManager(t)
		second := eventuallyPaid(t, "the manager is back, the key is not", p, key)
		wantReplay(t, p, pay(key), second)
		s.wantExecutions(t, key, 1)
	})
}

// The manager is stopped, with its connections open. New keys are refused within the time of a
// call, and cached answers are replayed. The calls that it got meanwhile block nothing once it runs again.
func TestManagerStandsStill(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{
			// The reservation would outlast the test's patience.
			"manager": map[string]any{"timeout_ms": 1000}, "pending_ttl_seconds": 600, "pending_wait_timeout": 600,
		})
		p := s.proxies[0]
		cached, key := newKey(), newKey()
		first := eventuallyPaid(t, "a busy manager does not answer in time", p, cached)
		s.manager.pause(t)
		wantProblem(t, p, pay(key), 503, "manager-unavailable")
		wantReplay(t, p, pay(cached), first)
		s.wantExecutions(t, key, 0)
		s.manager.resume(t)
		second := eventuallyPaid(t, "the manager continues, the key does not", p, key)
		wantReplay(t, p, pay(key), second)
		s.wantExecutions(t, key, 1)
	})
}

// The manager goes away while upstream works. The client gets its answer, and the outcome
// reaches the ledger once the manager is back.
func TestManagerLeavesBeforeTheCommit(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_ttl_seconds": 600, "commit_retry": map[string]any{"initial_ms": 50, "max_ms": 200}})
		key := newKey()
		c := pay(key, "x-demo-delay-ms", "500")
		got := make(chan error, 1)
		var first answer
		go func() {
			var err error
			first, err = do(t.Context(), s.proxies[0], c)
			got <- err
		}()
		eventually(t, "the work does not begin", func() error {
			if n := s.executions(t, key); n != 1 {
				return fmt.Errorf("%d executions", n)
			}
			return nil
		})
		s.manager.kill()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if first.status != 201 {
			t.Fatalf("first call: %v", first)
		}
		s.startManager(t)
		// Another proxy knows the outcome only from the manager.
		p := s.startProxy(t)
		eventually(t, "the outcome does not reach the ledger", func() error {
			a := send(t, p, c)
			if err := a.sameAs(first); err != nil {
				return err
			}
			return nil
		})
		s.wantExecutions(t, key, 1)
	})
}

// The client's connection breaks while it reads the answer: its retry gets that answer.
func TestClientLosesTheAnswer(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		for _, size := range []int{0, 300000} {
			key := newKey()
			c := pay(key, "x-demo-body-bytes", strconv.Itoa(size))
			req, err := c.request(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, p)
			if err := req.Write(conn); err != nil {
				t.Fatal(err)
			}
			// In headers mode only the end of the answer waits for the commit, so all of it is
			// awaited there; in body mode its first byte will do.
			if mode == "headers" {
				resp, err := http.ReadResponse(bufio.NewReader(conn), req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				if err != nil {
					t.Fatal(err)
				}
			} else if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			a := send(t, p, c)
			if a.status != 201 || !a.replayed() || len(a.body) < size {
				t.Errorf("retry: %v", a)
			}
			s.wantExecutions(t, key, 1)
		}
	})
}

// The client leaves while upstream works. If the router carries the request, that ends it, and its
// outcome is unknown. A retry gets that answer and does not run the work again. If the gate carries the
// request, the work continues.
func TestClientLeavesWhileUpstreamWorks(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := pay(key, "x-demo-delay-ms", "60000")
		req, err := c.request(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		conn := dial(t, p)
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the work does not begin", func() error {
			if n := s.executions(t, key); n != 1 {
				return fmt.Errorf("%d executions", n)
			}
			return nil
		})
		conn.Close()
		// In headers mode the proxy may take a moment to see that the client has left.
		want := map[string]string{"body": "request-pending", "headers": "outcome-unknown"}[mode]
		eventually(t, "the retry does not get that answer", func() error {
			a := send(t, p, c)
			code, back := a.headers.Get("Idempotency-Status"), a.headers.Get("Retry-After") != ""
			if a.status != 409 || !(code == "outcome-unknown" && !back || code == "request-pending" && back) {
				t.Errorf("%v", a)
			}
			if code != want && code != "outcome-unknown" {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.wantExecutions(t, key, 1)
	})
}

// The client leaves in the middle of its request: nothing ran, and the retry runs.
func TestClientLeavesBeforeItHasSentAll(t *testing.T) {
	// In headers mode the request goes to upstream before it is complete. Whether the work ran is unknown to a proxy.
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		s := sharedStack(t, target, "body")
		p := s.proxies[0]
		key := newKey()
		conn := dial(t, p)
		fmt.Fprintf(conn, "POST /payments HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 15\r\nIdempotency-Key: %s\r\n\r\n{\"amou", host, key)
		conn.Close()
		first := wantFirst(t, p, pay(key), 201)
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)
	})
}

// Upstream closes the connection instead of answering. It is unknown whether the work ran, so
// it does not run again.
func TestUpstreamDropsTheConnection(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		for drop, executions := range map[string]int{"before": 0, "after": 1} {
			key := newKey()
			c := pay(key, "x-demo-drop", drop)
			if a := send(t, p, c); a.status != 503 || a.replayed() {
				t.Errorf("%s: %v", drop, a)
			}
			wantProblem(t, p, c, 409, "outcome-unknown")
			// The retry that would succeed is held off as well.
			wantProblem(t, p, pay(key), 409, "outcome-unknown")
			s.wantExecutions(t, key, executions)
		}
	})
}

// An outcome that stays unknown is forgotten in the end: then the key is free.
func TestUnknownOutcomeEndsByItsTTL(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{
			"pending_wait_timeout": 0.1, "unknown_ttl_seconds": 2,
			// As it was before there were unknown outcomes: it counts as long as the reservation.
			"match": []any{map[string]any{"path": "/payments/0", "pending_ttl_seconds": 2, "unknown_ttl_seconds": 0}, map[string]any{}},
		})
		p := s.proxies[0]
		for path, code := range map[string]string{"/payments": "outcome-unknown", "/payments/0": "request-pending"} {
			key := newKey()
			c := pay(key, "x-demo-drop", "before")
			c.path = path
			if a := send(t, p, c); a.status != 503 {
				t.Fatalf("%v", a)
			}
			if a := send(t, p, c); a.status != 503 && a.headers.Get("Idempotency-Status") != code {
				t.Errorf("%s: %v", path, a)
			}
			delete(c.headers, "x-demo-drop")
			var first answer
			eventually(t, "the key does not get free", func() error {
				if first = send(t, p, c); first.status != 201 {
					return fmt.Errorf("%v", first)
				}
				return nil
			})
			wantReplay(t, p, c, first)
			s.wantExecutions(t, key, 1)
		}
	})
}

// Upstream is not there. Nothing can have run, so the key is free immediately.
func TestKeyIsFreeWhenTheUpstreamIsAway(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 0.1, "pending_ttl_seconds": 600})
		p := s.proxies[0]
		key := newKey()
		s.payments.kill()
		for range 2 {
			if a := sendFree(t, p, pay(key)); a.status != 503 || a.replayed() {
				t.Errorf("%v", a)
			}
		}
		s.startPayments(t)
		first := sendFree(t, p, pay(key))
		if first.status != 201 || first.replayed() {
			t.Fatalf("%v", first)
		}
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)
	})
}

// The proxy is killed while upstream works: another one does not run the work again, and
// its duplicates do not wait forever.
func TestWorkOfACrashedProxyIsNotRepeated(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 0.3, "pending_ttl_seconds": 600})
		key := newKey()
		c := pay(key, "x-demo-delay-ms", "60000")
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if a, err := do(t.Context(), s.proxies[0], c); err == nil {
				t.Errorf("an answer from a proxy that was killed: %v", a)
			}
		})
		eventually(t, "the work does not begin", func() error {
			if n := s.executions(t, key); n != 1 {
				return fmt.Errorf("%d executions", n)
			}
			return nil
		})
		p := s.startProxy(t)
		s.proxies[0].kill()
		wantProblem(t, p, c, 409, "request-pending")
		s.wantExecutions(t, key, 1)
	})
}
