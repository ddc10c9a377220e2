package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var isolationCases = []testCase{
	{name: "CountersLoseNothing", test: testCounters},
	{name: "NoWriteSkew", test: testWriteSkew},
	{name: "NoSkewOverAbsence", test: testAbsenceSkew},
	{name: "TransfersKeepTheSum", test: testTransfers},
	{name: "FunctionMayRunAgain", test: testRunAgain},
	{name: "RegistersAreLinearizable", test: testLinearizable},
}

// concurrently runs fn for each worker. At the first error it stops the others and reports the error.
func (e *env) concurrently(n int, fn func(ctx context.Context, worker int) error) {
	e.Helper()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			if err := fn(ctx, w); err != nil {
				cancel(fmt.Errorf("worker %d: %w", w, err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		e.Fatal(err)
	}
}

func getInt(tx store.Tx, key string) (int, error) {
	v, err := get(tx, things, key)
	if err != nil || v == absent {
		return 0, err
	}
	return strconv.Atoi(v)
}

func putInt(tx store.Tx, key string, n int) error {
	return tx.Put(things, key, []byte(strconv.Itoa(n)), store.Entry{Index: byName, SortKey: fmt.Sprintf("%08d", n)})
}

// addInt adds to a number and returns what it was.
func addInt(tx store.Tx, key string, more int) (was int, err error) {
	if was, err = getInt(tx, key); err == nil {
		err = putInt(tx, key, was+more)
	}
	return was, err
}

// sumInts sums up the first n numbers with keys.
func sumInts(tx store.Tx, n int, key func(int) string) (sum int, err error) {
	for i := range n {
		v, err := getInt(tx, key(i))
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// testCounters lets many callers read, add and write back. A lost update shows in the sum, and an index outside the
// transaction shows in the scan.
func testCounters(e *env) {
	const workers, rounds = 8, 25
	all := e.managers(workers)
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for i := range rounds {
			key := "busy"
			if i%5 == 0 {
				key = "calm" + fmt.Sprint(w%2)
			}
			err := update(ctx, all[w], func(tx store.Tx) error {
				_, err := addInt(tx, key, 1)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	e.want(all[0], "busy", fmt.Sprint(workers*rounds*4/5), "calm0", fmt.Sprint(workers*rounds/10), "calm1", fmt.Sprint(workers*rounds/10))
	e.wantScan(all[0], byName, store.Range{Limit: 10}, "00000020/calm0", "00000020/calm1", "00000160/busy")
}

// testWriteSkew has pairs of transactions that each read both records and
// clear one, allowed only while the other is set. Serializable transactions
// never leave both cleared.
func testWriteSkew(e *env) {
	all := e.managers(2)
	for round := range 40 {
		keys := [2]string{fmt.Sprintf("%d-left", round), fmt.Sprintf("%d-right", round)}
		e.put(all[0], keys[0], "1")
		e.put(all[0], keys[1], "1")
		e.concurrently(2, func(ctx context.Context, w int) error {
			return update(ctx, all[w], func(tx store.Tx) error {
				mine, err := get(tx, things, keys[w])
				if err != nil {
					return err
				}
				other, err := get(tx, things, keys[1-w])
				if err != nil || mine != "1" || other != "1" {
					return err
				}
				return tx.Put(things, keys[w], []byte("0"))
			})
		})
		if e.get(all[0], keys[0]) == "0" && e.get(all[0], keys[1]) == "0" {
			e.Fatalf("round %d: both records were cleared", round)
		}
	}
}

// testAbsenceSkew is the same with absent records: each transaction creates its own unless the other's exists.
func testAbsenceSkew(e *env) {
	all := e.managers(2)
	for round := range 40 {
		keys := [2]string{fmt.Sprintf("%d-left", round), fmt.Sprintf("%d-right", round)}
		e.concurrently(2, func(ctx context.Context, w int) error {
			return update(ctx, all[w], func(tx store.Tx) error {
				other, err := get(tx, things, keys[1-w])
				if err != nil || other != absent {
					return err
				}
				return tx.Put(things, keys[w], []byte("mine"))
			})
		})
		left, right := e.get(all[0], keys[0]), e.get(all[0], keys[1])
		if left != absent && right != absent {
			e.Fatalf("round %d: both records were created", round)
		}
		if left == absent && right == absent {
			e.Fatalf("round %d: no record was created", round)
		}
	}
}

// testTransfers moves amounts between accounts while others read all of them, in Views and in Updates. Each must see
// one state.
func testTransfers(e *env) {
	const accounts, movers, rounds, each = 5, 4, 25, 100
	all := e.managers(movers + 2)
	key := func(i int) string { return fmt.Sprintf("account%d", i) }
	e.update(all[0], func(tx store.Tx) error {
		for i := range accounts {
			if err := putInt(tx, key(i), each); err != nil {
				return err
			}
		}
		return nil
	})
	sum := func(total *int) func(store.Tx) error {
		return func(tx store.Tx) (err error) {
			*total, err = sumInts(tx, accounts, key)
			return err
		}
	}
	var moving atomic.Int32
	moving.Store(movers)
	e.concurrently(movers+2, func(ctx context.Context, w int) error {
		if w < movers {
			defer moving.Add(-1)
			for i := range rounds {
				from, to, amount := key((w+i)%accounts), key((w+2*i+1)%accounts), 1+i%7
				if from == to {
					continue
				}
				err := update(ctx, all[w], func(tx store.Tx) error {
					a, err := getInt(tx, from)
					b, err2 := getInt(tx, to)
					if err := errors.Join(err, err2); err != nil {
						return err
					}
					return errors.Join(putInt(tx, from, a-amount), putInt(tx, to, b+amount))
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
		for last := false; !last; {
			last = moving.Load() == 0
			var total int
			var err error
			if w == movers {
				err = all[w].View(ctx, sum(&total))
			} else {
				err = update(ctx, all[w], sum(&total))
			}
			if err != nil {
				return err
			}
			if total != accounts*each {
				return fmt.Errorf("the accounts sum up to %d, want %d", total, accounts*each)
			}
		}
		return nil
	})
}

// testRunAgain checks that the values a function assigned in its last run are those that were written.
func testRunAgain(e *env) {
	const workers, rounds = 6, 20
	all := e.managers(workers)
	var mu sync.Mutex
	drawn := make(map[int]int)
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for range rounds {
			var mine int
			err := update(ctx, all[w], func(tx store.Tx) (err error) {
				mine, err = addInt(tx, "ticket", 1)
				return err
			})
			if err != nil {
				return err
			}
			mu.Lock()
			drawn[mine]++
			mu.Unlock()
		}
		return nil
	})
	for i := range workers * rounds {
		if drawn[i] != 1 {
			e.Errorf("ticket %d was drawn %d times", i, drawn[i])
		}
	}
}
