package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// storeOn opens the engine wal on a disk in memory.
func storeOn(t testing.TB, disk *faultfs.FS) store.Store { return clockedStoreOn(t, disk, nil) }

func clockedStoreOn(t testing.TB, disk *faultfs.FS, clock func() time.Time) store.Store {
	t.Helper()
	st, err := mem.Open(t.Context(), "data", mem.Options{Clock: clock, State: disk.Pebble(), Log: wal.Options{FS: disk, SegmentBytes: 4 << 20, FillAhead: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// stopLedger is what a manager does that stops in order.
func stopLedger(t testing.TB, l *Ledger) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Run(ctx, nil)
	if err := l.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// scopesOff returns by how much the table of what scopes hold differs from the entries.
func scopesOff(l *Ledger) (off window.Level, err error) {
	if !l.boundsScopes() || l.shared {
		return window.Level{}, nil
	}
	var changes []window.Change
	err = l.store.View(context.Background(), func(tx store.Tx) error {
		changes = nil
		for _, state := range storedStates {
			hits, err := tx.Scan(Collection, indexOf(state), store.Range{Limit: store.MaxScan})
			if err != nil {
				return err
			}
			for _, h := range hits {
				value, err := tx.Get(Collection, h.Key)
				if err != nil {
					return err
				}
				var r record
				if err := decodeRecord(h.Key, value, &r); err != nil {
					return err
				}
				if !r.imported {
					changes = append(changes, window.Change{Scope: l.scopeOf(h.Key), Level: window.Level{Entries: 1, Bytes: int64(r.size) + EntryOverhead}})
				}
			}
		}
		return nil
	})
	return l.scopes.Off(changes), err
}

// heldBy is what a scope holds.
func heldBy(l *Ledger, scope string) window.Level { return l.scopes.Held(l.scopes.Hash(scope), nil) }

// usageIs compares the table with the entries.
func usageIs(l *Ledger) error {
	off, err := scopesOff(l)
	if err == nil && off != (window.Level{}) {
		err = fmt.Errorf("the table is off by %+v", off)
	}
	return err
}

func wantUsage(t testing.TB, l *Ledger) {
	t.Helper()
	if err := usageIs(l); err != nil {
		t.Error(err)
	}
}

// fillScopes reserves and commits n keys, by many callers at once.
func fillScopes(t testing.TB, l *Ledger, prefix string, callers, n int, scope func(i int) string) {
	t.Helper()
	atOnce(callers, n, func(i int) {
		req, f := reserveReq(name(prefix, i), "t"), finishReq(name(prefix, i), "t", "x")
		req.Scope, f.Scope = scope(i), scope(i)
		if _, err := l.Reserve(context.Background(), req, nil); err != nil {
			t.Error(err)
		}
		if err := l.Commit(context.Background(), f); err != nil {
			t.Error(err)
		}
	})
}

func scopes(n int) func(int) string { return func(i int) string { return name("scope", i%n) } }

// TestShareAfterAStop: a start after a stop in order knows exactly what scopes hold.
func TestShareAfterAStop(t *testing.T) {
	const limit = 2000
	opts := Options{MaxEntries: limit, ScopeShare: 0.5}
	disk, file := new(faultfs.FS), filepath.Join(t.TempDir(), "ledger.db")
	for name, open := range map[string]func(*testing.T) store.Store{
		"wal": func(t *testing.T) store.Store { return storeOn(t, disk) },
		"sqlite": func(t *testing.T) store.Store {
			st, err := sqlite.Open(t.Context(), file, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			return st
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledgerOn(t, open(t), opts)
			fillScopes(t, l, "k", 16, 300, scopes(50))
			if got := fillScope(t, l, "flood", limit); got != (limit-300)/2 {
				t.Fatalf("the flood has %d entries", got)
			}
			wantUsage(t, l)
			stopLedger(t, l)

			l = ledgerOn(t, open(t), opts)
			wantUsage(t, l)
			if full := refused(t, l, "flood", "more"); !full.Share {
				t.Errorf("the flood: %+v", full)
			}
			if got := fillScope(t, l, "small", 50); got != 50 {
				t.Errorf("a small scope has %d entries of 50", got)
			}
			wantUsage(t, l)
		})
	}
}

// TestShareAfterAKill: a scope that has its share gets a step more at most.
func TestShareAfterAKill(t *testing.T) {
	const limit = 2000
	opts := Options{MaxEntries: limit, ScopeShare: 0.5}
	disk := new(faultfs.FS)
	l := ledgerOn(t, storeOn(t, disk), opts)
	const step = limit / 256
	if got := fillScope(t, l, "flood", limit); got != limit/2 {
		t.Fatalf("the flood has %d entries", got)
	}
	l = ledgerOn(t, storeOn(t, disk.Crash()), opts)
	more := 0
	for ; more <= step; more++ {
		req := reserveReq(name("more", more), "t")
		req.Scope = "flood"
		if _, err := l.Reserve(t.Context(), req, nil); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d more", more)
	if more >= step {
		t.Errorf("after a kill the flood takes %d entries more, want less than %d", more, step)
	}
}

// TestBytesAfterAKill: large answers are stored although they are few.
func TestBytesAfterAKill(t *testing.T) {
	disk := new(faultfs.FS)
	l := ledgerOn(t, storeOn(t, disk), Options{})
	for i := range 5 {
		mustCommit(t, l, name("k", i), "t", strings.Repeat("x", window.StepBytes/2))
	}
	off, err := scopesOff(ledgerOn(t, storeOn(t, disk.Crash()), Options{}))
	if err != nil || off.Bytes == 0 || off.Bytes >= window.StepBytes {
		t.Errorf("off by %+v, %v", off, err)
	}
}

// putCounter counts the records of what scopes hold that transactions write.
type putCounter struct {
	store.Store
	puts atomic.Int64
}

func (p *putCounter) Update(ctx context.Context, fn func(store.Tx) error) error {
	n := int64(0)
	err := p.Store.Update(ctx, func(tx store.Tx) error {
		n = 0
		return fn(&putCountingTx{tx, &n})
	})
	p.puts.Add(n)
	return err
}

type putCountingTx struct {
	store.Tx
	n *int64
}

func (tx *putCountingTx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	if c == window.Collection {
		*tx.n++
	}
	return tx.Tx.Put(c, key, value, entries...)
}

// TestFewBlocksAreWritten: however many calls there are at a time. What a kill leaves is right to within a step and the calls
// in progress.
func TestFewBlocksAreWritten(t *testing.T) {
	const keys = 3230
	for _, callers := range []int{1, 64} {
		t.Run(fmt.Sprint(callers, " callers"), func(t *testing.T) {
			disk := new(faultfs.FS)
			p := &putCounter{Store: storeOn(t, disk)}
			l := ledgerOn(t, p, Options{})
			puts := func(least, most int64) {
				t.Helper()
				if n := p.puts.Swap(0); n < least || n > most {
					t.Errorf("%d blocks were written for %d keys, want %d to %d", n, keys, least, most)
				}
			}
			killed := func() {
				t.Helper()
				after := ledgerOn(t, storeOn(t, disk.Crash()), Options{})
				off, err := scopesOff(after)
				if most := int64(window.StepEntries + callers - 1); err != nil || off.Entries == 0 && off.Bytes == 0 || off.Entries > most || off.Bytes > window.StepBytes+most*1000 {
					t.Errorf("after a kill the table is off by %+v, %v", off, err)
				}
			}
			p.puts.Store(0) // the seed
			fillScopes(t, l, "one", callers, keys, scopes(1))
			puts(keys/128, keys/32)
			wantUsage(t, l)
			killed()
			fillScopes(t, l, "many", callers, keys, scopes(200))
			puts(0, keys/32) // no scope has a step
			wantUsage(t, l)
			killed()
			atOnce(callers, keys, func(i int) {
				if _, err := l.Delete(context.Background(), "scope0", name("one", i)); err != nil {
					t.Error(err)
				}
			})
			puts(keys/128, keys/32)
			wantUsage(t, l)
			killed()
		})
	}
}

// rerunStore runs each function twice. What the first run wrote is undone.
type rerunStore struct{ store.Store }

func (s rerunStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	undo := errors.New("undo")
	if err := s.Store.Update(ctx, func(tx store.Tx) error { return errors.Join(undo, fn(tx)) }); !errors.Is(err, undo) {
		return err
	}
	return s.Store.Update(ctx, fn)
}

// TestUsageOfReruns: functions that run again count once, and the block that the first run wrote is written.
func TestUsageOfReruns(t *testing.T) {
	disk := new(faultfs.FS)
	l := ledgerOn(t, rerunStore{storeOn(t, disk)}, Options{})
	fillScopes(t, l, "k", 1, window.StepEntries, scopes(1))
	wantUsage(t, l)
	l = ledgerOn(t, storeOn(t, disk.Crash()), Options{})
	if off, err := scopesOff(l); err != nil || off.Entries != 0 {
		t.Errorf("off by %+v, %v", off, err)
	}
}

// failingStore makes transactions fail, before or after they happened.
type failingStore struct {
	store.Store
	after bool
}

func (s failingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.after {
		if err := s.Store.Update(ctx, fn); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", store.ErrUnconfirmed, context.DeadlineExceeded)
	}
	return s.Store.Update(ctx, func(tx store.Tx) error { return errors.Join(fn(tx), context.DeadlineExceeded) })
}

// TestUsageOfFailedCalls: a call that happened counts although its caller heard of an error, and one that did not happen
// does not count. Neither keeps a claim of a block.
func TestUsageOfFailedCalls(t *testing.T) {
	disk := new(faultfs.FS)
	whole := storeOn(t, disk)
	l := ledgerOn(t, whole, Options{})
	for i := range window.StepEntries {
		req := reserveReq(name("k", i), "t")
		for _, l.store = range []store.Store{failingStore{whole, false}, failingStore{whole, true}} {
			if _, err := l.Reserve(t.Context(), req, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
	}
	l.store = whole
	wantUsage(t, l)
	l = ledgerOn(t, storeOn(t, disk.Crash()), Options{})
	if off, err := scopesOff(l); err != nil || off.Entries != 0 {
		t.Errorf("off by %+v, %v", off, err)
	}
}

// TestShareThatIsOff: no table is kept, and none that is out of date. Once scopes are bounded, they are by what is inserted from
// then on.
func TestShareThatIsOff(t *testing.T) {
	disk := new(faultfs.FS)
	bounded, free := Options{MaxEntries: 200, ScopeShare: 0.5, CommittedTTL: time.Hour}, Options{MaxEntries: 200, ScopeShare: -1}
	records := func(l *Ledger, want int) {
		t.Helper()
		if n, err := l.store.Len(t.Context(), window.Collection, ""); n != want || err != nil {
			t.Errorf("%d records, %v, want %d", n, err, want)
		}
	}
	l := ledgerOn(t, storeOn(t, disk), free)
	records(l, 0)
	stopLedger(t, l)
	l = ledgerOn(t, storeOn(t, disk), bounded)
	if got := fillScope(t, l, "flood", 200); got != 100 {
		t.Fatalf("%d entries", got)
	}
	records(l, 2)
	stopLedger(t, l)
	l = ledgerOn(t, storeOn(t, disk), free)
	records(l, 0)
	for i := range 100 {
		if _, err := l.Delete(t.Context(), "flood", name("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	stopLedger(t, l)
	l = ledgerOn(t, storeOn(t, disk), bounded)
	wantUsage(t, l)
	if got := fillScope(t, l, "flood", 200); got != 100 {
		t.Fatalf("%d entries", got)
	}
}

// TestUsageThatWasTooLow is right again once it reaches 0.
func TestUsageThatWasTooLow(t *testing.T) {
	st := mem.New(mem.Options{})
	fillScopes(t, ledgerOn(t, st, Options{}), "k", 1, 2*window.StepEntries, scopes(1))
	l := ledgerOn(t, st, Options{}) // the engine is not durable, so it counts from here
	for i := range 2 * window.StepEntries {
		if _, err := l.Delete(t.Context(), "scope0", name("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	if at := heldBy(l, "scope0"); at != (window.Level{}) {
		t.Errorf("the scope holds %+v", at)
	}
	if err := l.maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantUsage(t, l)
}

// badRecords makes records unreadable.
type badRecords struct {
	store.Store
	bad map[string]bool
}

func (s *badRecords) run(fn func(store.Tx) error) func(store.Tx) error {
	return func(tx store.Tx) error { return fn(&badTx{tx, s}) }
}

func (s *badRecords) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, s.run(fn))
}

func (s *badRecords) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, s.run(fn))
}

type badTx struct {
	store.Tx
	s *badRecords
}

func (tx *badTx) check(c store.Collection, key string) error {
	if c == window.Collection && tx.s.bad[key] {
		return &store.UnreadableError{Collection: c, Key: key, Reason: "it is damaged"}
	}
	return nil
}

func (tx *badTx) Get(c store.Collection, key string) ([]byte, error) {
	if err := tx.check(c, key); err != nil {
		return nil, err
	}
	return tx.Tx.Get(c, key)
}

func (tx *badTx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	if err := tx.check(c, key); err != nil {
		return err
	}
	return tx.Tx.Put(c, key, value, entries...)
}

func (tx *badTx) Delete(c store.Collection, key string) error {
	delete(tx.s.bad, key)
	return tx.Tx.Delete(c, key)
}

// onlyBlock returns the key of the only block that there is.
func onlyBlock(t *testing.T, l *Ledger) (block string) {
	t.Helper()
	err := l.store.View(t.Context(), func(tx store.Tx) error {
		for n := range 64 {
			if _, err := tx.Get(window.Collection, strconv.Itoa(n)); err == nil && block == "" {
				block = strconv.Itoa(n)
			} else if !errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("block %d after block %q: %v", n, block, err)
			}
		}
		return nil
	})
	if err != nil || block == "" {
		t.Fatalf("block %q, %v", block, err)
	}
	return block
}

// TestUnreadableUsage: damage stops no call and no start. What cannot be read is counted again and replaced.
func TestUnreadableUsage(t *testing.T) {
	disk := new(faultfs.FS)
	s := &badRecords{Store: storeOn(t, disk), bad: map[string]bool{}}
	l := ledgerOn(t, s, Options{})
	fillScopes(t, l, "k", 1, window.StepEntries, scopes(1))
	block := onlyBlock(t, l)
	s.bad[block] = true
	fillScopes(t, l, "more", 1, window.StepEntries, scopes(1)) // the record is damaged while the ledger runs
	if s.bad[block] {
		t.Error("the damaged block is still there")
	}
	if off, err := scopesOff(ledgerOn(t, storeOn(t, disk.Crash()), Options{})); err != nil || off.Entries > 0 {
		t.Errorf("the block was not written again: off by %+v, %v", off, err)
	}
	for _, key := range []string{block, "seed"} {
		s.bad[key] = true
		l = ledgerOn(t, s, Options{})
		if at := heldBy(l, "scope0"); at != (window.Level{}) {
			t.Errorf("without %s the scope holds %+v", key, at)
		}
		fillScopes(t, l, "without-"+key, 1, 2*window.StepEntries, scopes(1))
		if len(s.bad) > 0 {
			t.Errorf("%v is still damaged", s.bad)
		}
		l = ledgerOn(t, s, Options{})
		if at := heldBy(l, "scope0"); at.Entries < window.StepEntries {
			t.Errorf("after the damage of %s the scope holds %+v", key, at)
		}
	}
}
