package views

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Capacity is how much of the window is used, and what it can take.
type Capacity struct {
	ledger.Stats
	// Oldest is about the age of the oldest entry: the highest age among the entries that expire first, one of each state.
	// 0 if there are no entries.
	Oldest time.Duration
	// KeysPerSecond is how many new keys per second the window holds, ScopeKeysPerSecond those of one scope (see
	// ledger.Options.KeysPerSecond). CommittedTTL is for how long each stays then.
	KeysPerSecond, ScopeKeysPerSecond float64
	CommittedTTL                      time.Duration
}

// CapacityOf returns the use of the window. It reads the counts and an entry of each state. Errors: the store's.
func CapacityOf(ctx context.Context, l *ledger.Ledger) (Capacity, error) {
	s, err := l.Stats(ctx)
	if err != nil {
		return Capacity{}, err
	}
	opts := l.Options()
	c := Capacity{Stats: s, CommittedTTL: opts.CommittedTTL}
	c.KeysPerSecond, c.ScopeKeysPerSecond = opts.KeysPerSecond(s.MaxBytes >= 0)
	err = l.View(ctx, func(tx store.Tx) error {
		c.Oldest = 0
		for state := range c.ByState() {
			index, from := ledger.ByExpiry(state, tx.Now())
			hits, err := tx.Scan(ledger.Collection, index, store.Range{From: from, Limit: 1})
			if err != nil {
				return err
			}
			for _, h := range hits {
				e, _, err := l.Live(tx, h.Key)
				if err == nil {
					c.Oldest = max(c.Oldest, e.Age)
				}
			}
		}
		return nil
	})
	return c, err
}

// PendingByAge returns the reservations that hold, the oldest first and up to limit. It looks at the MaxLimit that run out
// first; more says that there are others. List has all of them, in the order in which they run out. Errors: the store's.
func PendingByAge(ctx context.Context, l *ledger.Ledger, limit int) (entries []ledger.Entry, more bool, err error) {
	entries, cursor, err := List(ctx, l, api.StatePending, MaxLimit, "")
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(entries, func(a, b ledger.Entry) int { return cmp.Compare(b.Age, a.Age) })
	return entries[:min(limit, len(entries))], cursor != "" || len(entries) > limit, nil
}

// movedScan is how many entries one transaction of Moved examines.
const movedScan = 2048

// Moved counts all entries whose keys another ledger owns, except those whose scope is ours: their callers have chosen
// this ledger. ours may be nil. While there are any such entries, a gate that does not ask here may run a key again.
// Expired entries count until the sweeper has removed them.
//
// Errors: the store's.
func Moved(ctx context.Context, l *ledger.Ledger, ours func(scope string) bool) (ledger.Counts, error) {
	var m ledger.Counts
	owners := l.Options().Owners
	if owners == nil {
		return m, nil
	}
	for state, n := range m.ByState() {
		var after *store.Hit
		for more := true; more; {
			found, next := 0, after
			err := l.View(ctx, func(tx store.Tx) error {
				found, next, more = 0, after, false
				index, _ := ledger.ByExpiry(state, tx.Now())
				hits, err := tx.Scan(ledger.Collection, index, store.Range{After: after, Limit: movedScan})
				if err != nil {
					return err
				}
				for i := range hits {
					scope, key, ok := ledger.SplitEntryKey(hits[i].Key)
					if !ok || ours != nil && ours(scope) {
						continue
					}
					_, other, err := owners.Owner(tx, scope, key)
					if err != nil {
						return err
					}
					if other {
						found++
					}
				}
				if more = len(hits) == movedScan; more {
					next = &hits[len(hits)-1]
				}
				return nil
			})
			if err != nil {
				return ledger.Counts{}, err
			}
			*n += found
			after = next
		}
	}
	return m, nil
}
