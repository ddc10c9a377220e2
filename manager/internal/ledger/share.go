package ledger

// boundsScopes reports whether scopes are bounded.
func (l *Ledger) boundsScopes() bool { return l.opts.ScopeShare > 0 && l.opts.ScopeShare < 1 }

// overShare reports whether a scope may not hold one entry more while free is the room that is left. A scope may hold a
// fixed multiple of what is free. So any number of greedy scopes leave some room, and a scope that holds little always
// finds room.
func (tx *Tx) overShare(scope uint64, free level) bool {
	at := tx.heldBy(scope)
	share := tx.l.opts.ScopeShare
	multiple := share / (1 - share)
	return at.entries > 0 && float64(at.entries) >= multiple*float64(free.entries) ||
		tx.l.sizes && at.bytes > 0 && float64(at.bytes) >= multiple*float64(free.bytes)
}
