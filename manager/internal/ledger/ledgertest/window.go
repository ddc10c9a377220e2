package ledgertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// How full a window may get, and what makes room in it.

// testWindow: however many managers insert, the window fills up, and no entry that one of them gave is lost.
func testWindow(t *testing.T, m *managers) {
	const limit = 25
	m.start(ledger.Options{MaxEntries: limit, ScopeShare: -1})
	var given []string
	// A manager learns late what others have inserted.
	m.eventually("the window is full for all managers", func() bool {
		refused := 0
		for i := range m.ledgers {
			key := fmt.Sprintf("k%d-%d", i, len(given))
			_, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "t"}, nil)
			switch {
			case errors.Is(err, ledger.ErrFull):
				refused++
			case err != nil:
				t.Fatal(err)
			default:
				given = append(given, key)
				m.commit(i, key, "t", "x")
			}
		}
		return refused == len(m.ledgers)
	})
	if len(given) < limit {
		t.Errorf("%d entries in a window of %d", len(given), limit)
	}
	for i, key := range given {
		m.reserve(i, key, "retry", api.StateCommitted)
	}
}

// testFullWindow: no answer is forgotten before its time, what is there stays, and what has
// expired makes room.
func testFullWindow(t *testing.T, m *managers) {
	const limit, ttl = 25, 2 * time.Second
	m.stores = m.stores[:1]
	m.start(ledger.Options{MaxEntries: limit, ScopeShare: -1})
	began := time.Now() // nothing expires before began + ttl
	for i := range limit {
		f := finish(fmt.Sprintf("k%d", i), "t", "x")
		if i == 0 {
			f.TTL = ttl
		}
		m.reserve(0, f.Key, "t", api.StateReserved)
		if err := m.at(0).Commit(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	reserve := func() error {
		_, err := m.at(0).Reserve(t.Context(), &api.ReserveRequest{Key: "new", Scope: "s", Token: "t"}, nil)
		return err
	}
	var full *ledger.FullError
	if err := reserve(); !errors.As(err, &full) && time.Since(began) < ttl/2 {
		t.Errorf("one key more: %v", err)
	} else if full != nil && (full.RetryAfter < time.Second || full.RetryAfter > ttl+time.Second || full.Share) {
		t.Errorf("%+v", full)
	}
	for i := 1; i < limit; i++ {
		m.reserve(0, fmt.Sprintf("k%d", i), "retry", api.StateCommitted)
	}
	m.eventually("what has expired makes room", func() bool {
		err := reserve()
		if err != nil && !errors.Is(err, ledger.ErrFull) {
			t.Fatal(err)
		}
		return err == nil
	})
	m.commit(0, "new", "t", "x")
	m.commit(0, "late", "t", "x") // the work ran
	if s := m.stats(0); s.MaxEntries != limit {
		t.Errorf("%+v", s)
	}
}

// testShares: scopes that insert as much as they can leave room for others.
func testShares(t *testing.T, m *managers) {
	const limit = 40
	m.stores = m.stores[:1] // each manager counts for itself where they share an engine
	m.start(ledger.Options{MaxEntries: limit, ScopeShare: 0.5})
	take := func(scope string, n int) (done int) {
		for i := range n {
			_, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: fmt.Sprintf("k%d", i), Scope: scope, Token: "t"}, nil)
			var full *ledger.FullError
			if errors.As(err, &full) && full.Share {
				return i
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	began := time.Now()
	n := take("flood", limit)
	// After a second the ledger asks a shared engine for its count, which may lack the insertions of some seconds.
	if late := m.stores[0].Capabilities().Shared && time.Since(began) >= time.Second; n != limit/2 && (!late || n < limit/2 || n == limit) {
		t.Errorf("one scope has %d entries of %d", n, limit)
	}
	if n := take("small", 2); n != 2 {
		t.Errorf("another one has %d", n)
	}
}

func testOnlyPending(t *testing.T, m *managers) {
	m.stores = m.stores[:1]
	m.start(ledger.Options{MaxEntries: 3, ScopeShare: -1})
	for i := range 3 {
		m.reserve(0, fmt.Sprintf("k%d", i), "t", api.StateReserved)
	}
	if _, err := m.at(0).Reserve(t.Context(), &api.ReserveRequest{Key: "k3", Scope: "s", Token: "t"}, nil); !errors.Is(err, ledger.ErrFull) {
		t.Errorf("a fourth reservation: %v", err)
	}
	m.release(0, "k1", "t")
	m.reserve(0, "k3", "t", api.StateReserved)
	m.reserve(0, "k0", "u", api.StatePending)
}
