package ledger

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
