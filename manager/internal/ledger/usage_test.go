package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// usageIs compares the cells of the table with the entries.
func usageIs(l *Ledger) error {
	if l.shared {
		return nil
	}
	var want map[string]holding
	err := l.store.View(context.Background(), func(tx store.Tx) error {
		want = make(map[string]holding)
		for _, state := range storedStates {
			hits, err := tx.Scan(collection, indexOf(state), store.Range{Limit: store.MaxScan})
			if err != nil {
				return err
			}
			for _, h := range hits {
				value, err := tx.Get(collection, h.Key)
				if err != nil {
					return err
				}
				var r record
				if err := decodeRecord(h.Key, value, &r); err != nil {
					return err
				}
				for row := range usageRows {
					key := usageKey(row, l.usage.hash(h.Key))
					if sum := want[key]; !r.imported {
						want[key] = holding{sum.entries + 1, sum.bytes + int64(r.size) + EntryOverhead}
					}
				}
			}
		}
		for key, sum := range want {
			value, err := tx.Get(UsageCollection, key)
			if sum == (holding{}) && errors.Is(err, store.ErrNotFound) {
				delete(want, key)
				continue
			}
			if got, ok := decodeHolding(value); err != nil || !ok || got != sum {
				return fmt.Errorf("cell %x has %+v (%v, %v), want %+v", key, got, ok, err, sum)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := l.store.Len(context.Background(), UsageCollection, "")
	if err == nil && n != len(want)+1 {
		err = fmt.Errorf("%d records of what scopes hold, want %d and the seed", n, len(want))
	}
	return err
}

// TestSipHash: the hash is the one that its authors describe.
func TestSipHash(t *testing.T) {
	seed := [2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	in := ""
	for n, want := range map[int]uint64{0: 0x726fdb47dd0e0e31, 7: 0xab0200f58b01d137, 8: 0x93f5f5799a932462, 15: 0xa129ca6149be45e5, 63: 0x958a324ceb064572} {
		for in = ""; len(in) < n; {
			in += string([]byte{byte(len(in))})
		}
		if got := sipHash(seed, in); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
}

// TestShareAfterAStart: a start knows what scopes hold, whether the manager before it stopped in order or was killed.
func TestShareAfterAStart(t *testing.T) {
	const limit = 400
	opts := Options{MaxEntries: limit, ScopeShare: 0.5}
	open := func(t *testing.T, dir string) (*mem.Store, *Ledger) {
		t.Helper()
		st, err := mem.Open(t.Context(), dir, mem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return st, ledgerOn(t, st, opts)
	}
	check := func(t *testing.T, l *Ledger) {
		t.Helper()
		if err := usageIs(l); err != nil {
			t.Error(err)
		}
		if full := refused(t, l, "flood", "more"); !full.Share {
			t.Errorf("the flood: %+v", full)
		}
		if got := fillScope(t, l, "small", 50); got != 50 {
			t.Errorf("a small scope has %d entries of 50", got)
		}
		if err := usageIs(l); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	st, l := open(t, dir)
	if got := fillScope(t, l, "flood", limit); got != limit/2 {
		t.Fatalf("the flood has %d entries", got)
	}
	left := t.TempDir() // what a kill leaves
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("stopped", func(t *testing.T) {
		_, l := open(t, dir)
		check(t, l)
	})
	t.Run("killed", func(t *testing.T) {
		_, l := open(t, left)
		check(t, l)
	})
}

// TestShareThatWasOff: what scopes hold is known to a start that bounds them for the first time.
func TestShareThatWasOff(t *testing.T) {
	st := mem.New(mem.Options{})
	l := ledgerOn(t, st, Options{MaxEntries: 100, ScopeShare: -1})
	if got := fillScope(t, l, "flood", 90); got != 90 {
		t.Fatalf("%d entries", got)
	}
	l = ledgerOn(t, st, Options{MaxEntries: 100, ScopeShare: 0.5})
	if full := refused(t, l, "flood", "more"); !full.Share {
		t.Errorf("%+v", full)
	}
}

// lossyStore makes the caller of each transaction hear of an error, although it happened.
type lossyStore struct{ store.Store }

func (s lossyStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.Store.Update(ctx, fn); err != nil {
		return err
	}
	return context.DeadlineExceeded
}

// TestUsageOfUnknownCalls: a call that happened counts although its caller heard of an error.
func TestUsageOfUnknownCalls(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	whole := l.store
	l.store = lossyStore{whole}
	for i := range 10 {
		if _, err := l.Reserve(t.Context(), reserveReq(name("k", i), "t"), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if err := l.Commit(t.Context(), finishReq(name("k", i), "t", "x")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if err := usageIs(l); err != nil {
		t.Error(err)
	}
	l.store = whole
	c.advance(time.Hour)
	if n, err := l.Sweep(t.Context()); n != 10 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if err := usageIs(l); err != nil {
		t.Error(err)
	}
}

// TestUnreadableCell: a cell that cannot be read refuses nobody. It stays as it is, and the scope's other cell bounds it.
func TestUnreadableCell(t *testing.T) {
	tracker := unread.New()
	l, _ := newTestLedger(t, Options{MaxEntries: 100, ScopeShare: 0.5, Unreadable: tracker})
	scope := l.usage.hash(recordKey("flood", "k"))
	damage := func(row int) {
		t.Helper()
		if err := l.store.Update(t.Context(), func(tx store.Tx) error {
			return tx.Put(UsageCollection, usageKey(row, scope), []byte{0xff})
		}); err != nil {
			t.Fatal(err)
		}
	}
	damage(0)
	if got := fillScope(t, l, "flood", 100); got != 50 {
		t.Errorf("%d entries with one cell", got)
	}
	damage(1)
	if got := fillScope(t, l, "flood2", 1); got != 1 {
		t.Error("another scope is refused")
	}
	req := reserveReq("more", "t")
	req.Scope = "flood"
	if _, err := l.Reserve(t.Context(), req, nil); err != nil {
		t.Errorf("without a cell: %v", err)
	}
	if err := l.store.View(t.Context(), func(tx store.Tx) error {
		for row := range usageRows {
			if value, err := tx.Get(UsageCollection, usageKey(row, scope)); err != nil || string(value) != "\xff" {
				t.Errorf("row %d: %x, %v", row, value, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if met := <-tracker.News(); met.Collection != UsageCollection {
		t.Errorf("reported: %v", met)
	}
}

// TestUnreadableSeed: a table without its seed is useless, so a start says what is wrong.
func TestUnreadableSeed(t *testing.T) {
	st := mem.New(mem.Options{})
	if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(UsageCollection, usageSeed, []byte("short")) }); err != nil {
		t.Fatal(err)
	}
	if _, err := New(st, Options{}); !errors.Is(err, store.ErrUnreadable) {
		t.Error(err)
	}
}
