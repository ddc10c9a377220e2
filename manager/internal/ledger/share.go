package ledger

import (
	"github.com/oncegate/oncegate/manager/internal/store"
)

// boundsScopes reports whether scopes are bounded.
func (l *Ledger) boundsScopes() bool { return l.opts.ScopeShare > 0 && l.opts.ScopeShare < 1 }

// overShare reports whether a scope may not hold one entry more while free is the room that is left. A scope may hold a
// fixed multiple of what is free. So any number of greedy scopes leave some room, and a scope that holds little always
// finds room.
func (tx *Tx) overShare(scope uint64, free level) bool {
	entries, bytes := tx.usage(scope)
	share := tx.l.opts.ScopeShare
	multiple := share / (1 - share)
	return entries > 0 && float64(entries) >= multiple*float64(free.entries) ||
		tx.l.sizes && bytes > 0 && float64(bytes) >= multiple*float64(free.bytes)
}

// usage returns what a scope holds, including this transaction's changes.
func (tx *Tx) usage(scope uint64) (entries, bytes int64) {
	entries, bytes = tx.l.usage.of(scope)
	for _, d := range tx.deltas {
		if d.scope == scope {
			entries, bytes = entries+d.entries, bytes+d.bytes
		}
	}
	return entries, bytes
}

// scopeOf hashes the scope of a record key. In a window that evicts, greedy says that the scope holds at least its
// share: it then evicts its own entries.
func (tx *Tx) scopeOf(key string) (scope uint64, greedy bool) {
	if !tx.l.boundsScopes() {
		return 0, false
	}
	scope = tx.l.usage.hash(key)
	if tx.l.opts.WhenFull == Refuse {
		return scope, false
	}
	entries, bytes := tx.usage(scope)
	limit, share := tx.l.limit(), tx.l.opts.ScopeShare
	return scope, float64(entries) >= share*float64(limit.entries) || float64(bytes) >= share*float64(limit.bytes)
}

// evictCursor is a place in the order of last use before which the scope has no entries.
type evictCursor struct {
	scope uint64
	after *store.Hit
}

// ownScan is how many entries of other scopes one transaction skips.
const ownScan = 1024

// ownCandidates returns up to n of the oldest final entries of the scope of key. Entries of other scopes before them
// are skipped only once. One transaction may find no candidates.
func (tx *Tx) ownCandidates(key string, n int) (window []candidate, err error) {
	scope := tx.l.usage.hash(key)
	r := store.Range{Limit: ownScan}
	if c := tx.l.cursor.Load(); c != nil && c.scope == scope {
		r.After = c.after
	}
	hits, err := tx.Scan(collection, indexLRU, r)
	if err != nil {
		return nil, err
	}
	passed := r.After
	for i := range hits {
		if tx.l.usage.hash(hits[i].Key) != scope || hits[i].Key == key {
			if len(window) == 0 {
				passed = &hits[i]
			}
			continue
		}
		c, ok, err := tx.candidate(hits[i].Key)
		if err != nil {
			return nil, err
		}
		if ok {
			window = append(window, c)
		} else if len(window) == 0 {
			passed = &hits[i]
		}
		if len(window) == n {
			break
		}
	}
	if len(window) == 0 && len(hits) < ownScan {
		passed = nil // start again: entries move when they are used
	}
	if passed != nil {
		tx.fx.cursor = &evictCursor{scope, &store.Hit{SortKey: passed.SortKey, Key: passed.Key}}
	} else {
		tx.fx.cursor = &evictCursor{scope: scope}
	}
	return window, nil
}
