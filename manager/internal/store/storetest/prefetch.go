package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var prefetchCases = []testCase{
	{name: "PrefetchedRecordsAreRead", test: testPrefetch},
	{name: "PrefetchedRecordsAreProtected", test: func(e *env) { testPrefetchCounters(e, store.Tx.Prefetch) }},
	{name: "PrefetchedRecordsAreAsOthersLeftThem", test: func(e *env) { testPrefetchChanged(e, store.Tx.Prefetch) }},
	{name: "NewRecordsAreProtected", test: func(e *env) { testPrefetchCounters(e, store.Tx.PrefetchNew) }},
	{name: "NewRecordsAreAsOthersLeftThem", test: func(e *env) { testPrefetchChanged(e, store.Tx.PrefetchNew) }},
	{name: "ClaimedRecordsAreFinished", test: testFinishClaimed},
	{name: "RecordsReadWithAScanAreRead", test: testReadWithScan},
	{name: "RecordsReadWithAScanAreProtected", test: func(e *env) { testPrefetchCounters(e, readWithScan) }},
}

// testPrefetch mixes records that exist, records that are absent, and records that the transaction has written.
func testPrefetch(e *env) {
	s := e.store()
	e.put(s, "there", "1", store.Entry{Index: byName, SortKey: "x"})
	e.put(s, "replaced", "1", store.Entry{Index: byName, SortKey: "y"})
	e.put(s, "deleted", "1", store.Entry{Index: byName, SortKey: "z"})
	var seen []string
	look := func(tx store.Tx, keys ...string) error {
		values, err := getAll(tx, keys...)
		seen = append(seen, values...)
		return err
	}
	e.update(s, func(tx store.Tx) error {
		seen = nil
		return errors.Join(
			tx.Prefetch(nil),
			tx.Put(things, "replaced", []byte("2"), store.Entry{Index: byName, SortKey: "w"}),
			tx.Delete(things, "deleted"),
			tx.Prefetch(idsOf("there", "absent", "replaced", "there", "deleted", "new")),
			look(tx, "there", "absent", "replaced", "deleted", "new"),
			tx.Put(things, "new", []byte("3"), store.Entry{Index: byName, SortKey: "v"}),
			tx.Put(things, "there", []byte("4"), store.Entry{Index: byName, SortKey: "u"}),
			tx.Prefetch(idsOf("new", "there")),
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
		return errors.Join(tx.Prefetch(idsOf("new", "absent", "there")), look(tx, "there", "absent", "new"))
	})
	if got, want := fmt.Sprint(seen), fmt.Sprint([]string{"4", absent, "3"}); got != want {
		e.Errorf("a View saw %s, want %s", got, want)
	}
}

// testPrefetchChanged lets one manager read records that it inserted and another one changed: the function's last run sees
// what is there, whether it writes the record, another one or nothing, or fails.
func testPrefetchChanged(e *env, read func(store.Tx, []store.ID) error) {
	all := e.managers(2)
	mine, others := all[0], all[1]
	insert := func(key string) {
		err := update(e.ctx, mine, func(tx store.Tx) error {
			return errors.Join(tx.PrefetchNew(idsOf(key)), tx.Put(things, key, []byte("1"), store.Entry{Index: byName, SortKey: key}))
		})
		if err != nil {
			e.Fatal(err)
		}
	}
	refused := errors.New("refused")
	for name, then := range map[string]func(tx store.Tx, key string) error{
		"writes it":      func(tx store.Tx, key string) error { return tx.Put(things, key, []byte("3")) },
		"writes another": func(tx store.Tx, key string) error { return tx.Put(things, key+" too", []byte("3")) },
		"notifies":       func(tx store.Tx, key string) error { tx.Notify(key); return nil },
		"writes nothing": func(store.Tx, string) error { return nil },
		"fails":          func(store.Tx, string) error { return refused },
	} {
		for _, change := range []string{"changed", "deleted", "inserted", "same"} {
			key, want := name+" "+change, "2"
			for i := range 10 { // an engine that was wrong reads for a while
				insert(fmt.Sprint(key, i))
			}
			switch change {
			case "changed":
				insert(key)
				e.put(others, key, "2")
			case "deleted":
				insert(key)
				e.update(others, func(tx store.Tx) error { return tx.Delete(things, key) })
				want = absent
			case "inserted":
				e.put(others, key, "2")
			case "same":
				insert(key)
				want = "1"
			}
			var seen string
			err := update(e.ctx, mine, func(tx store.Tx) error {
				err := read(tx, idsOf(key))
				if err == nil {
					seen, err = get(tx, things, key)
				}
				if err != nil {
					return err
				}
				return then(tx, key)
			})
			if name == "fails" && errors.Is(err, refused) {
				err = nil
			}
			if err != nil || seen != want {
				e.Errorf("a function that %s saw the %s record as %s, error %v; want %s", name, change, seen, err, want)
			}
			switch name {
			case "writes it":
				e.want(others, key, "3")
			case "writes another":
				e.want(others, key, want, key+" too", "3")
			default:
				e.want(others, key, want)
			}
		}
	}
}

// testFinishClaimed lets one manager finish what it claimed, after another manager changed some of it.
func testFinishClaimed(e *env) {
	const records = 12
	all := e.managers(2)
	mine, others := all[0], all[1]
	var ids []store.ID
	for i := range records {
		key := fmt.Sprint("claimed", i)
		ids = append(ids, store.ID{Collection: things, Key: key})
		e.put(mine, key, "queued", store.Entry{Index: byName, SortKey: fmt.Sprintf("q%02d", i)})
	}
	e.update(mine, func(tx store.Tx) error {
		hits, err := tx.Scan(things, byName, store.Range{From: "q", To: "r", Limit: records, Claim: true})
		if err == nil && len(hits) != records {
			err = fmt.Errorf("%d hits, want %d", len(hits), records)
		}
		for i, h := range hits {
			err = errors.Join(err, tx.Put(things, h.Key, []byte("active"), store.Entry{Index: byName, SortKey: fmt.Sprintf("a%02d", i)}))
		}
		return err
	})
	e.put(others, ids[1].Key, "revoked", store.Entry{Index: byName, SortKey: "q50"})
	e.put(mine, ids[2].Key, "extended", store.Entry{Index: byName, SortKey: "a50"})
	e.update(others, func(tx store.Tx) error { return tx.Delete(things, ids[3].Key) })
	var seen []string
	e.update(mine, func(tx store.Tx) error {
		seen = nil
		if err := tx.Prefetch(ids); err != nil {
			return err
		}
		for _, id := range ids {
			v, err := get(tx, things, id.Key)
			if err != nil {
				return err
			}
			if seen = append(seen, v); v != "active" && v != "extended" {
				continue
			}
			if err := tx.Put(things, id.Key, []byte("done"), store.Entry{Index: byName, SortKey: "d" + id.Key}); err != nil {
				return err
			}
		}
		return nil
	})
	want := []string{"active", "revoked", "extended", absent, "active", "active", "active", "active", "active", "active", "active", "active"}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		e.Errorf("the function saw %v, want %v", seen, want)
	}
	e.want(others, ids[0].Key, "done", ids[1].Key, "revoked", ids[2].Key, "done", ids[3].Key, absent, ids[4].Key, "done")
	e.wantScan(others, byName, store.Range{From: "a", To: "c", Limit: records})
	e.wantScan(others, byName, store.Range{From: "q", To: "r", Limit: records}, "q50/"+ids[1].Key)
}

func readWithScan(tx store.Tx, ids []store.ID) error {
	_, err := tx.Scan(things, byName, store.Range{Limit: 1, Claim: true, With: ids})
	return err
}

// testReadWithScan reads records with a claiming scan: one that exists, a hit of the scan, one that is absent, and two
// that the transaction has written.
func testReadWithScan(e *env) {
	s := e.store()
	e.put(s, "there", "1")
	e.put(s, "hit", "2", store.Entry{Index: byName, SortKey: "x"})
	e.put(s, "replaced", "3")
	var seen []string
	for _, claim := range []bool{true, false} {
		e.update(s, func(tx store.Tx) error {
			seen = nil
			if err := errors.Join(tx.Put(things, "replaced", []byte("4")), tx.Put(things, "new", []byte("5"))); err != nil {
				return err
			}
			keys := []string{"there", "hit", "absent", "replaced", "new", "there"}
			hits, err := tx.Scan(things, byName, store.Range{Limit: 5, Claim: claim, With: idsOf(keys...)})
			if err != nil {
				return err
			}
			values, err := getAll(tx, keys...)
			seen = append([]string{fmt.Sprint(hits)}, values...)
			return err
		})
		if got, want := fmt.Sprint(seen), fmt.Sprint([]string{"[{x hit}]", "1", "2", absent, "4", "5", "1"}); got != want {
			e.Errorf("the function saw %s, want %s", got, want)
		}
	}
	err := s.Update(e.ctx, func(tx store.Tx) error {
		_, err := tx.Scan(things, byName, store.Range{Limit: 5, Claim: true, With: []store.ID{{Collection: "NO", Key: "x"}}})
		return err
	})
	if err == nil {
		e.Errorf("a scan reads a record of a collection whose name is not allowed")
	}
}

// testPrefetchCounters is testCounters with several counters in each transaction, all absent at first.
func testPrefetchCounters(e *env, read func(store.Tx, []store.ID) error) {
	const workers, rounds, counters = 6, 15, 4
	all := e.managers(workers)
	key := func(i int) string { return fmt.Sprintf("counter%d", i%counters) }
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for i := range rounds {
			mine := []string{key(w + i), key(w + i + 1 + i%2)}
			err := update(ctx, all[w], func(tx store.Tx) error {
				err := read(tx, idsOf(mine...))
				for _, k := range mine {
					if err == nil {
						_, err = addInt(tx, k, 1)
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	sum := 0
	e.view(all[0], func(tx store.Tx) (err error) {
		sum, err = sumInts(tx, counters, key)
		return err
	})
	if want := 2 * workers * rounds; sum != want {
		e.Errorf("the counters sum up to %d, want %d", sum, want)
	}
}
