package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Clients that leave while upstream works (client_abort: continue).

// inner are the fields that make requests outlive their clients in an Envoy, which has the routes in an inner listener; routes
// that are direct there do not need it.
var inner = map[string]any{"client_abort": "continue", "upstream": map[string]any{"cluster": "oncegate_routes", "timeout_ms": 60000}}

// eachWay runs a scenario in each way that an Envoy has to carry requests, divided as by eachEnvoy; plugin is a copy.
func eachWay(t *testing.T, scenario func(t *testing.T, target envoyTarget, plugin map[string]any)) {
	t.Helper()
	t.Parallel()
	for _, c := range cells(t, "inner listener", "direct") {
		t.Run(c.target.Name()+"/"+c.mode, func(t *testing.T) {
			t.Parallel()
			if c.mode == "direct" {
				c.target.way = onlyDirect
			}
			scenario(t, c.target, with(inner))
		})
	}
}

// with merges fields of the filter's configuration.
func with(fields ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, f := range fields {
		for k, v := range f {
			all[k] = v
		}
	}
	return all
}

// impatient sends a call and leaves after that time. It reports whether there was an answer.
func impatient(t *testing.T, p *proxy, c call, timeout time.Duration) (answer, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	a, err := do(ctx, p, c)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return a, err == nil
}

// leaveWhileItRuns sends a payment that takes long and leaves once it runs.
func (s *stack) leaveWhileItRuns(t *testing.T, p *proxy, c call) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = do(ctx, p, c)
	}()
	eventually(t, "the work does not begin", func() error {
		if n := s.executions(t, *c.key); n != 1 {
			return fmt.Errorf("%d executions", n)
		}
		return nil
	})
	leave()
	<-left
}

// The commonest loss of all: the client gives up after a second, the work takes longer, and the client tries again with
// the same key. It gets the answer of the one execution.
func TestClientTimesOutAndTriesAgain(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", plugin)
		here, there := s.proxies[0], s.startProxy(t)
		for name, p := range map[string]*proxy{"the same gate": here, "another gate": there} {
			key := newKey()
			c := pay(key, "x-demo-delay-ms", "2500")
			if a, ok := impatient(t, here, c, time.Second); ok {
				t.Fatalf("the first try was answered: %v", a)
			}
			var got answer
			answered := false
			for try := 0; try < 4 && !answered; try++ {
				got, answered = impatient(t, p, c, time.Second)
			}
			if !answered {
				// Four tries were over before a busy machine had done the work.
				got = send(t, p, c)
			}
			if got.status != 201 || !got.replayed() {
				t.Errorf("through %s: %v", name, got)
			}
			s.wantExecutions(t, key, 1)
		}
	})
}

// With cancel the answer of the work that ran is lost to every client. continue exists to avoid that.
func TestCancelLosesTheAnswer(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		s := newStack(t, target, "body", map[string]any{"client_abort": "cancel", "wait_for_pending": false})
		c := pay(newKey(), "x-demo-delay-ms", "60000")
		s.leaveWhileItRuns(t, s.proxies[0], c)
		eventually(t, "the request is not cancelled", func() error {
			if a := send(t, s.proxies[0], c); a.status != 409 || a.headers.Get("Idempotency-Status") != "outcome-unknown" {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.wantExecutions(t, *c.key, 1)
	})
}

// The work outlasts its reservation, and the client returns when both are over.
func TestClientReturnsAfterTheReservation(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", with(plugin, map[string]any{"pending_ttl_seconds": 0.5, "pending_wait_timeout": 0.2}))
		p, c := s.proxies[0], pay(newKey(), "x-demo-delay-ms", "2000")
		s.leaveWhileItRuns(t, p, c)
		eventually(t, "the answer is not recorded", func() error {
			if a := send(t, p, c); a.status != 201 || !a.replayed() {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.wantExecutions(t, *c.key, 1)
	})
}

// A call that upstream does not answer in time, or that is cut, may have run: no retry runs it.
func TestCarriedCallWithoutAnAnswer(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		upstream := with(plugin["upstream"].(map[string]any))
		upstream["timeout_ms"] = 10_000 // a busy machine must answer in this time
		s := newStack(t, target, "body", with(plugin, map[string]any{"upstream": upstream, "wait_for_pending": false}))
		p := s.proxies[0]
		for name, c := range map[string]call{
			"too late": pay(newKey(), "x-demo-delay-ms", "60000"),
			"cut":      pay(newKey(), "x-demo-drop", "after"),
		} {
			first := send(t, p, c)
			if first.status != 503 && first.status != 504 || first.headers.Get("Idempotency-Status") != "unknown" {
				t.Errorf("%s: %v", name, first)
			}
			if a := send(t, p, c); a.status != 409 {
				t.Errorf("%s, retry: %v", name, a)
			}
			s.wantExecutions(t, *c.key, 1)
		}
		// The same if the client has left.
		c := pay(newKey(), "x-demo-delay-ms", "60000")
		s.leaveWhileItRuns(t, p, c)
		s.payments.kill()
		eventually(t, "the outcome is not unknown", func() error {
			if a := send(t, p, c); a.status != 409 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		// Nothing can have reached an upstream that is away: the key is free.
		key := newKey()
		eventually(t, "no word of an upstream that is away", func() error {
			if a := send(t, p, pay(key)); a.status != 503 || a.headers.Get("Idempotency-Status") != "not-sent" {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.startPayments(t)
		eventuallyPaid(t, "upstream is back", p, key)
		s.wantExecutions(t, key, 1)
	})
}

// The manager goes away while work runs whose client has left. The answer waits for the manager.
func TestManagerIsAwayWhenAbandonedWorkEnds(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", with(plugin, map[string]any{
			"pending_ttl_seconds": 600, "commit_retry": map[string]any{"initial_ms": 50, "max_ms": 200},
		}))
		p, c := s.proxies[0], pay(newKey(), "x-demo-delay-ms", "1500")
		s.leaveWhileItRuns(t, p, c)
		s.manager.kill()
		here := send(t, p, c)
		if here.status != 201 || !here.replayed() {
			t.Fatalf("at the gate that has the answer: %v", here)
		}
		s.startManager(t)
		there := s.startProxy(t)
		eventually(t, "the outcome does not reach the ledger", func() error {
			return send(t, there, c).sameAs(here)
		})
		s.wantExecutions(t, *c.key, 1)
	})
}

// The proxy loses patience with a client that hears nothing, not with the work.
func TestIdleTimeoutWhileTheWorkGoesOn(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: plugin}
		s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.StreamIdleTimeout = durationpb.New(time.Second)
			return nil
		}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		p, c := s.startProxy(t), pay(newKey(), "x-demo-delay-ms", "3000")
		first := send(t, p, c)
		if first.status != 408 && first.status != 504 {
			t.Errorf("first: %v", first)
		}
		eventually(t, "no answer of the work", func() error {
			if a := send(t, p, c); a.status != 201 || !a.replayed() {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.wantExecutions(t, *c.key, 1)
	})
}

// Many clients leave. Each key runs once, and nothing is left over.
func TestCrowdThatLeaves(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", plugin)
		p := s.proxies[0]
		const crowd = 200
		calls := make([]call, crowd)
		ctx, leave := context.WithCancel(t.Context())
		var gone sync.WaitGroup
		for i := range calls {
			calls[i] = pay(newKey(), "x-demo-delay-ms", "1000")
			for range 2 {
				gone.Go(func() { _, _ = do(ctx, p, calls[i]) })
			}
		}
		eventually(t, "not all work has begun", func() error {
			for _, c := range calls {
				if s.executions(t, *c.key) == 0 {
					return errors.New(*c.key)
				}
			}
			return nil
		})
		leave()
		gone.Wait()
		for _, c := range calls {
			if a := send(t, p, c); a.status != 201 || !a.replayed() {
				t.Errorf("%v", a)
			}
			s.wantExecutions(t, *c.key, 1)
		}
	})
}

// seenRequest is a request as upstream saw it.
type seenRequest struct {
	Line    string
	Headers []string
	Length  int64
	Coding  []string
	Body    string
}

// echoing answers with what it saw.
func echoing(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	seen := seenRequest{Line: r.Method + " " + r.RequestURI + " " + r.Host, Length: r.ContentLength, Coding: r.TransferEncoding, Body: string(body)}
	for name, values := range r.Header {
		for _, v := range values {
			seen.Headers = append(seen.Headers, strings.ToLower(name)+": "+v)
		}
	}
	slices.Sort(seen.Headers)
	text, err := json.Marshal(seen)
	if err != nil {
		return
	}
	w.Header().Add("Set-Cookie", "a=1")
	w.Header().Add("Set-Cookie", "b=2")
	w.Header().Set("Content-Type", "application/x-seen")
	w.Header().Set("Content-Encoding", "identity")
	_, _ = w.Write(text)
}

// Upstream and the client see what they would see if the router carried the request.
func TestCarriedRequestIsTheSame(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		server := httptest.NewServer(http.HandlerFunc(echoing))
		t.Cleanup(server.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: "body", paymentsAddr: server.Listener.Addr().String()}
		upstream := with(plugin["upstream"].(map[string]any))
		upstream["timeout_ms"] = (4 * patience).Milliseconds() // the route's is shorter
		plugin["upstream"] = upstream
		s.stopAtEnd(t)
		s.startManager(t)
		s.plugin = map[string]any{"client_abort": "cancel"}
		s.target.way = asPublished
		routed := s.startProxy(t)
		s.plugin, s.target = plugin, target
		carried := s.startProxy(t)
		for name, headers := range map[string][]string{
			"plain": {},
			"full": {"x-forwarded-for", "192.0.2.7, 192.0.2.8", "x-forwarded-proto", "https", "x-request-id", "mine", "traceparent",
				"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "accept", "application/json", "cookie", "a=1; b=2", "user-agent", "x",
				"authorization", "Bearer x", "x-envoy-internal", "true", "x-envoy-expected-rq-timeout-ms", "1", "x-envoy-max-retries", "5",
				"x-envoy-retry-on", "5xx", "te", "trailers"},
		} {
			var answers [2]answer
			var seen [2]seenRequest
			for i, p := range []*proxy{routed, carried} {
				c := pay(newKey(), headers...)
				c.path = "/a%20b?q=1&q=2"
				answers[i] = send(t, p, c)
				if err := json.Unmarshal(answers[i].body, &seen[i]); err != nil {
					t.Fatalf("%s: %v: %v", name, answers[i], err)
				}
				seen[i].Headers = slices.DeleteFunc(seen[i].Headers, func(h string) bool {
					name, _, _ := strings.Cut(h, ": ")
					switch name {
					case "idempotency-key":
						return true
					case "x-request-id": // Envoy makes a new one for each
						return !strings.HasSuffix(h, " mine")
					}
					return false
				})
				answers[i].body = nil
				answers[i].headers.Del("Content-Length") // some headers are not compared, but counted
			}
			if a, b := fmt.Sprintf("%+v", seen[0]), fmt.Sprintf("%+v", seen[1]); a != b {
				t.Errorf("%s: upstream saw of the router\n%s\nand of the gate\n%s", name, a, b)
			}
			if err := answers[1].sameAs(answers[0]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := answers[1].headers.Get("Idempotency-Status"); got != "executed" {
				t.Errorf("%s: %v", name, answers[1])
			}
		}
	})
}

// Answers of all kinds reach the client whose request ran as upstream sent them, and a retry as always.
func TestCarriedAnswersAreTheSame(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		router := target
		router.way = asPublished
		s := newStack(t, router, "body", map[string]any{"client_abort": "cancel"})
		routed := s.proxies[0]
		s.plugin, s.target = plugin, target
		carried := s.startProxy(t)
		for _, headers := range [][]string{
			{"x-demo-status", "200"}, {"x-demo-status", "204"}, {"x-demo-status", "302"}, {"x-demo-status", "304"},
			{"x-demo-status", "404"}, {"x-demo-status", "500"}, {"x-demo-status", "503"}, {"x-demo-status", "429"},
			{"x-demo-body-bytes", "300000"}, {"x-demo-body-bytes", "3000000"},
		} {
			var answers [2]answer
			for i, p := range []*proxy{routed, carried} {
				c := pay(newKey(), headers...)
				answers[i] = send(t, p, c)
				if headers[1] == "429" {
					continue
				}
				if retry := send(t, p, c); retry.status != answers[i].status && headers[1] != "3000000" || retry.status == 200 && !retry.replayed() {
					t.Errorf("%v, retry: %v", headers, retry)
				}
				s.wantExecutions(t, *c.key, 1)
			}
			if a, b := answers[0], answers[1]; a.status != b.status || max(len(a.body), len(b.body))-min(len(a.body), len(b.body)) > 8 {
				t.Errorf("%v: of the router %v, of the gate %v", headers, a, b)
			}
			for _, name := range []string{"Content-Type", "Idempotency-Status", "Idempotent-Replayed"} {
				if a, b := answers[0].headers.Get(name), answers[1].headers.Get(name); a != b {
					t.Errorf("%v: %s is %q of the router, %q of the gate", headers, name, a, b)
				}
			}
		}
	})
}

// A client that leaves within its upload blocks its key, unless the route says that upstream does nothing with a part of a body.
func TestClientThatLeavesWithinItsUpload(t *testing.T) {
	t.Parallel()
	sideBySide(t, []string{"headers"}, func(t *testing.T, target envoyTarget, mode string) {
		var begun atomic.Int64
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{map[string]any{"path": "/free", "incomplete_upload": "release"}, map[string]any{}},
		}, func(w http.ResponseWriter, r *http.Request) {
			begun.Add(1)
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			w.WriteHeader(201)
		}, nil)
		p := s.proxies[0]
		for path, want := range map[string]int{"/free": 201, "/": 409} {
			c := pay(newKey())
			c.path, c.body = path, amount
			before := begun.Load()
			client := dial(t, p)
			if _, err := fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n{", path, host, *c.key, len(c.body)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the request does not reach upstream", func() error {
				if begun.Load() == before {
					return errors.New("it has not come")
				}
				return nil
			})
			client.Close()
			a := sendFree(t, p, c)
			if a.status != want {
				t.Errorf("%s: %v, want %d", path, a, want)
			}
		}
	})
}
