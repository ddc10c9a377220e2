package ledger

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// durableLedgerOf is a ledger on the engine with the log, whose transactions take
// effect some time before their callers hear of them.
func durableLedgerOf(t *testing.T, opts Options) *Ledger {
	t.Helper()
	st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return ledgerOn(t, st, opts)
}

// atOnce calls f with 0 to n-1, by as many goroutines as callers says.
func atOnce(callers, n int, f func(i int)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < n; i += callers {
				f(i)
			}
		})
	}
	wg.Wait()
}

// TestEachInsertionEvictsOne: insertions into a full window evict for themselves,
// however many of them are under way.
func TestEachInsertionEvictsOne(t *testing.T) {
	const limit, inserts = 500, 600
	for _, callers := range []int{1, 64, 256} {
		l := durableLedgerOf(t, evicting(Options{MaxEntries: limit}))
		for i := range limit {
			mustCommit(t, l, name("old", i), "t", "x")
		}
		atOnce(callers, inserts, func(i int) {
			if r, err := l.Reserve(context.Background(), reserveReq(name("new", i), "t"), nil); err != nil {
				t.Errorf("insertion %d: %v, %v", i, r.State, err)
			} else if i%2 == 0 {
				mustCommit(t, l, name("new", i), "t", "x")
			}
		})
		if s := stats(t, l); s.Evicted != inserts || s.Pending+s.Committed != limit {
			t.Errorf("%d callers: %d insertions into a full window evicted %d, %d entries of %d are left",
				callers, inserts, s.Evicted, s.Pending+s.Committed, limit)
		}
	}
}

// TestDuplicatesEvictNothing: a client that only repeats keys is no reason to forget
// any, also when the window is nearly full and others insert.
func TestDuplicatesEvictNothing(t *testing.T) {
	const limit, free, replayers = 500, 40, 64
	l := durableLedgerOf(t, evicting(Options{MaxEntries: limit}))
	for i := range limit - free {
		mustCommit(t, l, name("old", i), "t", "x")
	}
	var replays, again atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range replayers {
		wg.Go(func() {
			for i := w; ; i += replayers {
				select {
				case <-done:
					return
				default:
				}
				r, err := l.Reserve(context.Background(), reserveReq(name("old", i%(limit-free)), "t2"), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if replays.Add(1); r.State == api.StateReserved {
					again.Add(1)
				}
			}
		})
	}
	for i := range free {
		mustReserve(t, l, name("new", i), "t", api.StateReserved)
	}
	close(done)
	wg.Wait()
	if s := stats(t, l); s.Evicted != 0 || again.Load() != 0 || s.Pending+s.Committed != limit {
		t.Errorf("with %d replays: evicted %d, work was given out again %d times, %d entries of %d", replays.Load(), s.Evicted, again.Load(), s.Pending+s.Committed, limit)
	}
}

// TestCapacityOnlyWhenNothingCanGo: as many newcomers at once as there are final
// entries all get their place, and one more does not.
func TestCapacityOnlyWhenNothingCanGo(t *testing.T) {
	const limit, final = 100, 50
	for range 5 {
		l := durableLedgerOf(t, evicting(Options{MaxEntries: limit}))
		for i := range limit - final {
			mustReserve(t, l, name("pending", i), "t", api.StateReserved)
		}
		for i := range final {
			mustCommit(t, l, name("old", i), "t", "x")
		}
		var refused atomic.Int64
		atOnce(final+10, final+10, func(i int) {
			switch _, err := l.Reserve(context.Background(), reserveReq(name("new", i), "t"), nil); {
			case errors.Is(err, ErrFull):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			}
		})
		if s := stats(t, l); refused.Load() != 10 || s.Pending != limit || s.Committed != 0 || s.Evicted != final {
			t.Errorf("%d of %d newcomers refused; %d pending and %d final entries, %d evicted", refused.Load(), final+10, s.Pending, s.Committed, s.Evicted)
		}
	}
}

// TestBytesMakeRoomOnce: answers that come at once do not each free what all of
// them need together.
func TestBytesMakeRoomOnce(t *testing.T) {
	const limit, added = 1 << 20, 200
	body := strings.Repeat("x", 10<<10)
	for _, callers := range []int{1, 64} {
		l := durableLedgerOf(t, evicting(Options{MaxBytes: limit}))
		n := 0
		for ; stats(t, l).Bytes < limit-11<<10; n++ {
			mustCommit(t, l, name("old", n), "t", body)
		}
		full := stats(t, l).Committed
		atOnce(callers, added, func(i int) {
			if err := l.Commit(context.Background(), finishReq(name("new", i), "t", body)); err != nil {
				t.Error(err)
			}
		})
		// Keys, and so entries, differ by a few bytes.
		if s := stats(t, l); s.Committed < full-2 || s.Bytes > limit || s.Bytes != bytesOf(t, l) {
			t.Errorf("%d callers: %d entries before, %d after, of %d bytes; evicted %d", callers, full, s.Committed, s.Bytes, s.Evicted)
		}
	}
}

// fullOfBytes is a ledger whose last entry left no room for another one. The
// first of the keys is the one that was used least recently.
func fullOfBytes(t *testing.T) (l *Ledger, c *clock, keys []string, body string) {
	t.Helper()
	body = strings.Repeat("x", 300<<10)
	l, c = newTestLedger(t, evicting(Options{MaxBytes: 1 << 20, PendingTTL: time.Second, UnknownTTL: api.NoUnknown}))
	keys = distinctKeys(l, 3)
	mustReserve(t, l, keys[0], "stale", api.StateReserved)
	c.advance(2 * time.Second)
	for _, k := range keys {
		mustReserve(t, l, k, "t", api.StateReserved)
		mustCommit(t, l, k, "t", body)
		c.advance(time.Second)
	}
	return l, c, keys, body
}

// TestRefusedCallsEvictNothing: a call that changes nothing makes no room, least
// of all by deleting the very entry that refuses it.
func TestRefusedCallsEvictNothing(t *testing.T) {
	l, _, keys, body := fullOfBytes(t)
	large := finishReq(keys[0], "stale", "other"+body)
	if err := l.Commit(t.Context(), large); !errors.Is(err, ErrFenced) {
		t.Errorf("a stale commit: %v", err)
	}
	large.Token = "t"
	if err := l.Reject(t.Context(), large); !errors.Is(err, ErrConflict) {
		t.Errorf("a reject after the commit: %v", err)
	}
	large.Key, large.Fingerprint = keys[1], "f"
	if err := l.Commit(t.Context(), large); err != nil {
		t.Errorf("the same commit again: %v", err)
	}
	err := l.Update(t.Context(), func(tx *Tx) error { return tx.Commit(finishReq(keys[2], "other", body)) })
	if !errors.Is(err, ErrFenced) {
		t.Errorf("a stale commit in a transaction: %v", err)
	}
	if s := stats(t, l); s.Evicted != 0 || s.Committed != 3 {
		t.Errorf("evicted %d, left %d", s.Evicted, s.Committed)
	}
	r := mustReserve(t, l, keys[0], "u", api.StateCommitted)
	if want := answer(201, body); string(r.Result) != string(want) {
		t.Errorf("the recorded answer has become %.40q", r.Result)
	}
}

// TestExpiredBytesGoFirst: an entry whose time is over makes room before any that
// is remembered, also when it was used last.
func TestExpiredBytesGoFirst(t *testing.T) {
	l, c, keys, body := fullOfBytes(t)
	short := finishReq(keys[2], "u", body)
	short.TTL = time.Second
	if err := l.Update(t.Context(), func(tx *Tx) error {
		r := record{}
		e, err := l.load(tx.Tx, recordKey("s", keys[2]), &r)
		if err != nil {
			return err
		}
		return tx.remove(recordKey("s", keys[2]), e)
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Second)
	before := stats(t, l)
	mustCommit(t, l, "new", "t", body)
	if s := stats(t, l); s.Evicted != before.Evicted || s.Expired != before.Expired+1 || s.Committed != 3 {
		t.Errorf("evicted %d, expired %d, %d left", s.Evicted-before.Evicted, s.Expired-before.Expired, s.Committed)
	}
	if got := live2(t, l, keys[0], keys[1], keys[2], "new"); got != keys[0]+" "+keys[1]+" new" {
		t.Errorf("left: %s", got)
	}
}

// TestManySmallEntriesGoInPieces: when one answer needs the room of more entries
// than one transaction deletes, it gets it all the same, and is recorded once.
func TestManySmallEntriesGoInPieces(t *testing.T) {
	const small = 10 * evictBatch
	l, _ := newTestLedger(t, evicting(Options{MaxBytes: 400_000}))
	for i := range small {
		mustCommit(t, l, name("small", i), "t", "x")
	}
	mustReserve(t, l, "large", "t", api.StateReserved)
	before := stats(t, l)
	mustCommit(t, l, "large", "t", strings.Repeat("x", 390_000))
	s := stats(t, l)
	if s.Bytes > 400_000 || s.Evicted-before.Evicted < 2*evictBatch {
		t.Errorf("%d bytes, %d evicted", s.Bytes, s.Evicted-before.Evicted)
	}
	if got := s.Calls[OpCommit][OutcomeDone] - before.Calls[OpCommit][OutcomeDone]; got != 1 {
		t.Errorf("counted as %d commits", got)
	}
	mustReserve(t, l, "large", "u", api.StateCommitted)
}
