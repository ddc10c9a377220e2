package mem

import (
	"fmt"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// A queue whose front is taken again and again is not read from its start each time, wherever its entries are and
// whatever hides them.
func TestTheFrontOfAQueueIsTakenInLinearTime(t *testing.T) {
	const n, batch = 3000, 5
	entry := func(i int) string { return fmt.Sprintf("%05d", i) }
	add := func(from, to int) func(store.Tx) error {
		return func(tx store.Tx) error {
			for i := from; i < to; i++ {
				if err := tx.Put(things, "k"+entry(i), nil, store.Entry{Index: byName, SortKey: entry(i)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	flush := func(t *testing.T, s *Store) {
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, with := range map[string]struct {
		begin, every func(t *testing.T, s *Store)
	}{
		"on disk":                   {begin: flush},
		"in a frozen layer":         {begin: freezeOnly},
		"in both":                   {begin: func(t *testing.T, s *Store) { flush(t, s); mustUpdate(t, s, add(n, n+n/2)); freezeOnly(t, s) }},
		"hidden by a frozen layer":  {begin: flush, every: freezeOnly},
		"on disk with many flushes": {begin: flush, every: flush},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(&faultfs.FS{})
			opts.Log.SegmentBytes = 1 << 20
			s := mustOpen(t, opts)
			mustUpdate(t, s, add(0, n))
			with.begin(t, s)
			s.mu.Lock()
			ix := s.collections[things].byName[byName]
			before := ix.looked
			s.mu.Unlock()
			for taken := 0; taken < n; {
				if with.every != nil && taken > 0 && taken%(n/6) == 0 {
					with.every(t, s)
				}
				var hits []store.Hit
				r := store.Range{Limit: batch}
				if taken%2 == 1 {
					r.After = &store.Hit{}
				}
				mustUpdate(t, s, func(tx store.Tx) (err error) {
					for range 2 { // the second one uses what the first one remembers
						if hits, err = tx.Scan(things, byName, r); err != nil {
							return err
						}
					}
					for _, h := range hits {
						if err := tx.Delete(things, h.Key); err != nil {
							return err
						}
					}
					return nil
				})
				for i, h := range hits {
					if h.SortKey != entry(taken+i) {
						t.Fatalf("after %d entries there is %v", taken+i, h)
					}
				}
				if taken += len(hits); len(hits) != batch {
					t.Fatalf("there are %d entries at the front", len(hits))
				}
			}
			s.mu.Lock()
			looked := ix.looked - before
			s.mu.Unlock()
			if looked < n || looked > 12*n { // each call scans twice, and again when records must be read
				t.Errorf("scans looked at %d entries of %d", looked, n)
			}
			// What comes next to the front is seen in a frozen layer, too.
			flush(t, s)
			mustUpdate(t, s, add(0, batch))
			freezeOnly(t, s)
			err := s.View(t.Context(), func(tx store.Tx) error {
				hits, err := tx.Scan(things, byName, store.Range{Limit: batch})
				if err == nil && (len(hits) != batch || hits[0].SortKey != entry(0)) {
					err = fmt.Errorf("the new front is %v", hits)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			mustClose(t, s)
		})
	}
}

// Entries that stay in a queue do not have what was taken between them looked at again and again.
func TestAQueueInWhichEntriesStayIsTakenInLinearTime(t *testing.T) {
	const n, batch, every = 3000, 5, 700
	entry := func(i int) string { return fmt.Sprintf("%05d", i) }
	opts := options(&faultfs.FS{})
	opts.Log.SegmentBytes = 1 << 20
	s := mustOpen(t, opts)
	mustUpdate(t, s, func(tx store.Tx) error {
		for i := range n {
			if err := tx.Put(things, "k"+entry(i), nil, store.Entry{Index: byName, SortKey: entry(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	stay := []string{}
	for i := 0; i < n; i += every {
		stay = append(stay, entry(i))
	}
	s.mu.Lock()
	ix := s.collections[things].byName[byName]
	before := ix.looked
	s.mu.Unlock()
	for taken, got := 0, 0; taken < n-len(stay); taken += got {
		mustUpdate(t, s, func(tx store.Tx) error {
			got = 0
			hits, err := tx.Scan(things, byName, store.Range{Limit: len(stay) + batch})
			if err != nil {
				return err
			}
			for _, h := range hits {
				if slices.Contains(stay, h.SortKey) {
					continue
				}
				got++
				if err := tx.Delete(things, h.Key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := s.View(t.Context(), func(tx store.Tx) error {
		hits, err := tx.Scan(things, byName, store.Range{Limit: n})
		left := []string{}
		for _, h := range hits {
			left = append(left, h.SortKey)
		}
		if err == nil && !slices.Equal(left, stay) {
			err = fmt.Errorf("%v are left, want %v", left, stay)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	looked := ix.looked - before
	s.mu.Unlock()
	if looked < n || looked > 20*n { // of up to ten at a time, each several times
		t.Errorf("scans looked at %d entries of %d", looked, n)
	}
	mustClose(t, s)
}

// What a layer takes includes sort keys and the entries of versions below, and all of it is given back.
func TestWeightCountsSortKeysAndWhatIsBelow(t *testing.T) {
	const size = 1000
	long := func(c byte) store.Entry {
		return store.Entry{Index: byName, SortKey: string(slices.Repeat([]byte{c}, size))}
	}
	s := mustOpen(t, options(&faultfs.FS{}))
	weighs := func(what string, least int64) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hotBytes < least || s.hotBytes > least+2*overhead {
			t.Errorf("%s takes %d bytes, want about %d", what, s.hotBytes, least)
		}
	}
	mustUpdate(t, s, put("a", "", long('a')))
	weighs("a long sort key", size)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, put("a", "", long('b')))
	weighs("a version above another one", 2*size)
	mustUpdate(t, s, func(tx store.Tx) error { return tx.Delete(things, "a") })
	weighs("a deletion", size)
	mustUpdate(t, s, put("b", "", long('c')))
	mustUpdate(t, s, func(tx store.Tx) error { return tx.Delete(things, "b") })
	weighs("what is left", size)
	mustClose(t, s)
}
