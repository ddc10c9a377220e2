package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What is executed at most once although reservations end while the work's outcome is unknown.

// reservation is the pending_ttl of these tests, in seconds: it must end while they run.
const reservation = 1

// past checks, again and again, until a reservation that began before is over for certain.
func past(check func()) {
	tries := time.NewTicker(50 * time.Millisecond)
	defer tries.Stop()
	for end := time.Now().Add(3 * reservation * time.Second); time.Now().Before(end); <-tries.C {
		check()
	}
}

// begin sends a call whose work takes long, and waits until upstream works on it.
func begin(t *testing.T, s *stack, p *proxy, key string, c call) <-chan answer {
	t.Helper()
	n := s.executions(t, key)
	got := make(chan answer, 1)
	go func() {
		a, err := do(t.Context(), p, c)
		if err != nil {
			a.body = []byte(err.Error())
		}
		got <- a
	}()
	eventually(t, "the work does not begin", func() error {
		if m := s.executions(t, key); m != n+1 {
			return fmt.Errorf("%d executions", m)
		}
		return nil
	})
	return got
}

// entry is what the manager shows of a key.
type ledgerEntry struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	State string `json:"state"`
	// ExpiresIn is in milliseconds.
	ExpiresIn int64 `json:"expires_in_ms"`
}

// ledgerEntry asks the manager for the only entry of a key.
func (s *stack) ledgerEntry(t *testing.T, key string) (found ledgerEntry) {
	t.Helper()
	text, err := fetch("http://" + s.managerAddr + "/v1/ledger/entries?limit=1000")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Entries []ledgerEntry `json:"entries"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, e := range list.Entries {
		if e.Key == key {
			return e
		}
	}
	return ledgerEntry{State: "none"}
}

// awaitState waits until the manager shows a key in a state.
func (s *stack) awaitState(t *testing.T, key, state string) {
	t.Helper()
	eventually(t, "the ledger's entry", func() error {
		if e := s.ledgerEntry(t, key); e.State != state {
			return fmt.Errorf("is %s, not %s", e.State, state)
		}
		return nil
	})
}

// resolve is what an operator does about an unknown outcome.
func (s *stack) resolve(t *testing.T, key, resolution string) {
	t.Helper()
	e := s.ledgerEntry(t, key)
	target := "http://" + s.managerAddr + "/v1/ledger/entries/" + url.PathEscape(key) + "/resolve?scope=" + url.QueryEscape(e.Scope)
	resp, err := http.Post(target, "application/json", bytes.NewReader([]byte(resolution)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatalf("resolve: %s: %s, %v", resp.Status, body, err)
	}
}

// The manager is killed before the commit and stays away for longer than the reservation. A
// retry through another gate does not run again, and both gates give the first answer in
// the end.
func TestManagerAwayPastTheReservation(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		for _, c := range []struct{ name, commit, status string }{
			{"committed", "before_reply", "201"},
			{"committed late", "async", "201"},
			{"rejected", "before_reply", "422"},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, target, mode, map[string]any{
					"pending_ttl_seconds": reservation, "pending_wait_timeout": 0.2, "commit": c.commit, "manager": refusing()["manager"],
				})
				other := s.startProxy(t)
				key := newKey()
				call := pay(key, "x-demo-delay-ms", "700", "x-demo-status", c.status)
				got := begin(t, s, s.proxies[0], key, call)
				s.manager.kill()
				first := <-got
				if fmt.Sprint(first.status) != c.status {
					t.Fatalf("first call: %v", first)
				}
				past(func() {
					if err := send(t, s.proxies[0], call).sameAs(first); err != nil {
						t.Fatal("a retry through the gate that knows the answer: ", err)
					}
					wantProblem(t, other, call, 503, "manager-unavailable")
				})
				s.startManager(t)
				for _, p := range []*proxy{other, s.proxies[0]} {
					eventually(t, "the first answer does not come", func() error {
						return send(t, p, call).sameAs(first)
					})
				}
				s.wantExecutions(t, key, 1)
				s.awaitState(t, key, map[string]string{"201": "committed", "422": "rejected"}[c.status])
			})
		}
	})
}

// The work's outcome is unknown: it is not run again when its reservation is over, through
// any gate, before an operator says so.
func TestUnknownOutcomeIsNotRunAgain(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		for _, c := range []struct {
			name    string
			timeout bool
			cause   func(t *testing.T, s *stack, key string)
		}{
			{"upstream drops the connection", false, func(t *testing.T, s *stack, key string) {
				if a := send(t, s.proxies[0], pay(key, "x-demo-drop", "after")); a.status != 503 {
					t.Fatalf("%v", a)
				}
			}},
			{"upstream takes too long", true, func(t *testing.T, s *stack, key string) {
				if a := send(t, s.proxies[0], pay(key, "x-demo-delay-ms", "60000")); a.status != 504 {
					t.Fatalf("%v", a)
				}
			}},
			{"the client leaves", false, func(t *testing.T, s *stack, key string) {
				req, err := pay(key, "x-demo-delay-ms", "60000").request(t.Context(), s.proxies[0])
				if err != nil {
					t.Fatal(err)
				}
				conn := dial(t, s.proxies[0])
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
			}},
			{"the gate is killed", false, func(t *testing.T, s *stack, key string) {
				begin(t, s, s.proxies[0], key, pay(key, "x-demo-delay-ms", "60000"))
				s.proxies[0].kill()
				s.proxies = s.proxies[1:]
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: map[string]any{
					"pending_ttl_seconds": reservation, "pending_wait_timeout": 0.2, "client_abort": "cancel",
				}}
				if c.timeout {
					s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
						for _, host := range hcm.GetRouteConfig().GetVirtualHosts() {
							for _, route := range host.GetRoutes() {
								if r := route.GetRoute(); r != nil {
									r.Timeout = durationpb.New(time.Second)
								}
							}
						}
						return nil
					}
				}
				s.stopAtEnd(t)
				s.startManager(t)
				s.startPayments(t)
				s.startProxy(t)
				s.edit = nil
				s.startProxy(t)
				key := newKey()
				c.cause(t, s, key)
				s.awaitState(t, key, "unknown")
				past(func() {
					for _, p := range s.proxies {
						wantProblem(t, p, pay(key), 409, "outcome-unknown")
					}
				})
				s.wantExecutions(t, key, 1)
				s.resolve(t, key, `{"as":"released"}`)
				first := eventuallyPaid(t, "it does not run again", s.proxies[len(s.proxies)-1], key) // which has no short timeout
				wantReplay(t, s.proxies[0], pay(key), first)
				s.wantExecutions(t, key, 2)
			})
		}
	})
}

// The work takes several times as long as a reservation: its retries, through the same gate and
// another, never run beside it.
func TestSlowWorkKeepsItsReservation(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		// A machine that stands still for less than 6 s misses no renewal.
		s := newStack(t, target, mode, map[string]any{"pending_ttl_seconds": 9, "pending_wait_timeout": 0.1})
		other := s.startProxy(t)
		key := newKey()
		c := pay(key, "x-demo-delay-ms", "22000")
		got := begin(t, s, s.proxies[0], key, c)
		var first answer
		for first.status == 0 {
			select {
			case first = <-got:
			case <-time.After(200 * time.Millisecond):
				for _, p := range s.proxies {
					if a := send(t, p, c); !a.replayed() && a.headers.Get("Idempotency-Status") != "request-pending" {
						t.Errorf("a retry got %v", a)
					}
				}
			}
		}
		wantReplay(t, s.proxies[0], c, first)
		wantReplay(t, other, c, first)
		s.wantExecutions(t, key, 1)
	})
}
