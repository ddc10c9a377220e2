package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var recordCases = []testCase{
	{name: "PutGetDelete", test: testPutGetDelete},
	{name: "AnyBytes", test: testAnyBytes},
	{name: "CollectionsAreApart", test: testCollectionsAreApart},
	{name: "OwnWritesAreVisible", test: testOwnWrites},
	{name: "LastWriteOfATransactionWins", test: testLastWriteWins},
	{name: "ErrorAborts", test: testErrorAborts},
	{name: "PanicAborts", test: testPanicAborts},
	{name: "UpdateWithoutWrites", test: testUpdateWithoutWrites},
	{name: "ManyWrites", test: testManyWrites},
	{name: "ValuesStay", test: testValuesStay},
	{name: "CallersReuseBuffers", test: testReuse},
	{name: "NowIsFixed", test: testNowIsFixed},
}

var limitCases = []testCase{
	{name: "LargeValues", test: testLargeValues},
	{name: "TooLarge", test: testTooLarge},
	{name: "TooLargeTransaction", test: testTooLargeTransaction},
	{name: "BadArguments", test: testBadArguments},
	{name: "ViewIsReadOnly", test: testViewIsReadOnly},
	{name: "EndedContext", test: testEndedContext},
	{name: "ContextEndsInsideTheFunction", test: testContextEndsInside},
}

func testPutGetDelete(e *env) {
	s := e.store()
	e.want(s, "a", absent)
	e.put(s, "a", "1")
	e.put(s, "b", "2")
	e.want(s, "a", "1", "b", "2", "c", absent)
	e.put(s, "a", "3")
	e.want(s, "a", "3", "b", "2")
	e.delete(s, "a")
	e.delete(s, "never there")
	e.want(s, "a", absent, "b", "2")
	e.put(s, "a", "")
	e.want(s, "a", "")
	e.put(s, "a", "again")
	e.want(s, "a", "again")
}

func testAnyBytes(e *env) {
	s := e.store()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	keys := []string{
		string(all), "\x00", "\x00\x00", "\xff", "\xff\xfe", "a\x00b", "a", "A", "ü", "%", "_", "*", "a b", "a:b", `'"\`, "\r\n",
	}
	for i, k := range keys {
		e.put(s, k, fmt.Sprint(i)+string(all), store.Entry{Index: byName, SortKey: k})
	}
	for i, k := range keys {
		e.want(s, k, fmt.Sprint(i)+string(all))
		e.wantScan(s, byName, store.Range{From: k, Limit: 1}, k+"/"+k)
	}
}

func testCollectionsAreApart(e *env) {
	s := e.store()
	const others = store.Collection("things_2")
	e.put(s, "k", "thing", store.Entry{Index: byName, SortKey: "n"})
	e.update(s, func(tx store.Tx) error {
		return tx.Put(others, "k", []byte("other"), store.Entry{Index: byName, SortKey: "m"})
	})
	e.delete(s, "k")
	e.wantScan(s, byName, store.Range{Limit: 10})
	e.view(s, func(tx store.Tx) error {
		if v, err := get(tx, others, "k"); err != nil || v != "other" {
			e.Errorf("the other collection's record is %q, %v", v, err)
		}
		return nil
	})
	e.wantLen(s, others, "", 1)
	e.wantLen(s, things, "", 0)
}

func testOwnWrites(e *env) {
	s := e.store()
	e.put(s, "old", "1")
	var seen []string
	e.update(s, func(tx store.Tx) error {
		seen = seen[:0]
		look := func(key string) error {
			v, err := get(tx, things, key)
			seen = append(seen, v)
			return err
		}
		return errors.Join(
			look("new"),
			tx.Put(things, "new", []byte("2")), look("new"),
			tx.Delete(things, "old"), look("old"),
			tx.Put(things, "old", []byte("3")), look("old"),
			tx.Delete(things, "new"), look("new"),
		)
	})
	want := []string{absent, "2", absent, "3", absent}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		e.Errorf("the function saw %q, want %q", seen, want)
	}
	e.want(s, "old", "3", "new", absent)
}

func testLastWriteWins(e *env) {
	s := e.store()
	e.update(s, func(tx store.Tx) error {
		return errors.Join(
			tx.Put(things, "a", []byte("1"), store.Entry{Index: byName, SortKey: "x"}),
			tx.Put(things, "a", []byte("2"), store.Entry{Index: byName, SortKey: "y"}),
			tx.Put(things, "b", []byte("1"), store.Entry{Index: byName, SortKey: "z"}),
			tx.Delete(things, "b"),
			tx.Delete(things, "c"),
			tx.Put(things, "c", []byte("3"), store.Entry{Index: byState, SortKey: "s"}),
		)
	})
	e.want(s, "a", "2", "b", absent, "c", "3")
	e.wantScan(s, byName, store.Range{Limit: 10}, "y/a")
	e.wantScan(s, byState, store.Range{Limit: 10}, "s/c")
	e.wantLen(s, things, "", 2)
	e.wantLen(s, things, byName, 1)
}

func testErrorAborts(e *env) {
	s := e.store()
	e.put(s, "a", "1", store.Entry{Index: byName, SortKey: "n"})
	refused := errors.New("refused")
	err := s.Update(e.ctx, func(tx store.Tx) error {
		if err := errors.Join(tx.Put(things, "a", []byte("2")), tx.Put(things, "b", []byte("2"))); err != nil {
			return err
		}
		return refused
	})
	if err != refused {
		e.Errorf("Update returned %v, want the function's own error", err)
	}
	if err := s.View(e.ctx, func(store.Tx) error { return refused }); err != refused {
		e.Errorf("View returned %v, want the function's own error", err)
	}
	e.want(s, "a", "1", "b", absent)
	e.wantScan(s, byName, store.Range{Limit: 10}, "n/a")
}

func testPanicAborts(e *env) {
	s := e.store()
	for name, call := range calls(s) {
		func() {
			defer func() {
				if recover() != "oops" {
					e.Errorf("%s did not pass the panic on", name)
				}
			}()
			err := call(e.ctx, func(tx store.Tx) error {
				if name == "Update" {
					if err := tx.Put(things, "a", []byte("1")); err != nil {
						return err
					}
				}
				panic("oops")
			})
			e.Errorf("%s returned %v instead of panicking", name, err)
		}()
	}
	e.want(s, "a", absent)
	e.put(s, "a", "2") // the engine is usable
	e.want(s, "a", "2")
}

func testUpdateWithoutWrites(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	var v string
	e.update(s, func(tx store.Tx) (err error) {
		v, err = get(tx, things, "a")
		return err
	})
	if v != "1" {
		e.Errorf("the function saw %q", v)
	}
	e.update(s, func(store.Tx) error { return nil })
}

func testManyWrites(e *env) {
	s := e.store()
	const n = 1000
	key := func(i int) string { return fmt.Sprintf("k%04d", i) }
	e.update(s, func(tx store.Tx) error {
		for i := range n {
			if err := tx.Put(things, key(i), []byte("1"), store.Entry{Index: byName, SortKey: key(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	e.wantLen(s, things, "", n)
	e.update(s, func(tx store.Tx) error {
		for i := range n {
			var err error
			if i%2 == 0 {
				err = tx.Delete(things, key(i))
			} else {
				err = tx.Put(things, key(i), []byte("2"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	e.wantLen(s, things, "", n/2)
	e.wantLen(s, things, byName, 0)
	e.wantScan(s, byName, store.Range{Limit: 10})
	e.want(s, key(0), absent, key(1), "2", key(n-1), "2")
}

func testValuesStay(e *env) {
	s := e.store()
	e.put(s, "a", "first")
	var v []byte
	e.view(s, func(tx store.Tx) (err error) {
		v, err = tx.Get(things, "a")
		return err
	})
	e.put(s, "a", "other")
	e.delete(s, "a")
	if string(v) != "first" {
		e.Errorf("a value that was read became %q", v)
	}
}

// A caller may reuse its buffers once its call has returned, with or without an error.
func testReuse(e *env) {
	s := e.store()
	value, entries := []byte("first"), []store.Entry{{Index: byName, SortKey: "1"}}
	e.update(s, func(tx store.Tx) error { return tx.Put(things, "a", value, entries...) })
	copy(value, "other")
	entries[0].SortKey = "2"
	e.want(s, "a", "first")
	e.wantScan(s, byName, store.Range{Limit: 10}, "1/a")
	ctx, cancel := context.WithCancel(e.ctx)
	err := s.Update(ctx, func(tx store.Tx) error {
		defer cancel()
		return tx.Put(things, "a", value, entries...)
	})
	copy(value, "third")
	entries[0].SortKey = "3"
	// A shared engine may have committed before it noticed the end of the context.
	if got := e.get(s, "a"); got != "other" && (err == nil || got != "first") {
		e.Errorf("after an Update with %v there is %q", err, got)
	}
	e.wantScan(s, byName, store.Range{From: "3", Limit: 10})
}

func testNowIsFixed(e *env) {
	s := e.store()
	for name, call := range calls(s) {
		err := call(e.ctx, func(tx store.Tx) error {
			first := tx.Now()
			if _, err := get(tx, things, "a"); err != nil {
				return err
			}
			if second := tx.Now(); first.IsZero() || !second.Equal(first) {
				e.Errorf("Now in one %s is %v and %v", name, first, second)
			}
			return nil
		})
		if err != nil {
			e.Fatal(err)
		}
	}
}

func testLargeValues(e *env) {
	s := e.store()
	rnd := rand.NewChaCha8([32]byte{1})
	for _, n := range []int{1 << 10, 100 << 10, store.MaxValueBytes} {
		value := make([]byte, n)
		if _, err := rnd.Read(value); err != nil {
			e.Fatal(err)
		}
		key := fmt.Sprint(n)
		e.update(s, func(tx store.Tx) error { return tx.Put(things, key, value) })
		e.view(s, func(tx store.Tx) error {
			got, err := tx.Get(things, key)
			if err == nil && !bytes.Equal(got, value) {
				e.Errorf("a value of %d bytes came back as another one, of %d bytes", n, len(got))
			}
			return err
		})
	}
	long := strings.Repeat("k", store.MaxKeyBytes)
	e.put(s, long, "v", store.Entry{Index: byName, SortKey: long})
	e.want(s, long, "v")
	e.wantScan(s, byName, store.Range{Limit: 10}, long+"/"+long)
}

func testTooLarge(e *env) {
	s := e.store()
	long := strings.Repeat("k", store.MaxKeyBytes+1)
	for name, fn := range map[string]func(store.Tx) error{
		"value":    func(tx store.Tx) error { return tx.Put(things, "a", make([]byte, store.MaxValueBytes+1)) },
		"key":      func(tx store.Tx) error { return tx.Put(things, long, nil) },
		"sort key": func(tx store.Tx) error { return tx.Put(things, "a", nil, store.Entry{Index: byName, SortKey: long}) },
	} {
		err := s.Update(e.ctx, func(tx store.Tx) error {
			if err := tx.Put(things, "first", nil); err != nil {
				return err
			}
			return fn(tx)
		})
		if !errors.Is(err, store.ErrTooLarge) {
			e.Errorf("%s beyond the limit: %v, want ErrTooLarge", name, err)
		}
	}
	e.want(s, "a", absent, "first", absent)
}

func testTooLargeTransaction(e *env) {
	s := e.store()
	value := make([]byte, store.MaxValueBytes)
	err := s.Update(e.ctx, func(tx store.Tx) error {
		for i := range store.MaxTxBytes/len(value) + 1 {
			if err := tx.Put(things, fmt.Sprint(i), value); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, store.ErrTooLarge) {
		e.Errorf("error %v, want ErrTooLarge", err)
	}
	e.want(s, "0", absent)
	e.put(s, "0", "small")
	e.want(s, "0", "small")
}

func testBadArguments(e *env) {
	s := e.store()
	e.put(s, "a", "1", store.Entry{Index: byName, SortKey: "n"})
	long := strings.Repeat("n", 33)
	for name, fn := range map[string]func(store.Tx) error{
		"empty key":             func(tx store.Tx) error { return tx.Put(things, "", nil) },
		"empty key to delete":   func(tx store.Tx) error { return tx.Delete(things, "") },
		"empty collection":      func(tx store.Tx) error { return tx.Put("", "k", nil) },
		"long collection":       func(tx store.Tx) error { return tx.Put(store.Collection(long), "k", nil) },
		"collection of capital": func(tx store.Tx) error { return tx.Delete("Things", "k") },
		"index with a quote":    func(tx store.Tx) error { return tx.Put(things, "k", nil, store.Entry{Index: `a"b`}) },
		"empty index":           func(tx store.Tx) error { return tx.Put(things, "k", nil, store.Entry{}) },
		"index twice": func(tx store.Tx) error {
			return tx.Put(things, "k", nil, store.Entry{Index: byName, SortKey: "1"}, store.Entry{Index: byName, SortKey: "2"})
		},
		"get from a bad collection": func(tx store.Tx) error { _, err := tx.Get("a b", "k"); return err },
		"scan of a bad index":       func(tx store.Tx) error { _, err := tx.Scan(things, "", store.Range{Limit: 1}); return err },
		"scan without a limit":      func(tx store.Tx) error { _, err := tx.Scan(things, byName, store.Range{}); return err },
		"scan beyond the limit": func(tx store.Tx) error {
			_, err := tx.Scan(things, byName, store.Range{Limit: 10001})
			return err
		},
	} {
		err := s.Update(e.ctx, fn)
		if err == nil || errors.Is(err, store.ErrNotFound) {
			e.Errorf("%s: error %v, want a refusal", name, err)
		}
	}
	e.want(s, "a", "1")
	e.wantLen(s, things, "", 1)
}

func testViewIsReadOnly(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	for name, fn := range map[string]func(store.Tx) error{
		"Put":    func(tx store.Tx) error { return tx.Put(things, "a", nil) },
		"Delete": func(tx store.Tx) error { return tx.Delete(things, "a") },
	} {
		if err := s.View(e.ctx, fn); !errors.Is(err, store.ErrReadOnly) {
			e.Errorf("%s in a View: %v, want ErrReadOnly", name, err)
		}
	}
	e.want(s, "a", "1")
}

func testEndedContext(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	err := s.Update(ctx, func(tx store.Tx) error { return tx.Put(things, "a", []byte("2")) })
	if !errors.Is(err, context.Canceled) {
		e.Errorf("Update with an ended context: %v", err)
	}
	if err := s.View(ctx, func(store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		e.Errorf("View with an ended context: %v", err)
	}
	e.want(s, "a", "1")
}

func testContextEndsInside(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	err := s.Update(ctx, func(tx store.Tx) error {
		if err := tx.Put(things, "a", []byte("2")); err != nil {
			return err
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		e.Errorf("Update whose context ended before its commit: %v", err)
	}
	e.want(s, "a", "1")
}
