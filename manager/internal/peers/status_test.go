package peers

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestSilentPeerLooksStopped: a peer that accepts calls and does not answer is behind before a call to it is given up.
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
	p := New(Options{Network: n, Ledger: b.Ledger, Store: b.st, Log: slog.New(slog.DiscardHandler)})
	defer run(t, p)()
	<-called
	if s := p.Status()[0]; s.LagSeconds > 0 {
		t.Errorf("behind at once: %+v", s)
	}
	// The call is given up a second after the peer counts as behind. A busy machine may not run the test in that second.
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
		p := New(Options{Network: n, Ledger: b.Ledger, Store: shared{b.st}, Log: slog.New(slog.DiscardHandler)})
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
