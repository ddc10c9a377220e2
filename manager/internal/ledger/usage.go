package ledger

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// usage counts what each scope holds, in a table of fixed size (a count-min sketch). Every scope has a cell in each
// row, and holds at most the least of its cells. A scope seems larger than it is only if it shares all of its cells
// with large scopes. Scopes are not listed, so no number of scopes uses up memory.
//
// A transaction that seems to fail may have happened, and is not counted. The scope then seems smaller than it is.
type usage struct {
	seed maphash.Seed
	rows [usageRows][usageWidth]usageCell
	// pending is the approximate number of PENDING entries.
	pending atomic.Int64
	// growth is by how many bytes recent outcomes exceeded their reservations on average.
	growth atomic.Int64
}

const (
	usageRows  = 3
	usageWidth = 1 << usageBits
	usageBits  = 12
	// firstGrowth is usage.growth before the first outcome.
	firstGrowth = 256
)

type usageCell struct{ entries, bytes atomic.Int64 }

// delta is a transaction's change of what a scope holds.
type delta struct {
	scope          uint64 // usage.hash
	entries, bytes int64
	released       bool // by the call of its holder
}

func (u *usage) init() {
	u.seed = maphash.MakeSeed()
	u.growth.Store(firstGrowth)
}

// hash hashes the scope of a record key.
func (u *usage) hash(recordKey string) uint64 {
	scope, _, _ := splitRecordKey(recordKey)
	return maphash.String(u.seed, scope)
}

func (u *usage) cell(row int, scope uint64) *usageCell {
	return &u.rows[row][scope>>(row*usageBits)&(usageWidth-1)]
}

func (u *usage) add(d delta) {
	for row := range u.rows {
		c := u.cell(row, d.scope)
		c.entries.Add(d.entries)
		c.bytes.Add(d.bytes)
	}
}

// of returns an upper bound of what a scope holds.
func (u *usage) of(scope uint64) (entries, bytes int64) {
	entries, bytes = math.MaxInt64, math.MaxInt64
	for row := range u.rows {
		c := u.cell(row, scope)
		entries, bytes = min(entries, c.entries.Load()), min(bytes, c.bytes.Load())
	}
	return max(entries, 0), max(bytes, 0)
}

// decay makes a manager that cannot see what others removed forget its own insertions at the rate at which entries
// expire.
func (u *usage) decay(passed, ttl time.Duration) {
	gone := 1 - math.Exp(-float64(passed)/float64(ttl))
	for row := range u.rows {
		for i := range u.rows[row] {
			c := &u.rows[row][i].entries
			if n := c.Load(); n != 0 {
				c.Add(-int64(math.Ceil(float64(n) * gone)))
			}
		}
	}
}

// addGrowth adds a recorded outcome to the average growth.
func (u *usage) addGrowth(growth int64) {
	old := u.growth.Load()
	u.growth.Store(old + (max(growth, 0)-old)/16)
}

// countScopes counts what each scope holds, before the ledger is used.
func (l *Ledger) countScopes(ctx context.Context) error {
	if !l.sizes {
		return nil
	}
	if !l.boundsScopes() {
		return l.countPending(ctx)
	}
	for _, state := range storedStates {
		r := store.Range{Limit: 1000}
		for more := true; more; {
			var found []delta
			err := l.store.View(ctx, func(tx store.Tx) error {
				found = found[:0]
				hits, err := tx.Scan(collection, indexOf(state), r)
				if err != nil {
					return err
				}
				for _, h := range hits {
					value, err := tx.Get(collection, h.Key)
					if errors.Is(err, store.ErrNotFound) || l.opts.Unreadable.Met(err) {
						continue
					}
					if err != nil {
						return err
					}
					var r record
					if l.opts.Origin != "" && decodeRecord(h.Key, value, &r) == nil && r.imported {
						continue
					}
					found = append(found, delta{scope: l.usage.hash(h.Key), entries: 1, bytes: int64(len(h.Key)+len(value)) + EntryOverhead})
				}
				if more = len(hits) == r.Limit; more {
					r.After = &hits[len(hits)-1]
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, d := range found {
				l.usage.add(d)
			}
		}
	}
	return l.countPending(ctx)
}

func (l *Ledger) countPending(ctx context.Context) error {
	n, err := l.store.Len(ctx, collection, indexPending)
	if err == nil {
		l.usage.pending.Store(int64(n))
	}
	return err
}
