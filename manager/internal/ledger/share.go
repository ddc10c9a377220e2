package ledger

// boundsScopes reports whether scopes are bounded.
func (l *Ledger) boundsScopes() bool { return l.opts.ScopeShare > 0 && l.opts.ScopeShare < 1 }

// overShare reports whether a scope may not hold one entry more. at is what the window holds, and free is the room that is
// left. A scope may hold a fixed multiple of what is free. So any number of greedy scopes leave some room, and a scope that
// holds little always finds room.
func (tx *Tx) overShare(scope uint64, at, free level) (bool, error) {
	share := tx.l.opts.ScopeShare
	multiple := share / (1 - share)
	over := func(h holding) bool {
		return h.entries > 0 && float64(h.entries) >= multiple*float64(free.entries) ||
			tx.l.sizes && h.bytes > 0 && float64(h.bytes) >= multiple*float64(free.bytes)
	}
	if tx.l.sizes && !over(holding(at)) {
		return false, nil // no scope holds more than all
	}
	h, err := tx.heldBy(scope)
	return err == nil && over(h), err
}
