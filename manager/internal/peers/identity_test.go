package peers

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// newLedger is an own ledger that has just begun.
type newLedger struct {
	trusted atomic.Bool
	met     atomic.Pointer[api.Mark] // the last one of another ledger
}

func markOf(letter string) api.Mark {
	return api.Mark{ID: strings.Repeat(letter, api.MarkIDBytes), Epoch: 1}
}

func (*newLedger) Mark() api.Mark                      { return markOf("a") }
func (*newLedger) Fence(context.Context, string) error { return nil }
func (*newLedger) Left() time.Duration                 { return 0 }
func (*newLedger) Longest() time.Duration              { return time.Hour }

func (l *newLedger) Trust(context.Context) error {
	l.trusted.Store(true)
	return nil
}

func (l *newLedger) Meet(_ context.Context, m api.Mark, _ string) error {
	if m.ID != l.Mark().ID {
		l.met.Store(&m)
	}
	return nil
}

// TestOnlyAnswersOfPeersAreTrusted: a peer that refuses the call, and something on the way that answers instead, have
// not said that they remember no earlier ledger.
func TestOnlyAnswersOfPeersAreTrusted(t *testing.T) {
	for name, refuse := range map[string]func(w http.ResponseWriter){
		"refused": func(w http.ResponseWriter) {
			w.Header().Set(api.HeaderLedger, markOf("b").String())
			w.WriteHeader(403)
		},
		"away": func(w http.ResponseWriter) {
			w.Header().Set(api.HeaderLedger, markOf("b").String())
			w.WriteHeader(503)
		},
		"another service": func(w http.ResponseWriter) { _, _ = w.Write([]byte("welcome")) },
	} {
		t.Run(name, func(t *testing.T) {
			to, from := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
			bad := func(w http.ResponseWriter, _ *http.Request) bool { refuse(w); return true }
			from.spoil.Store(&bad)
			n, err := NewNetwork(Config{Origin: "dc1", Peers: []Peer{{"dc2", from.srv.URL}}})
			if err != nil {
				t.Fatal(err)
			}
			self := new(newLedger)
			p := New(Options{Network: n, Feed: to.Feed, Store: to.st, Log: slog.New(slog.DiscardHandler), Self: self})
			defer run(t, p)()
			eventually(t, "two calls failed", func() bool { return p.states[0].failures.Load() >= 2 })
			if self.trusted.Load() {
				t.Error("the ledger is trusted")
			}
			good := func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set(api.HeaderLedger, markOf("b").String())
				return false
			}
			from.spoil.Store(&good)
			eventually(t, "it is trusted", self.trusted.Load)
		})
	}
}

// sharing makes an engine look like one that several managers share.
type sharing struct{ store.Store }

func (s sharing) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared = true
	return c
}

// TestManagersOfAStoreHearTogether: of two managers on one store, each asks another peer. Together they have heard all.
func TestManagersOfAStoreHearTogether(t *testing.T) {
	to, two, three := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{}), newSite(t, "dc3", ledger.Options{})
	says := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set(api.HeaderLedger, markOf("b").String())
		return false
	}
	two.spoil.Store(&says)
	three.spoil.Store(&says)
	st, self := sharing{to.st}, new(newLedger)
	var managers [2]*Puller
	for i := range managers {
		n, err := NewNetwork(Config{Origin: "dc1", Peers: []Peer{{"dc2", two.srv.URL}, {"dc3", three.srv.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		managers[i] = New(Options{Network: n, Feed: to.Feed, Store: st, Log: slog.New(slog.DiscardHandler), Self: self})
	}
	err := st.Update(t.Context(), func(tx store.Tx) error {
		for i, peer := range []string{"dc2", "dc3"} { // who holds each for longer than the test takes
			if err := (&record{Holder: managers[i].id, Until: tx.Now().Add(time.Hour).UnixMilli()}).put(tx, peer); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range managers {
		defer run(t, p)()
	}
	eventually(t, "the ledger is trusted", self.trusted.Load)
}

// TestLateAnswerForgetsNothing: calls to one peer are answered in any order. What an earlier answer says of the peer's
// ledger replaces nothing later.
func TestLateAnswerForgetsNothing(t *testing.T) {
	to := newSite(t, "dc1", ledger.Options{})
	n, err := NewNetwork(Config{Origin: "dc1", Peers: []Peer{{"dc2", "http://127.0.0.1:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	p := New(Options{Network: n, Feed: to.Feed, Store: to.st, Log: slog.New(slog.DiscardHandler), Self: new(newLedger)})
	s := p.states[0]
	say := func(m api.Mark, want api.Mark) {
		t.Helper()
		h := http.Header{}
		h.Set(api.HeaderLedger, m.String())
		if err := p.hear(t.Context(), s, h, 200); err != nil || s.remembered != want.String() {
			t.Errorf("%v: %v, %s is remembered, want %v", m, err, s.remembered, want)
		}
	}
	at := func(letter string, epoch, position uint64) api.Mark {
		return api.Mark{ID: markOf(letter).ID, Epoch: epoch, Position: position}
	}
	say(at("b", 1, 20), at("b", 1, 20))
	say(at("b", 1, 10), at("b", 1, 20))
	say(at("b", 2, 5), at("b", 2, 5))
	say(at("b", 1, 30), at("b", 2, 5))
	say(at("c", 1, 1), at("c", 1, 1))
}
