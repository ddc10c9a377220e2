package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var scanCases = []testCase{
	{name: "ScanOrder", test: testScanOrder},
	{name: "ScanRanges", test: testScanRanges},
	{name: "ScanPages", test: testScanPages},
	{name: "ScanCursorOfADeletedRecord", test: testScanCursorOfDeleted},
	{name: "EntriesFollowTheirRecord", test: testEntriesFollow},
	{name: "SeveralIndexes", test: testSeveralIndexes},
	{name: "Len", test: testLen},
	{name: "ScanNothing", test: testScanNothing},
	{name: "ScanOfLongBounds", test: testScanOfLongBounds},
	{name: "ScanFindsEarlierTransactions", test: testScanFindsEarlier, alone: true},
}

// hitsOf returns hits in their order, each as "sortkey/key".
func hitsOf(all []store.Hit) []string {
	out := make([]string, len(all))
	for i, h := range all {
		out[i] = h.SortKey + "/" + h.Key
	}
	return out
}

func testScanOrder(e *env) {
	s := e.store()
	sorts := []string{"", "\x00", "\x00\x00", "\x00\xff", "\x01", "A", "B", "a", "a\x00", "a\x00b", "a\x01", "ab", "b", "\x7f", "\x80", "ü", "\xff", "\xff\x00", "\xff\xff"}
	keys := []string{"\x00", "k", "k\x00", "\xff"}
	var want []store.Hit
	for _, sk := range sorts {
		for _, k := range keys {
			key := k + fmt.Sprintf("%x", sk)
			e.put(s, key, "v", store.Entry{Index: byName, SortKey: sk})
			want = append(want, store.Hit{SortKey: sk, Key: key})
		}
	}
	slices.SortFunc(want, func(a, b store.Hit) int {
		if c := strings.Compare(a.SortKey, b.SortKey); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	e.wantScan(s, byName, store.Range{Limit: 1000}, hitsOf(want)...)
	for i, h := range want {
		e.wantScan(s, byName, store.Range{After: &h, Limit: 3}, hitsOf(want[i+1:min(i+4, len(want))])...)
	}
}

func testScanRanges(e *env) {
	s := e.store()
	for _, sk := range []string{"a", "b", "c", "d"} {
		for _, k := range []string{"1", "2"} {
			e.put(s, sk+k, "v", store.Entry{Index: byName, SortKey: sk})
		}
	}
	for _, c := range []struct {
		r    store.Range
		want string
	}{
		{store.Range{Limit: 100}, "a/a1 a/a2 b/b1 b/b2 c/c1 c/c2 d/d1 d/d2"},
		{store.Range{Limit: 3}, "a/a1 a/a2 b/b1"},
		{store.Range{From: "b", Limit: 100}, "b/b1 b/b2 c/c1 c/c2 d/d1 d/d2"},
		{store.Range{From: "b\x00", Limit: 100}, "c/c1 c/c2 d/d1 d/d2"},
		{store.Range{To: "b", Limit: 100}, "a/a1 a/a2"},
		{store.Range{From: "b", To: "d", Limit: 100}, "b/b1 b/b2 c/c1 c/c2"},
		{store.Range{From: "b", To: "d", Limit: 2}, "b/b1 b/b2"},
		{store.Range{From: "c", To: "c", Limit: 100}, ""},
		{store.Range{From: "d", To: "a", Limit: 100}, ""},
		{store.Range{From: "e", Limit: 100}, ""},
		{store.Range{After: &store.Hit{SortKey: "b", Key: "b1"}, Limit: 100}, "b/b2 c/c1 c/c2 d/d1 d/d2"},
		{store.Range{After: &store.Hit{SortKey: "b", Key: "b1"}, To: "c", Limit: 100}, "b/b2"},
		{store.Range{After: &store.Hit{SortKey: "c", Key: "c2"}, From: "a", Limit: 1}, "d/d1"},
		{store.Range{After: &store.Hit{SortKey: "b", Key: ""}, Limit: 1}, "b/b1"},
		{store.Range{After: &store.Hit{SortKey: "d", Key: "d2"}, Limit: 100}, ""},
		{store.Range{From: "b", To: "d", Limit: 100, Claim: true}, "b/b1 b/b2 c/c1 c/c2"},
	} {
		e.wantScan(s, byName, c.r, strings.Fields(c.want)...)
	}
}

func testScanPages(e *env) {
	s := e.store()
	const n, batch = 700, 100
	var want []string
	for from := 0; from < n; from += batch {
		e.update(s, func(tx store.Tx) error {
			for i := from; i < from+batch; i++ {
				err := tx.Put(things, fmt.Sprintf("%04d", i), nil, store.Entry{Index: byName, SortKey: fmt.Sprint(i / 30 % 10)})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range n {
		want = append(want, fmt.Sprintf("%d/%04d", i/30%10, i))
	}
	slices.Sort(want)
	e.wantScan(s, byName, store.Range{Limit: 10000}, want...)
	for _, limit := range []int{1, 7, 300, n} {
		var got []string
		r := store.Range{Limit: limit}
		for {
			hits := e.scan(s, byName, r)
			if len(hits) == 0 {
				break
			}
			got = append(got, hitsOf(hits)...)
			r.After = &hits[len(hits)-1]
		}
		if !slices.Equal(got, want) {
			e.Errorf("pages of %d give %d hits, want %d in order", limit, len(got), len(want))
		}
	}
}

func testScanCursorOfDeleted(e *env) {
	s := e.store()
	for _, k := range []string{"1", "2", "3"} {
		e.put(s, k, "v", store.Entry{Index: byName, SortKey: "x"})
	}
	e.delete(s, "2")
	e.wantScan(s, byName, store.Range{After: &store.Hit{SortKey: "x", Key: "2"}, Limit: 10}, "x/3")
}

func testEntriesFollow(e *env) {
	s := e.store()
	all := store.Range{Limit: 10}
	e.put(s, "a", "1", store.Entry{Index: byName, SortKey: "n1"}, store.Entry{Index: byState, SortKey: "s1"})
	e.wantScan(s, byName, all, "n1/a")
	e.wantScan(s, byState, all, "s1/a")
	e.put(s, "a", "2", store.Entry{Index: byName, SortKey: "n2"}) // one entry moves, one is removed
	e.wantScan(s, byName, all, "n2/a")
	e.wantScan(s, byState, all)
	e.put(s, "a", "3", store.Entry{Index: byState, SortKey: "s1"}, store.Entry{Index: byName, SortKey: "n2"}) // one stays, one comes back
	e.wantScan(s, byName, all, "n2/a")
	e.wantScan(s, byState, all, "s1/a")
	e.wantLen(s, things, byName, 1)
	e.put(s, "a", "4")
	e.wantScan(s, byName, all)
	e.wantScan(s, byState, all)
	e.wantLen(s, things, byName, 0)
	e.put(s, "a", "5", store.Entry{Index: byName, SortKey: "n5"})
	e.delete(s, "a")
	e.wantScan(s, byName, all)
	e.wantLen(s, things, byName, 0)
}

func testSeveralIndexes(e *env) {
	s := e.store()
	var entries []store.Entry
	for i := range 8 {
		entries = append(entries, store.Entry{Index: fmt.Sprintf("i%d", i), SortKey: strings.Repeat("s", i)})
	}
	e.put(s, "a", "v", entries...)
	e.put(s, "b", "v", entries[2:5]...)
	for i := range 8 {
		sk := strings.Repeat("s", i)
		want := []string{sk + "/a"}
		if i >= 2 && i < 5 {
			want = append(want, sk+"/b")
		}
		e.wantScan(s, fmt.Sprintf("i%d", i), store.Range{Limit: 10}, want...)
	}
}

func testLen(e *env) {
	s := e.store()
	e.wantLen(s, things, "", 0)
	e.wantLen(s, things, byName, 0)
	for i := range 10 {
		var entries []store.Entry
		if i < 4 {
			entries = append(entries, store.Entry{Index: byName, SortKey: "same"})
		}
		e.put(s, fmt.Sprint(i), "v", entries...)
	}
	e.wantLen(s, things, "", 10)
	e.wantLen(s, things, byName, 4)
	e.put(s, "0", "replaced", store.Entry{Index: byName, SortKey: "other"})
	e.put(s, "1", "replaced")
	e.delete(s, "2")
	e.delete(s, "never there")
	e.wantLen(s, things, "", 9)
	e.wantLen(s, things, byName, 2)
	if _, err := s.Len(e.ctx, "Bad Name", ""); err == nil {
		e.Error("Len accepts a bad collection name")
	}
}

func testScanNothing(e *env) {
	s := e.store()
	e.wantScan(s, byName, store.Range{Limit: 1})
	e.put(s, "a", "v")
	e.wantScan(s, byName, store.Range{Limit: 1})
}

// Bounds may be as long as keys but no longer, whether or not there are records.
func testScanOfLongBounds(e *env) {
	s := e.store()
	longest := strings.Repeat("k", store.MaxKeyBytes)
	ranges := func(bound string) map[string]store.Range {
		return map[string]store.Range{
			"From":              {From: bound, Limit: 10},
			"To":                {To: bound, Limit: 10},
			"sort key of After": {After: &store.Hit{SortKey: bound, Key: "a"}, Limit: 10},
			"key of After":      {After: &store.Hit{SortKey: "k", Key: bound}, Limit: 10},
		}
	}
	for range 2 {
		for _, more := range []int{1, 1 << 16} {
			for name, r := range ranges(longest + strings.Repeat("k", more)) {
				err := s.View(e.ctx, func(tx store.Tx) error {
					_, err := tx.Scan(things, byName, r)
					return err
				})
				if !errors.Is(err, store.ErrTooLarge) {
					e.Errorf("%s, longer by %d: %v, want ErrTooLarge", name, more, err)
				}
			}
		}
		e.put(s, longest, "v", store.Entry{Index: byName, SortKey: longest})
	}
	for name, want := range map[string][]string{
		"From":              {longest + "/" + longest},
		"To":                nil,
		"sort key of After": {longest + "/" + longest},
		"key of After":      {longest + "/" + longest},
	} {
		e.wantScan(s, byName, ranges(longest)[name], want...)
	}
}

// testScanFindsEarlier: numbers are given to records in the order in which functions run. A function that scans them finds
// all that were given before and whose transaction did not fail. So none appears later below what it has found.
func testScanFindsEarlier(e *env) {
	s := e.store()
	var next, upTo uint64 // of functions, which run one after the other
	var found []string
	failed := errors.New("this one fails")
	written := make([][]string, 8)
	take := func(tx store.Tx) error {
		hits, err := tx.Scan(things, byName, store.Range{From: fmt.Sprintf("%08d", upTo+1), Limit: 10000})
		for _, h := range hits {
			found = append(found, h.Key)
		}
		upTo = next
		return err
	}
	var wg sync.WaitGroup
	for w := range written {
		wg.Go(func() {
			for i := range 100 {
				key := fmt.Sprintf("%d-%d", w, i)
				err := s.Update(e.ctx, func(tx store.Tx) error {
					next++
					err := tx.Put(things, key, nil, store.Entry{Index: byName, SortKey: fmt.Sprintf("%08d", next)})
					if i%7 == 0 {
						err = failed
					}
					return err
				})
				switch {
				case err == nil:
					written[w] = append(written[w], key)
				case err != failed:
					e.Errorf("Update: %v", err)
				}
				if i%5 == w%5 {
					if err := s.Update(e.ctx, take); err != nil {
						e.Errorf("Update: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	e.update(s, take)
	want := slices.Concat(written...)
	slices.Sort(want)
	slices.Sort(found)
	if !slices.Equal(found, want) {
		e.Errorf("scans found %d records, %d were written", len(found), len(want))
	}
}
