package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var prefetchCases = []testCase{
	{name: "PrefetchedRecordsAreRead", test: testPrefetch},
	{name: "PrefetchedRecordsAreProtected", test: testPrefetchCounters},
}

// testPrefetch mixes records that exist, records that are absent, and records that the transaction has written.
func testPrefetch(e *env) {
	s := e.store()
	e.put(s, "there", "1", store.Entry{Index: byName, SortKey: "x"})
	e.put(s, "replaced", "1", store.Entry{Index: byName, SortKey: "y"})
	e.put(s, "deleted", "1", store.Entry{Index: byName, SortKey: "z"})
	names := func(keys ...string) []store.ID {
		ids := make([]store.ID, len(keys))
		for i, key := range keys {
			ids[i] = store.ID{Collection: things, Key: key}
		}
		return ids
	}
	var seen []string
	look := func(tx store.Tx, keys ...string) error {
		for _, key := range keys {
			v, err := get(tx, things, key)
			if err != nil {
				return err
			}
			seen = append(seen, v)
		}
		return nil
	}
	e.update(s, func(tx store.Tx) error {
		seen = nil
		return errors.Join(
			store.Prefetch(tx, nil),
			tx.Put(things, "replaced", []byte("2"), store.Entry{Index: byName, SortKey: "w"}),
			tx.Delete(things, "deleted"),
			store.Prefetch(tx, names("there", "absent", "replaced", "there", "deleted", "new")),
			look(tx, "there", "absent", "replaced", "deleted", "new"),
			tx.Put(things, "new", []byte("3"), store.Entry{Index: byName, SortKey: "v"}),
			tx.Put(things, "there", []byte("4"), store.Entry{Index: byName, SortKey: "u"}),
			store.Prefetch(tx, names("new", "there")),
			look(tx, "new", "there"),
		)
	})
	if got, want := fmt.Sprint(seen), fmt.Sprint([]string{"1", absent, "2", absent, absent, "3", "4"}); got != want {
		e.Errorf("the function saw %s, want %s", got, want)
	}
	e.want(s, "there", "4", "absent", absent, "replaced", "2", "deleted", absent, "new", "3")
	e.wantScan(s, byName, store.Range{Limit: 10}, "u/there", "v/new", "w/replaced")
	e.view(s, func(tx store.Tx) error {
		seen = nil
		return errors.Join(store.Prefetch(tx, names("new", "absent", "there")), look(tx, "there", "absent", "new"))
	})
	if got, want := fmt.Sprint(seen), fmt.Sprint([]string{"4", absent, "3"}); got != want {
		e.Errorf("a View saw %s, want %s", got, want)
	}
}

// testPrefetchCounters is testCounters with several counters in each transaction, all absent at first.
func testPrefetchCounters(e *env) {
	const workers, rounds, counters = 6, 15, 4
	all := e.managers(workers)
	key := func(i int) string { return fmt.Sprintf("counter%d", i%counters) }
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for i := range rounds {
			mine := []string{key(w + i), key(w + i + 1 + i%2)}
			err := update(ctx, all[w], func(tx store.Tx) error {
				if err := store.Prefetch(tx, []store.ID{{Collection: things, Key: mine[0]}, {Collection: things, Key: mine[1]}}); err != nil {
					return err
				}
				for _, k := range mine {
					n, err := getInt(tx, k)
					if err != nil {
						return err
					}
					if err := putInt(tx, k, n+1); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	sum := 0
	e.view(all[0], func(tx store.Tx) error {
		sum = 0
		for i := range counters {
			n, err := getInt(tx, key(i))
			if err != nil {
				return err
			}
			sum += n
		}
		return nil
	})
	if want := 2 * workers * rounds; sum != want {
		e.Errorf("the counters sum up to %d, want %d", sum, want)
	}
}
