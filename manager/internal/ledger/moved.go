package ledger

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// movedScan is how many entries one transaction of Moved examines.
const movedScan = 2048

// Moved counts all entries whose keys another ledger owns, except those whose scope is ours: their callers have chosen
// this ledger. ours may be nil. While there are any such entries, a gate that does not ask here may run a key again.
// Expired entries count until the sweeper has removed them.
//
// Errors: the store's.
func (l *Ledger) Moved(ctx context.Context, ours func(scope string) bool) (Counts, error) {
	var m Counts
	owners := l.opts.Owners
	if owners == nil {
		return m, nil
	}
	for state, n := range m.ByState() {
		var after *store.Hit
		for more := true; more; {
			found, next := 0, after
			err := l.store.View(ctx, func(tx store.Tx) error {
				found, next, more = 0, after, false
				hits, err := tx.Scan(Collection, indexOf(state), store.Range{After: after, Limit: movedScan})
				if err != nil {
					return err
				}
				for i := range hits {
					scope, key, ok := SplitEntryKey(hits[i].Key)
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
				return Counts{}, err
			}
			*n += found
			after = next
		}
	}
	return m, nil
}
