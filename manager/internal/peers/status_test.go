package peers

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestSilentPeerLooksStopped: a peer that accepts calls and does not answer counts as late before a call to it is given up.
func TestSilentPeerLooksStopped(t *testing.T) {
	b := newSite(t, "dc2", ledger.Options{})
	called, release := make(chan struct{}, 1), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case called <- struct{}{}:
		default:
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(release)
	n, err := NewNetwork(Config{Origin: "dc2", Peers: []Peer{{"dc1", silent.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	p := New(Options{Network: n, Feed: b.Feed, Store: b.st, Log: slog.New(slog.DiscardHandler)})
	defer run(t, p)()
	<-called
	if s := p.Status()[0]; s.LagSeconds > 0 {
		t.Errorf("late at once: %+v", s)
	}
	// The call is given up a second after the peer counts as late. A busy machine may not run the test in that second.
	state := p.states[0]
	state.mu.Lock()
	state.caughtUp, state.until = state.caughtUp.Add(-pullWait), state.until.Add(-pullWait)
	state.mu.Unlock()
	if s := p.Status()[0]; s.LagSeconds <= 0 || s.Error != "" || !s.Answered.IsZero() {
		t.Errorf("%+v", s)
	}
}

// shared is an engine that several managers may use.
type shared struct{ store.Store }

func (s shared) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared = true
	return c
}

// TestIdlePeerIsNotBehind: a manager that leaves the pulling to another one on its store sees no lag while there is nothing
// new for longer than a lease.
func TestIdlePeerIsNotBehind(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	n, err := NewNetwork(Config{Origin: "dc2", Peers: []Peer{{"dc1", a.srv.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	puller := func() (*Puller, *state) {
		p := New(Options{Network: n, Feed: b.Feed, Store: shared{b.st}, Log: slog.New(slog.DiscardHandler)})
		return p, p.states[0]
	}
	holds := func(p *Puller, s *state, want bool) {
		t.Helper()
		if mine, err := p.hold(t.Context(), s); err != nil || mine != want {
			t.Fatal(mine, err)
		}
	}
	holder, pulls := puller()
	holds(holder, pulls, true)
	// The last change was long ago, the last answer was not, and the lease is due.
	err = b.st.Update(t.Context(), func(tx store.Tx) error {
		now := tx.Now().UnixMilli()
		return (&record{Cursor: "c", Holder: holder.id, Until: now + 1000, CaughtUp: now - time.Hour.Milliseconds()}).put(tx, "dc1")
	})
	if err != nil {
		t.Fatal(err)
	}
	other, waits := puller()
	holds(other, waits, false)
	if lag := other.Status()[0].LagSeconds; lag < 3500 {
		t.Errorf("an hour without an answer is a lag of %g s", lag)
	}
	holds(holder, pulls, true)
	holds(other, waits, false)
	if lag := other.Status()[0].LagSeconds; lag != 0 {
		t.Errorf("a lag of %g s", lag)
	}
}

// TestHastyPeerIsAskedLessAndLess: a peer answers at once with nothing new, though its head grows, or its cursor moves.
func TestHastyPeerIsAskedLessAndLess(t *testing.T) {
	for name, page := range map[string]func(n uint64) feed.Page{
		"head":   func(n uint64) feed.Page { return feed.Page{Cursor: "dc1:e:3", Head: 100 + n, Sequence: 3} },
		"cursor": func(n uint64) feed.Page { return feed.Page{Cursor: fmt.Sprint("dc1:e:", n), Head: n, Sequence: n} },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
			const calls = 7
			var asked atomic.Int64
			hasty := func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/v1/ledger/changes" {
					return false
				}
				f := page(uint64(asked.Add(1)))
				body, err := AppendFeed(nil, &f)
				if err != nil {
					t.Error(err)
				}
				w.Header().Set("content-type", "application/json")
				_, _ = w.Write(body)
				return true
			}
			from.spoil.Store(&hasty)
			began := time.Now()
			p := follow(t, to, from, "")
			eventually(t, "many calls", func() bool { return asked.Load() >= calls })
			// The first two bring a cursor and the peer's list. Each pause is twice as long as the one before.
			if took := time.Since(began); took < (1+2+4+8)*minBackoff {
				t.Errorf("%d calls in %v", calls, took)
			}
			if r := p.states[0]; r.failures.Load() != 0 {
				t.Errorf("%d calls failed: %s", r.failures.Load(), r.err)
			}
		})
	}
}
