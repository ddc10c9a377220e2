package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// fakeGate is a gate and its upstream in one: at most once by a map, with faults to order. It shows that the storm finds
// the faults that it looks for.
type fakeGate struct {
	runTwice    string // a key that runs again for the first retry after its answer
	replays     int    // of differently
	differently string // a key whose replays differ from the answer
	silent      string // a key that is never answered
	teapot      string // a key that is answered with 418
	never       string // a key that is answered without being executed
	down        atomic.Bool

	mu       sync.Mutex
	executed map[string]int64
	answers  map[string][]byte
	pending  map[string]bool
	conflict map[string]int // duplicates that must wait, of dropped keys
}

func newFakeGate() *fakeGate {
	return &fakeGate{
		executed: map[string]int64{}, answers: map[string][]byte{}, pending: map[string]bool{}, conflict: map[string]int{},
	}
}

func (g *fakeGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/executions" {
		g.executions(w, r)
		return
	}
	if _, err := io.ReadAll(r.Body); err != nil {
		return // cut while sending
	}
	key := r.Header.Get("Idempotency-Key")
	if g.down.Load() {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case key == g.silent:
		w.WriteHeader(http.StatusServiceUnavailable)
	case key == g.teapot:
		g.executed[key] = 1
		w.WriteHeader(http.StatusTeapot)
	case g.answers[key] != nil:
		if key == g.runTwice {
			g.executed[key] = 2
		}
		w.Header().Set("Idempotent-Replayed", "true")
		w.WriteHeader(http.StatusCreated)
		w.Write(g.answers[key])
		if key == g.differently {
			// Every replay, since any of the answers may be cut, the first one too.
			g.replays++
			io.WriteString(w, strings.Repeat(" ", g.replays))
		}
	case g.pending[key]:
		// The key of a work that was not done comes free after some time; that of one that was does not.
		g.conflict[key]++
		if g.executed[key] == 0 && g.conflict[key] > 10 {
			delete(g.pending, key)
		}
		w.WriteHeader(http.StatusConflict)
	case r.Header.Get("x-demo-drop") != "":
		g.pending[key] = true
		if r.Header.Get("x-demo-drop") == "after" {
			g.executed[key]++
		}
		w.WriteHeader(http.StatusBadGateway)
	default:
		if key != g.never {
			g.executed[key]++
		}
		g.answers[key] = fmt.Appendf(nil, `{"of":%q}`, key)
		w.WriteHeader(http.StatusCreated)
		w.Write(g.answers[key])
	}
}

func (g *fakeGate) executions(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := executionCounts{Keys: map[string]int64{}}
	key := r.URL.Query().Get("key")
	for k, n := range g.executed {
		counts.Total += n
		if key == "" || key == k {
			counts.Keys[k] = n
		}
	}
	if key == g.never && key != "" {
		counts.Keys[key] = 1 // or no client would ever ask for it again
	}
	json.NewEncoder(w).Encode(counts)
}

// stormOver runs a storm of 30 keys, 2 of each of the dropped kinds, over g.
func stormOver(t *testing.T, ctx context.Context, g *fakeGate) (*storm, report) {
	t.Helper()
	defer goleak.VerifyNone(t)
	srv := httptest.NewServer(g)
	defer srv.Close()
	s := newStorm(srv.URL, srv.URL, options{keys: 30, clients: 6, seed: 1})
	if g.silent != "" { // the time is up when all the others have their answers
		others := (s.keys - 1) * s.clients
		var watch sync.WaitGroup
		defer watch.Wait()
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		watch.Go(func() {
			for s.tally.done() < others && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			stop()
		})
	}
	s.crash = func(context.Context) error {
		g.down.Store(true)
		// A client that cuts its connection does not see that it was refused: one must have.
		for s.tally.seen(503) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		g.down.Store(false)
		return nil
	}
	r, err := s.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

func TestStormPassesWhereAllRunOnce(t *testing.T) {
	g := newFakeGate()
	s, r := stormOver(t, t.Context(), g)
	if !r.ok() {
		t.Errorf("faults: %q", r.faults)
	}
	if r.executions != 30 || r.ranTwice != 0 || r.submissions != 180 || r.dropBefore != 2 || r.dropAfter != 2 || r.held != 2 {
		t.Errorf("%+v: want 180 submissions, 30 executions, none twice, 2 keys of each kind dropped, 2 held", r)
	}
	answers := 0
	for _, n := range r.statuses {
		answers += n
	}
	if r.requests != answers+r.cuts+r.lost {
		t.Errorf("%d requests, but %d answers, %d cut and %d lost", r.requests, answers, r.cuts, r.lost)
	}
	if r.requests <= r.submissions || r.cuts == 0 || r.replays == 0 || r.statuses[409] == 0 || r.statuses[503] == 0 {
		t.Errorf("%+v: want retries, cuts, replays, 409s, and 503s of the manager's crash", r)
	}
	if s.tally.settled != 180 {
		t.Errorf("%d clients settled, want all 180", s.tally.settled)
	}
}

func TestStormFindsFaults(t *testing.T) {
	key := keyName(20)
	for _, tt := range []struct {
		name  string
		order func(*fakeGate)
		want  string
	}{
		{"ran twice", func(g *fakeGate) { g.runTwice = key }, "key storm-020 was executed 2 times"},
		{"different answers", func(g *fakeGate) { g.differently = key }, "key storm-020: one client got"},
		{"unexpected status", func(g *fakeGate) { g.teapot = key }, "key storm-020: status 418"},
		{"answered without running", func(g *fakeGate) { g.never = key }, "key storm-020 was not executed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newFakeGate()
			tt.order(g)
			_, r := stormOver(t, t.Context(), g)
			if r.ok() || !strings.Contains(strings.Join(r.faults, "\n"), tt.want) {
				t.Errorf("faults %q, want one that says %q", r.faults, tt.want)
			}
		})
	}
}

func TestStormEndsWithItsTime(t *testing.T) {
	g := newFakeGate()
	g.silent = keyName(20)
	_, r := stormOver(t, t.Context(), g)
	all := strings.Join(r.faults, "\n")
	for _, want := range []string{"key storm-020: the time was up before a client had its answer", "key storm-020 was not executed", "key storm-020 never got an answer"} {
		if !strings.Contains(all, want) {
			t.Errorf("faults %q, want one that says %q", r.faults, want)
		}
	}
}

func TestStormReportsAManagerThatStaysDown(t *testing.T) {
	defer goleak.VerifyNone(t)
	srv := httptest.NewServer(newFakeGate())
	defer srv.Close()
	s := newStorm(srv.URL, srv.URL, options{keys: 4, clients: 2, seed: 1})
	s.crash = func(context.Context) error { return errors.New("disk on fire") }
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("error %v, want the restart's", err)
	}
}

func TestKindsOfKeys(t *testing.T) {
	s := &storm{keys: 100}
	var n [3]int
	for key := range s.keys {
		n[s.kindOf(key)]++
	}
	if n != [3]int{plain: 85, dropBefore: 8, dropAfter: 7} {
		t.Errorf("kinds %v, want 85 plain, 8 dropped before, 7 after", n)
	}
}

// done is how many clients have their answer.
func (t *tally) done() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled
}

// seen is how many answers with a status clients have got.
func (t *tally) seen(status int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.statuses[status]
}
