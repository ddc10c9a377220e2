package ledger

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func live2(t *testing.T, l *Ledger, keys ...string) string {
	t.Helper()
	var there []string
	for _, k := range keys {
		if _, err := l.Get(t.Context(), "s", k); err == nil {
			there = append(there, k)
		}
	}
	return strings.Join(there, " ")
}

// TestWindowHoldsUnderConcurrency: many inserters together never exceed the window, and no
// entry that one of them got is lost.
func TestWindowHoldsUnderConcurrency(t *testing.T) {
	const limit, workers, each = 40, 8, 200
	l, _ := newTestLedger(t, Options{MaxEntries: limit, ScopeShare: -1})
	var wg sync.WaitGroup
	errs := make(chan error, workers*each)
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				k := name(name("w", w)+"-", i)
				if _, err := l.Reserve(t.Context(), reserveReq(k, "t"), nil); errors.Is(err, ErrFull) {
					continue
				} else if err != nil {
					errs <- err
					continue
				}
				if n, err := l.store.Len(t.Context(), Collection, ""); err != nil || n > limit {
					t.Errorf("%d entries, %v", n, err)
				}
				if err := l.Commit(t.Context(), finishReq(k, "t", "x")); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if s, want := stats(t, l), bytesOf(t, l); s.Bytes != want || s.Committed != limit {
		t.Errorf("counted %d bytes of %d, %d entries of %d", s.Bytes, want, s.Committed, limit)
	}
}

// TestSweepOfLargeEntries: a batch that would become too large a transaction is
// cut, and the sweep continues with the rest.
func TestSweepOfLargeEntries(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	body := strings.Repeat("x", sweepBytes/3)
	for i := range 10 {
		mustCommit(t, l, name("k", i), "t", body)
	}
	c.advance(time.Hour)
	if n, err := l.Sweep(t.Context()); n != 10 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if got := stats(t, l); got.Bytes != 0 || got.Expired != 10 {
		t.Errorf("%+v", got)
	}
}

// sharedStore says that other processes use the same data.
type sharedStore struct{ store.Store }

func (s sharedStore) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared, c.Sizes = true, false
	return c
}

// TestWindowOnSharedEngines: the count of entries is old, so what this process
// changed itself has to be added to it, and the window does not overflow.
func TestWindowOnSharedEngines(t *testing.T) {
	const limit = 20
	l := ledgerOn(t, sharedStore{mem.New(mem.Options{})}, Options{MaxEntries: limit, ScopeShare: -1})
	for i := range limit {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
		mustCommit(t, l, name("k", i), "t", "x")
		if n, err := l.store.Len(t.Context(), Collection, ""); err != nil || n != i+1 {
			t.Fatalf("%d entries after %d insertions, %v", n, i+1, err)
		}
	}
	for i := range limit {
		refused(t, l, "s", name("more", i))
	}
	if got := stats(t, l); got.Committed != limit || got.Bytes != -1 {
		t.Errorf("%+v", got)
	}
}

// A shared engine's count is up to a second old. What others removed since may be taken off a
// count that was made without it, so that it is below nothing; a reserve still goes through.
func TestCountBelowNothing(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	l.sizes = false // as on a shared engine
	mustReserve(t, l, "a", "t", api.StateReserved)
	n, err := l.length.get(t.Context(), l.store)
	if err != nil {
		t.Fatal(err)
	}
	for _, below := range []int64{-1, -2} {
		l.length.adjust(below - int64(n))
		mustReserve(t, l, "b"+fmt.Sprint(below), "t", api.StateReserved)
		if n, err = l.length.get(t.Context(), l.store); err != nil {
			t.Fatal(err)
		}
	}
}
