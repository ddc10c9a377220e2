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

// TestDuplicatesTakeNoRoom: a client that only repeats keys takes no room, also when the
// window is nearly full and others insert.
func TestDuplicatesTakeNoRoom(t *testing.T) {
	const limit, free, replayers = 500, 40, 64
	l := durableLedgerOf(t, Options{MaxEntries: limit, ScopeShare: -1})
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
	if s := stats(t, l); again.Load() != 0 || s.Pending+s.Committed != limit {
		t.Errorf("with %d replays: work was given out again %d times, %d entries of %d", replays.Load(), again.Load(), s.Pending+s.Committed, limit)
	}
}

// fullOfBytes is a ledger whose last entry left no room for another one.
func fullOfBytes(t *testing.T) (l *Ledger, c *clock, keys []string, body string) {
	t.Helper()
	body = strings.Repeat("x", 300<<10)
	l, c = newTestLedger(t, Options{MaxBytes: 1 << 20, ScopeShare: -1, PendingTTL: time.Second, UnknownTTL: api.NoUnknown})
	keys = []string{"k0", "k1", "k2"}
	mustReserve(t, l, keys[0], "stale", api.StateReserved)
	c.advance(2 * time.Second)
	for _, k := range keys {
		mustReserve(t, l, k, "t", api.StateReserved)
		mustCommit(t, l, k, "t", body)
		c.advance(time.Second)
	}
	return l, c, keys, body
}

// TestRefusedCallsChangeNothing: a call that is refused in a full window leaves all answers as they are.
func TestRefusedCallsChangeNothing(t *testing.T) {
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
	err := l.Update(t.Context(), func(tx *Tx) error { return tx.Finish(OpCommit, finishReq(keys[2], "other", body)) })
	if !errors.Is(err, ErrFenced) {
		t.Errorf("a stale commit in a transaction: %v", err)
	}
	if s := stats(t, l); s.Committed != 3 {
		t.Errorf("left %d", s.Committed)
	}
	r := mustReserve(t, l, keys[0], "u", api.StateCommitted)
	if want := answer(201, body); string(r.Result) != string(want) {
		t.Errorf("the recorded answer has become %.40q", r.Result)
	}
}

// TestExpiredBytesMakeRoom: an entry whose time is over makes room before the sweeper removes it.
func TestExpiredBytesMakeRoom(t *testing.T) {
	l, c, keys, body := fullOfBytes(t)
	short := finishReq(keys[2], "u", body)
	short.TTL = time.Second
	if err := l.Update(t.Context(), func(tx *Tx) error {
		r := record{}
		e, err := l.load(tx.Tx, EntryKey("s", keys[2]), &r)
		if err != nil {
			return err
		}
		return tx.remove(EntryKey("s", keys[2]), e)
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Second)
	before := stats(t, l)
	mustCommit(t, l, "new", "t", body)
	if s := stats(t, l); s.Expired != before.Expired+1 || s.Committed != 3 || s.WithoutAnswer != 0 {
		t.Errorf("expired %d, %d left, %d without answer", s.Expired-before.Expired, s.Committed, s.WithoutAnswer)
	}
	if got := live2(t, l, keys[0], keys[1], keys[2], "new"); got != keys[0]+" "+keys[1]+" new" {
		t.Errorf("left: %s", got)
	}
}

// TestManySmallEntriesGoInPieces: when one answer needs the room of more entries
// than one transaction deletes, it still gets it, and is recorded once.
func TestManySmallEntriesGoInPieces(t *testing.T) {
	l, c := newTestLedger(t, Options{MaxBytes: 800_000, ScopeShare: -1, CommittedTTL: time.Second})
	for i := range 5 * roomBatch {
		mustCommit(t, l, name("small", i), "t", "x")
	}
	c.advance(time.Second)
	mustReserve(t, l, "large", "t", api.StateReserved)
	before := stats(t, l)
	mustCommit(t, l, "large", "t", strings.Repeat("x", 780_000))
	s := stats(t, l)
	if s.Bytes > 800_000 || s.Expired-before.Expired < 2*roomBatch || s.WithoutAnswer != 0 {
		t.Errorf("%d bytes, %d expired, %d without answer", s.Bytes, s.Expired-before.Expired, s.WithoutAnswer)
	}
	if got := s.Calls[OpCommit][OutcomeDone] - before.Calls[OpCommit][OutcomeDone]; got != 1 {
		t.Errorf("counted as %d commits", got)
	}
	mustReserve(t, l, "large", "u", api.StateCommitted)
}
