package feed

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// unsized hides that the engine knows sizes.
type unsized struct{ store.Store }

func (u unsized) Capabilities() store.Capabilities {
	c := u.Store.Capabilities()
	c.Sizes = false
	return c
}

// runKey reserves a key and records its outcome.
func (dc *dataCentre) runKey(key string) {
	dc.t.Helper()
	if _, err := dc.Reserve(dc.t.Context(), &api.ReserveRequest{Key: key, Token: dc.name}, nil); err != nil {
		dc.t.Fatal(err)
	}
	r := api.Result{Status: 200, Body: []byte(dc.name)}
	if err := dc.Commit(dc.t.Context(), &ledger.FinishRequest{Key: key, Token: dc.name, Result: r.AppendRaw(nil)}); err != nil {
		dc.t.Fatal(err)
	}
}

// TestConflictsAreBounded: outcomes that lost take no more than their share of the window, however many keys two data
// centres ran. What is not kept is counted and logged, own outcomes are kept for longest, and retries still get the
// winner.
func TestConflictsAreBounded(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{
		"the engine knows sizes": func(s store.Store) store.Store { return s },
		"it does not":            func(s store.Store) store.Store { return unsized{s} },
	} {
		t.Run(name, func(t *testing.T) {
			clashes := make(map[bool]int)
			var all []*dataCentre
			for i := range 2 {
				dc := &dataCentre{t: t, name: fmt.Sprint("dc", i+1), clock: newClock(), cursors: make(map[string]string), held: make(map[string]string)}
				dc.clock.advance(time.Duration(i) * time.Minute) // dc1 wins
				dc.st = mem.New(mem.Options{Clock: dc.clock.Now})
				t.Cleanup(func() { _ = dc.st.Close() })
				o := ledger.Options{Origin: dc.name, MaxEntries: 80, CommittedTTL: time.Hour, PendingTTL: time.Hour}
				if dc.name == "dc1" {
					o.Clashed = func(c ledger.Clash) { clashes[c.Kept]++ }
				}
				dc.site = ledgerOn(t, wrap(dc.st), o)
				if err := dc.Open(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				all = append(all, dc)
			}
			const keys = 30
			for i := range keys {
				for _, dc := range all {
					dc.runKey(fmt.Sprintf("k%02d", i))
				}
			}
			for _, to := range all {
				for _, from := range all {
					for to != from && !to.pull(from, false) {
					}
				}
			}
			// An eighth of 80 for what the other one recorded, a quarter for its own.
			for i, want := range []int{11, 21} {
				dc := all[i]
				list, _, err := views.Conflicts(t.Context(), dc.Ledger, 100, "")
				if s := dc.OriginStats(); err != nil || len(list) != want || s.Conflicts != keys || s.Unkept != keys-uint64(want) {
					t.Errorf("%s lists %d conflicts, and counts %+v; want %d, %v", dc.name, len(list), s, want, err)
				}
				for k := range keys {
					e, err := dc.Get(t.Context(), "", fmt.Sprintf("k%02d", k))
					if err != nil || e.Origin != "dc1" {
						t.Errorf("%s: %+v, %v", dc.name, e, err)
					}
				}
			}
			if clashes[true] != 11 || clashes[false] != keys-11 {
				t.Errorf("clashes: %v", clashes)
			}
			// Room comes back.
			for _, dc := range all {
				dc.clock.advance(2 * time.Hour)
				if err := dc.sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := dc.OriginStats().Losers; n != 0 {
					t.Errorf("%s keeps %d", dc.name, n)
				}
				dc.runKey("again")
			}
			for !all[0].pull(all[1], false) {
			}
			if list, _, err := views.Conflicts(t.Context(), all[0].Ledger, 100, ""); err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
}

// lostKey is a store with a record that no manager can decrypt.
type lostKey struct {
	store.Store
	id store.ID
}

type lostKeyTx struct {
	store.Tx
	id store.ID
}

func (s lostKey) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, func(tx store.Tx) error { return fn(lostKeyTx{tx, s.id}) })
}

func (s lostKey) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(lostKeyTx{tx, s.id}) })
}

func (tx lostKeyTx) Get(c store.Collection, key string) ([]byte, error) {
	if (store.ID{Collection: c, Key: key}) == tx.id {
		return nil, &store.UnreadableError{Collection: c, Key: key, Reason: "the key is lost"}
	}
	return tx.Tx.Get(c, key)
}

// TestUnreadableConflictsEnd: an outcome that lost and that no manager can decrypt keeps no other ones beyond their time.
func TestUnreadableConflictsEnd(t *testing.T) {
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	t.Cleanup(func() { _ = st.Close() })
	l := feedOn(t, lostKey{st, store.ID{Collection: ledger.ConflictCollection, Key: "dc1 1:sa"}}, ledger.Options{})
	for _, key := range []string{"a", "b"} {
		mustReserve(t, l, key, "own")
		change := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: key, Token: "theirs", State: api.StateCommitted, HLC: 1, ExpiresIn: time.Minute, Result: answer(200, "theirs")}
		if _, err := l.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
			t.Fatal(err)
		}
		if key == "b" {
			mustCommit(t, l, key, "own", "own")
			continue
		}
		// The ledger cannot write over what it cannot read, so another one does.
		if err := ledgerOn(t, st, ledger.Options{Origin: "dc1"}).Commit(t.Context(), finishReq(key, "own", "own")); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.CountLosers(t.Context()); err != nil || l.OriginStats().Losers != 2 {
		t.Fatalf("%+v, %v", l.OriginStats(), err)
	}
	c.advance(time.Hour)
	if err := l.sweep(t.Context()); err != nil || l.OriginStats().Losers != 0 {
		t.Errorf("%+v, %v", l.OriginStats(), err)
	}
}

// keptEntries is an engine that keeps index entries of conflicts which are gone, as Redis does of damaged records.
type keptEntries struct {
	store.Store
	scans *int
}

func (s keptEntries) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, func(tx store.Tx) error { return fn(keptTx{tx, s.scans}) })
}

type keptTx struct {
	store.Tx
	scans *int
}

func (tx keptTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if c != ledger.ConflictCollection || r.To == "" {
		return tx.Tx.Scan(c, index, r)
	}
	*tx.scans++
	var hits []store.Hit
	for i := range 100 {
		h := store.Hit{SortKey: "0", Key: fmt.Sprintf("gone%03d", i)}
		if (r.After == nil || h.Key > r.After.Key) && len(hits) < r.Limit {
			hits = append(hits, h)
		}
	}
	return hits, nil
}

// TestEntriesOfGoneConflictsEndASweep: a sweep looks at each entry once, also if its deletion changes nothing.
func TestEntriesOfGoneConflictsEndASweep(t *testing.T) {
	st := mem.New(mem.Options{Clock: newClock().Now})
	t.Cleanup(func() { _ = st.Close() })
	scans := 0
	l := feedOn(t, keptEntries{st, &scans}, ledger.Options{})
	scans = 0
	if err := l.sweep(t.Context()); err != nil || scans != 4 {
		t.Errorf("%d scans, %v", scans, err)
	}
}
