package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var claimCases = []testCase{
	{name: "ClaimsAreExclusive", test: func(e *env) { testClaims(e, true) }},
	{name: "ClaimsWithPlainScansAreExclusive", test: func(e *env) { testClaims(e, false) }},
	{name: "ExpiredRecordsAreSwept", test: testSweep},
}

// testClaims lets workers claim jobs from an index of ready ones, as a queue does: each job must be claimed exactly
// once.
func testClaims(e *env, claim bool) {
	const jobs, workers = 200, 8
	all := e.managers(workers)
	e.update(all[0], func(tx store.Tx) error {
		for i := range jobs {
			key := fmt.Sprintf("job%03d", i)
			if err := tx.Put(things, key, []byte("ready"), store.Entry{Index: byState, SortKey: "ready:" + key}); err != nil {
				return err
			}
		}
		return nil
	})
	var mu sync.Mutex
	taken := make(map[string][]int)
	var count atomic.Int32
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for count.Load() < jobs && ctx.Err() == nil {
			var mine []string
			err := update(ctx, all[w], func(tx store.Tx) error {
				mine = mine[:0]
				hits, err := tx.Scan(things, byState, store.Range{From: "ready:", To: "ready;", Limit: 5, Claim: claim})
				if err != nil {
					return err
				}
				for _, h := range hits {
					v, err := get(tx, things, h.Key)
					if err != nil {
						return err
					}
					if v != "ready" {
						continue // the scan was stale
					}
					if err := tx.Put(things, h.Key, []byte(fmt.Sprint("active ", w)), store.Entry{Index: byState, SortKey: "active:" + h.Key}); err != nil {
						return err
					}
					if mine = append(mine, h.Key); len(mine) == 1+w%2 {
						break
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			if len(mine) == 0 {
				runtime.Gosched() // other workers are about to finish, or have claimed all hits
				continue
			}
			mu.Lock()
			for _, key := range mine {
				taken[key] = append(taken[key], w)
			}
			mu.Unlock()
			count.Add(int32(len(mine)))
		}
		return ctx.Err()
	})
	for key, by := range taken {
		if len(by) != 1 {
			e.Errorf("%s was claimed by workers %v", key, by)
		}
		e.want(all[0], key, fmt.Sprint("active ", by[0]))
	}
	if len(taken) != jobs {
		e.Errorf("%d jobs were claimed, want %d", len(taken), jobs)
	}
	e.wantScan(all[0], byState, store.Range{From: "ready:", To: "ready;", Limit: 10})
}

// testSweep deletes records by an index of their expiry, as a TTL does, while other transactions prolong some of them.
// No prolonged record may be deleted, and every other one must be.
func testSweep(e *env) {
	const records, now = 120, 1000
	all := e.managers(4)
	sortKey := func(expires uint64) string {
		return string(binary.BigEndian.AppendUint64(nil, expires))
	}
	put := func(tx store.Tx, key string, expires uint64) error {
		return tx.Put(things, key, []byte(sortKey(expires)), store.Entry{Index: byName, SortKey: sortKey(expires)})
	}
	e.update(all[0], func(tx store.Tx) error {
		for i := range records {
			expires := uint64(now - 1 - i)
			if i%4 == 0 {
				expires = now + uint64(i)
			}
			if err := put(tx, fmt.Sprintf("r%03d", i), expires); err != nil {
				return err
			}
		}
		return nil
	})
	var mu sync.Mutex
	prolonged := make(map[string]bool)
	errSwept := errors.New("swept already")
	var prolonging atomic.Int32
	prolonging.Store(2)
	e.concurrently(4, func(ctx context.Context, w int) error {
		if w < 2 {
			defer prolonging.Add(-1)
			for i := w; i < records; i += 6 {
				key := fmt.Sprintf("r%03d", i)
				err := update(ctx, all[w], func(tx store.Tx) error {
					if v, err := get(tx, things, key); err != nil {
						return err
					} else if v == absent {
						return errSwept
					}
					return put(tx, key, now+5000)
				})
				if errors.Is(err, errSwept) {
					continue
				}
				if err != nil {
					return err
				}
				mu.Lock()
				prolonged[key] = true
				mu.Unlock()
			}
			return nil
		}
		for {
			last := prolonging.Load() == 0
			swept := 0
			err := update(ctx, all[w], func(tx store.Tx) error {
				swept = 0
				hits, err := tx.Scan(things, byName, store.Range{To: sortKey(now), Limit: 7})
				if err != nil {
					return err
				}
				for _, h := range hits {
					v, err := get(tx, things, h.Key)
					if err != nil {
						return err
					}
					if v == absent || strings.Compare(v, sortKey(now)) >= 0 {
						continue
					}
					if err := tx.Delete(things, h.Key); err != nil {
						return err
					}
					swept++
				}
				return nil
			})
			if err != nil {
				return err
			}
			if last && swept == 0 {
				return nil
			}
		}
	})
	// A stale scan may have hidden a record from the last round.
	e.wantScan(all[0], byName, store.Range{To: sortKey(now), Limit: 10})
	for i := range records {
		key := fmt.Sprintf("r%03d", i)
		there := e.get(all[0], key) != absent
		if want := i%4 == 0 || prolonged[key]; there != want {
			e.Errorf("%s is there: %v, want %v (prolonged %v)", key, there, want, prolonged[key])
		}
	}
}
