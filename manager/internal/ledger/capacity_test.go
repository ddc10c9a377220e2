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

func TestLeastRecentlyUsedMakesRoom(t *testing.T) {
	l, c := newTestLedger(t, evicting(Options{MaxEntries: 3}))
	for _, k := range []string{"a", "b", "c"} {
		mustReserve(t, l, k, "t", api.StateReserved)
		c.advance(time.Millisecond)
		mustCommit(t, l, k, "t", k)
		c.advance(time.Millisecond)
	}
	mustReserve(t, l, "a", "u", api.StateCommitted) // a is used again: b is the oldest now
	c.advance(time.Millisecond)
	mustReserve(t, l, "d", "t", api.StateReserved)
	if got := live2(t, l, "a", "b", "c", "d"); got != "a c d" {
		t.Errorf("left: %s, want a c d", got)
	}
	c.advance(time.Millisecond)
	mustReserve(t, l, "e", "t", api.StateReserved)
	if got := live2(t, l, "a", "c", "d", "e"); got != "a d e" {
		t.Errorf("left: %s, want a d e", got)
	}
	if got := stats(t, l); got.Evicted != 2 || got.Pending+got.Committed != 3 {
		t.Errorf("%+v", got)
	}
}

func TestPendingIsNeverEvicted(t *testing.T) {
	l, c := newTestLedger(t, evicting(Options{MaxEntries: 2, PendingTTL: time.Minute}))
	mustReserve(t, l, "a", "t", api.StateReserved)
	mustReserve(t, l, "b", "t", api.StateReserved)
	if _, err := l.Reserve(t.Context(), reserveReq("c", "t"), nil); !errors.Is(err, ErrFull) {
		t.Fatalf("a third reservation: %v", err)
	}
	// What has run is recorded late, up to an eighth and one over the limit.
	late := finishReq("late", "t", "x")
	late.TTL = time.Millisecond
	if err := l.Commit(t.Context(), late); err != nil {
		t.Fatalf("a late commit: %v", err)
	}
	if err := l.Commit(t.Context(), finishReq("too-late", "t", "x")); err != nil {
		t.Fatalf("another, which has the first to evict: %v", err)
	}
	if _, err := l.Delete(t.Context(), "s", "too-late"); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Millisecond)
	// What is there already works on.
	mustReserve(t, l, "a", "t", api.StateReserved)
	mustReserve(t, l, "b", "u", api.StatePending)
	mustCommit(t, l, "a", "t", "x")
	mustReserve(t, l, "c", "t", api.StateReserved)
	if got := live2(t, l, "a", "b", "c"); got != "b c" {
		t.Errorf("left: %s, want b c", got)
	}
	// Reservations that ran out make room before any sweep.
	c.advance(time.Hour)
	mustReserve(t, l, "d", "t", api.StateReserved)
	mustReserve(t, l, "e", "t", api.StateReserved)
	if got := stats(t, l); got.Pending != 2 || got.Calls[OpReserve][OutcomeFull] != 1 {
		t.Errorf("%+v", got)
	}
}

// TestLRULooksPastWhatWasUsedSince: more entries than one window were used
// since the index heard of them, and still the one that was not has to go.
func TestLRULooksPastWhatWasUsedSince(t *testing.T) {
	const n = 3 * evictWindow
	l, c := newTestLedger(t, evicting(Options{MaxEntries: n}))
	keys := distinctKeys(l, n)
	for _, k := range keys {
		mustReserve(t, l, k, "t", api.StateReserved)
		mustCommit(t, l, k, "t", "x")
		c.advance(time.Millisecond)
	}
	for _, k := range keys[:n-1] {
		mustReserve(t, l, k, "u", api.StateCommitted)
	}
	c.advance(time.Millisecond)
	mustReserve(t, l, "new", "t", api.StateReserved)
	if _, err := l.Get(t.Context(), "s", keys[n-1]); !errors.Is(err, ErrNotFound) {
		t.Errorf("the only entry that was not used again is still there: %v", err)
	}
	if got := stats(t, l); got.Evicted != 1 || got.Committed != n-1 {
		t.Errorf("%+v", got)
	}
}

func TestBytesMakeRoom(t *testing.T) {
	body := strings.Repeat("x", 1000)
	const limit = 7600
	l, c := newTestLedger(t, evicting(Options{MaxBytes: limit}))
	for i := range 50 {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
		mustCommit(t, l, name("k", i), "t", body)
		c.advance(time.Millisecond)
		if got := stats(t, l).Bytes; got > limit {
			t.Fatalf("%d bytes after %d entries", got, i+1)
		}
	}
	if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
		t.Errorf("counted %d bytes of %d", got, want)
	}
	if got := stats(t, l); got.Committed != 6 || got.Evicted != 44 {
		t.Errorf("%+v", got)
	}
	if got := live2(t, l, "k43", "k44", "k49"); got != "k44 k49" {
		t.Errorf("left: %s", got)
	}
}

// TestOneLargeEntryForManySmall: as many as it takes have to go.
func TestOneLargeEntryForManySmall(t *testing.T) {
	const limit, size = 400_000, 300_000
	l, _ := newTestLedger(t, evicting(Options{MaxBytes: limit}))
	for i := range 3000 {
		mustCommit(t, l, name("k", i), "t", "small")
	}
	for i := range 5 {
		mustCommit(t, l, name("large", i), "t", strings.Repeat("x", size))
		if got := stats(t, l).Bytes; got > limit {
			t.Fatalf("%d bytes with %d large entries", got, i+1)
		}
	}
	if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
		t.Errorf("counted %d bytes of %d", got, want)
	}
	// What a combined transaction brings in too much goes with the next sweep.
	for i := range 3 {
		err := l.Update(t.Context(), func(tx *Tx) error {
			return tx.Commit(finishReq(name("tx", i), "t", strings.Repeat("x", size)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := stats(t, l).Bytes; got > limit {
		t.Errorf("%d bytes after a sweep", got)
	}
}

// TestWindowHoldsUnderConcurrency: many inserters together never exceed the
// window, and all of them get their entry.
func TestWindowHoldsUnderConcurrency(t *testing.T) {
	const limit, workers, each = 40, 8, 200
	l, _ := newTestLedger(t, evicting(Options{MaxEntries: limit}))
	var wg sync.WaitGroup
	errs := make(chan error, workers*each)
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				k := name(name("w", w)+"-", i)
				if _, err := l.Reserve(t.Context(), reserveReq(k, "t"), nil); err != nil {
					errs <- err
					continue
				}
				if n, err := l.store.Len(t.Context(), collection, ""); err != nil || n > limit {
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
	if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
		t.Errorf("counted %d bytes of %d", got, want)
	}
}

// TestSweepOfLargeEntries: a batch that would become too large a transaction is
// cut, and the sweep goes on with the rest.
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
// changed itself has to be added to it: neither does the window overflow, nor
// are entries evicted twice for the same insertion.
func TestWindowOnSharedEngines(t *testing.T) {
	const limit = 20
	l := ledgerOn(t, sharedStore{mem.New(mem.Options{})}, evicting(Options{MaxEntries: limit}))
	for i := range 10 * limit {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
		mustCommit(t, l, name("k", i), "t", "x")
		n, err := l.store.Len(t.Context(), collection, "")
		if want := min(i+1, limit); err != nil || n != want {
			t.Fatalf("%d entries after %d insertions, %v; want %d", n, i+1, err, want)
		}
	}
	if got := stats(t, l); got.Evicted != 9*limit || got.Bytes != -1 {
		t.Errorf("%+v", got)
	}
}

// A shared engine's count is up to a second old. What others removed since may be taken off a
// count that was made without it, so that it is below nothing; a reserve goes through all the same.
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
