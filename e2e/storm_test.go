package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Many requests that the gate has to answer at the same moment, at one worker. A proxy
// carries out each answer within the one before, so too many in one callback kill the VM.

// crowd is how many requests wait at once: twice what ends a VM, or E2E_CROWD.
var crowd = crowdSize()

func crowdSize() int {
	text, ok := os.LookupEnv("E2E_CROWD")
	if !ok {
		return 600
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 5000 {
		panic(fmt.Sprintf("E2E_CROWD is %q, it must be a number from 1 to 5000", text))
	}
	return n
}

// crowdConfig lets all of them wait.
func crowdConfig(more map[string]any) map[string]any {
	all := map[string]any{"max_waiters": 2 * crowd, "pending_ttl_seconds": 600, "pending_wait_timeout": 60}
	for k, v := range more {
		all[k] = v
	}
	return all
}

// metric reads one of the gate's counters or gauges from the proxy's admin listener, 0
// when it was never changed.
func (p *proxy) metric(name string) (int, error) {
	path := "/metrics"
	if strings.HasPrefix(p.name, "envoy") {
		path = "/stats/prometheus"
	}
	text, err := fetch(p.admin + path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			fields := strings.Fields(rest)
			return strconv.Atoi(fields[len(fields)-1])
		}
	}
	return 0, nil
}

// awaitMetric waits until a metric has a value.
func (p *proxy) awaitMetric(t *testing.T, name string, want int) {
	t.Helper()
	eventually(t, name, func() error {
		n, err := p.metric(name)
		if err == nil && n != want {
			err = fmt.Errorf("it is %d, want %d", n, want)
		}
		return err
	})
}

// wantNoTrap fails the test when a VM of the proxy died.
func (p *proxy) wantNoTrap(t *testing.T) {
	t.Helper()
	if log := p.tail(maxLines); strings.Contains(log, "Maximum call stack") || strings.Contains(log, "trap") {
		t.Errorf("a VM died:\n%s", p.tail(20))
	}
}

// gated is an upstream whose answers wait until they are released. It counts what it runs.
type gated struct {
	mu   sync.Mutex
	runs map[string]int
	open chan struct{}
}

func (g *gated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	if r.Method != "POST" {
		return
	}
	g.mu.Lock()
	g.runs[r.Header.Get("Idempotency-Key")]++
	g.mu.Unlock()
	select {
	case <-g.open:
	case <-r.Context().Done():
		return
	}
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, "the answer to "+r.Header.Get("Idempotency-Key"))
}

func (g *gated) ran(key string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.runs[key]
}

// awaitRun waits until the work of a key has begun.
func (g *gated) awaitRun(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the work does not begin", func() error {
		if n := g.ran(key); n != 1 {
			return fmt.Errorf("it ran %d times", n)
		}
		return nil
	})
}

// startGated starts a manager, a gated upstream and a proxy, on s.
func (s *stack) startGated(t *testing.T) *gated {
	t.Helper()
	up := &gated{runs: map[string]int{}, open: make(chan struct{})}
	server := httptest.NewServer(up)
	t.Cleanup(server.Close)
	s.stopAtEnd(t)
	s.startManager(t)
	s.paymentsAddr = server.Listener.Addr().String()
	s.startProxy(t)
	return up
}

// eachCrowd is eachEnvoy for crowds: each takes all that the machine has, so they come one at a time, and no other test
// runs beside them.
func eachCrowd(t *testing.T, scenario func(t *testing.T, target envoyTarget, mode string)) {
	t.Helper()
	sideBySide(t, modes, scenario)
}

var crowdTurn sync.Mutex

// crowdStack is a manager, a gated upstream and a proxy with one worker.
func crowdStack(t *testing.T, target envoyTarget, mode string, plugin map[string]any) (*stack, *gated) {
	t.Helper()
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, workers: 1}
	up := s.startGated(t)
	crowdTurn.Lock()
	t.Cleanup(crowdTurn.Unlock)
	return s, up
}

// crowdAnswers are the answers to requests that were sent at once.
type crowdAnswers struct {
	wg      sync.WaitGroup
	answers []answer
	errs    []error
	sent    atomic.Int64 // requests that were written
}

// sendCrowd sends n requests, the i-th with key(i), each on its own connection.
func sendCrowd(ctx context.Context, p *proxy, n int, key func(i int) string) *crowdAnswers {
	calls := make([]call, n)
	for i := range calls {
		calls[i] = pay(key(i))
	}
	return sendCalls(ctx, p, calls)
}

// sendCalls sends all of them, each on its own connection.
func sendCalls(ctx context.Context, p *proxy, calls []call) *crowdAnswers {
	c := &crowdAnswers{answers: make([]answer, len(calls)), errs: make([]error, len(calls))}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { c.sent.Add(1) },
	})
	for i := range calls {
		c.wg.Go(func() { c.answers[i], c.errs[i] = do(ctx, p, calls[i]) })
	}
	return c
}

// awaitSent waits until n requests were written.
func (c *crowdAnswers) awaitSent(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the requests are not sent", func() error {
		if sent := c.sent.Load(); sent < int64(n) {
			return fmt.Errorf("%d are", sent)
		}
		return nil
	})
}

// count waits for all answers and counts them by status and Idempotent-Replayed.
func (c *crowdAnswers) count(t *testing.T) map[string]int {
	t.Helper()
	c.wg.Wait()
	counts := map[string]int{}
	for i, a := range c.answers {
		if c.errs[i] != nil {
			counts[fmt.Sprintf("error %.60s", c.errs[i])]++
			continue
		}
		counts[strings.TrimSpace(fmt.Sprint(a.status, " ", a.headers.Get("Idempotent-Replayed")))]++
	}
	return counts
}

func wantCounts(t *testing.T, got map[string]int, want map[string]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("answers: %v, want %v", got, want)
	}
}

// All duplicates that wait for one request get its answer, even if they are many.
func TestCrowdWaitsForOneAnswer(t *testing.T) {
	eachCrowd(t, func(t *testing.T, target envoyTarget, mode string) {
		s, up := crowdStack(t, target, mode, crowdConfig(nil))
		p := s.proxies[0]
		key := newKey()
		c := sendCrowd(t.Context(), p, crowd, func(int) string { return key })
		p.awaitMetric(t, "oncegate_gate_waiters", crowd-1)
		close(up.open)
		wantCounts(t, c.count(t), map[string]int{"201": 1, "201 true": crowd - 1})
		if n := up.ran(key); n != 1 {
			t.Errorf("executed %d times", n)
		}
		p.wantNoTrap(t)
	})
}

// Duplicates whose wait is over get 409, all in one tick.
func TestCrowdTimesOut(t *testing.T) {
	eachCrowd(t, func(t *testing.T, target envoyTarget, mode string) {
		s, up := crowdStack(t, target, mode, crowdConfig(map[string]any{"pending_wait_timeout": 3}))
		defer close(up.open)
		p := s.proxies[0]
		key := newKey()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := sendCrowd(ctx, p, 1, func(int) string { return key })
		up.awaitRun(t, key)
		c := sendCrowd(ctx, p, crowd, func(int) string { return key })
		c.awaitSent(t, crowd)
		// A proxy that stands still until all of them are due finds them in the same tick.
		p.pause(t)
		<-time.After(3 * time.Second)
		p.resume(t)
		wantCounts(t, c.count(t), map[string]int{"409": crowd})
		cancel()
		first.wg.Wait()
		if n := up.ran(key); n != 1 {
			t.Errorf("executed %d times", n)
		}
		p.wantNoTrap(t)
	})
}

// The manager hangs. The reservation that all of them wait for fails, so all of them get an answer.
func TestCrowdWaitsForAManagerThatHangs(t *testing.T) {
	eachCrowd(t, func(t *testing.T, target envoyTarget, mode string) {
		s, up := crowdStack(t, target, mode, crowdConfig(map[string]any{"manager": map[string]any{"timeout_ms": 5000}}))
		close(up.open)
		p := s.proxies[0]
		s.manager.pause(t)
		key := newKey()
		c := sendCrowd(t.Context(), p, crowd, func(int) string { return key })
		wantCounts(t, c.count(t), map[string]int{"503": crowd})
		if n := up.ran(key); n != 0 {
			t.Errorf("executed %d times", n)
		}
		p.wantNoTrap(t)
		s.manager.resume(t)
		eventually(t, "the manager continues, the key does not", func() error {
			if a := send(t, p, pay(key)); a.status != 201 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
	})
}

// All calls are refused at once, in one callback.
func TestCrowdWithoutAManager(t *testing.T) {
	eachCrowd(t, func(t *testing.T, target envoyTarget, mode string) {
		s, up := crowdStack(t, target, mode, crowdConfig(map[string]any{"manager": map[string]any{"cluster": "nowhere", "timeout_ms": 5000}}))
		close(up.open)
		p := s.proxies[0]
		keys := make([]string, crowd)
		for i := range keys {
			keys[i] = newKey()
		}
		// What a proxy finds when it comes back to work arrives in one turn of its loop.
		p.pause(t)
		c := sendCrowd(t.Context(), p, crowd, func(i int) string { return keys[i] })
		c.awaitSent(t, crowd)
		p.resume(t)
		wantCounts(t, c.count(t), map[string]int{"503": crowd})
		for _, key := range keys {
			if n := up.ran(key); n != 0 {
				t.Errorf("%s was executed %d times", key, n)
			}
		}
		p.wantNoTrap(t)
	})
}
