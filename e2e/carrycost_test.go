package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What it costs Envoy that the gate makes the upstream calls: processor time and latency of requests with new keys, of Envoys
// that take turns, each the least of all rounds. E2E_COST_ROUNDS=5 measures (make bench-envoy); it judges nothing.
func TestCostOfCarrying(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("E2E_COST_ROUNDS"))
	if err != nil || rounds < 1 {
		t.Skip("measures; E2E_COST_ROUNDS says how many rounds")
	}
	for _, target := range targets {
		if _, ok := target.(envoyTarget); ok {
			t.Run(target.Name(), func(t *testing.T) { costOfCarrying(t, target, rounds) })
		}
	}
}

func costOfCarrying(t *testing.T, target Target, rounds int) {
	const clients, each = 16, 250
	for _, size := range []int{100, 100_000} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(size))
			_, _ = w.Write(make([]byte, size))
		}))
		t.Cleanup(upstream.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: "body", workers: 1, paymentsAddr: upstream.Listener.Addr().String()}
		s.stopAtEnd(t)
		s.startManager(t)
		ways := []string{"cancel", "inner listener", "route's cluster"}
		proxies := map[string]*proxy{}
		for _, way := range ways {
			s.plugin = with(map[string]any{"client_abort": "cancel", "committed_ttl_seconds": 5}, carrying[way])
			proxies[way] = s.startProxy(t)
		}
		type cost struct{ cpu, p50 time.Duration }
		best := map[string]cost{}
		for round := range rounds + 1 { // the first warms up
			for i := range ways {
				way := ways[(i+round)%len(ways)]
				before := proxies[way].cpu(t)
				took := payInParallel(t, proxies[way], clients, each)
				got := cost{(proxies[way].cpu(t) - before) / (clients * each), took[len(took)/2]}
				switch b, ok := best[way]; {
				case round == 0:
				case !ok:
					best[way] = got
				default:
					best[way] = cost{min(b.cpu, got.cpu), min(b.p50, got.p50)}
				}
			}
		}
		for _, way := range ways {
			b, c := best[way], best["cancel"]
			t.Logf("%s, answers of %d bytes, %s: %v of processor time a request (x %.2f), p50 %v (x %.2f)",
				target.Name(), size, way, b.cpu.Round(time.Microsecond), float64(b.cpu)/float64(c.cpu), b.p50.Round(time.Microsecond), float64(b.p50)/float64(c.p50))
		}
	}
}

// payInParallel sends payments with new keys and returns, sorted, how long each took.
func payInParallel(t *testing.T, p *proxy, clients, each int) []time.Duration {
	t.Helper()
	type result struct {
		took []time.Duration
		err  error
	}
	results := make(chan result, clients)
	for range clients {
		go func() {
			var r result
			for range each {
				began := time.Now()
				a, err := do(t.Context(), p, pay(newKey()))
				if r.took = append(r.took, time.Since(began)); err == nil && a.status != 200 {
					err = fmt.Errorf("%v", a)
				}
				if err != nil {
					r.err = err
					break
				}
			}
			results <- r
		}()
	}
	var all []time.Duration
	for range clients {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		all = append(all, r.took...)
	}
	slices.Sort(all)
	return all
}

// cpu is the processor time that the process has used.
func (p *proxy) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// Behind the name, which may have spaces: state is field 3, utime 14, stime 15, in hundredths of a second.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
