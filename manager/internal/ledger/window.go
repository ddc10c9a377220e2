package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// leastScan is how many entries of an index a transaction that makes room reads at least: some of them make none.
	leastScan = 16
	// roomBatch bounds the entries that one transaction removes.
	roomBatch = 256
	// maxEstimated is roomBatch if the excess is only estimated. Other managers that insert now make the same estimate.
	maxEstimated = 2
)

// level is how much the window or a scope holds. On engines that do not tell sizes the number of entries is an estimate, and bytes
// are neither known nor bounded.
type level struct{ entries, bytes int64 }

func (a level) plus(b level) level { return level{a.entries + b.entries, a.bytes + b.bytes} }

// over returns by how much a exceeds b.
func (a level) over(b level) level {
	return level{max(a.entries-b.entries, 0), max(a.bytes-b.bytes, 0)}
}

// fits reports whether need more than a is within limit.
func (a level) fits(need, limit level) bool { return a.plus(need).over(limit) == level{} }

// unbounded is more bytes than there can be.
const unbounded = 1 << 60

// limit is what the window may hold. hardLimit is what it may hold with outcomes of work that has run, which are never
// refused for lack of room.
func (l *Ledger) limit() level {
	if !l.sizes {
		return level{int64(l.opts.MaxEntries), unbounded}
	}
	return level{int64(l.opts.MaxEntries), l.opts.MaxBytes}
}

func (l *Ledger) hardLimit() level {
	at := l.limit()
	return level{at.entries + at.entries/8 + 1, at.bytes + at.bytes/8}
}

// level returns how much the window holds, including this transaction's changes.
func (tx *Tx) level() (level, error) {
	mine := level{tx.fx.entries, tx.fx.bytes}
	if !tx.l.sizes {
		if tx.entryCount == uncounted {
			return level{}, errUncounted
		}
		return level{tx.entryCount, 0}.plus(level{mine.entries, 0}), nil
	}
	there, err := sizeOf(tx.Tx, Collection)
	return there.plus(mine), err
}

func sizeOf(tx store.Tx, c store.Collection) (level, error) {
	n, bytes, err := tx.Size(c)
	return level{int64(n), bytes + int64(n)*EntryOverhead}, err
}

// chargeOf is the number of bytes of the window that a record uses.
func chargeOf(key string, r *record) int64 { return int64(len(key)+recordLen(r)) + EntryOverhead }

// admit makes sure that there is room for the reservation r of a new key and for its outcome. A future outcome counts
// as the average of recent ones.
func (tx *Tx) admit(key string, r *record) error {
	l := tx.l
	at, err := tx.level()
	if err != nil {
		return err
	}
	limit, need := l.limit(), level{1, 0}
	if l.sizes {
		growth, pending := l.usage.growth.Load(), max(l.usage.pending.Load()+tx.fx.pending, 0)
		need.bytes = chargeOf(key, r) + growth
		limit.bytes -= pending * growth
	}
	if over := at.plus(need).over(limit); over != (level{}) {
		if at, _, err = tx.makeRoom(key, over); err != nil {
			return err
		}
		if !at.fits(need, limit) {
			return tx.full(false)
		}
	}
	if !l.boundsScopes() {
		return nil
	}
	scope := l.usage.hash(key)
	if !tx.overShare(scope, limit.over(at)) {
		return nil
	}
	if _, err := tx.expire(key, leastScan); err != nil {
		return err
	}
	if at, err = tx.level(); err != nil {
		return err
	}
	if tx.overShare(scope, limit.over(at)) {
		return tx.full(true)
	}
	return nil
}

// fitOutcome makes sure that there is room for an outcome. e is the record that the outcome replaces, nil when its
// reservation is gone. Up to the hard limit there is room. Beyond it an outcome is recorded without its answer, which
// needs no more room than its reservation, and an outcome whose reservation is gone gets ErrFull. more says that it
// made room and has more to remove than one transaction should.
func (tx *Tx) fitOutcome(op Op, key string, e, final *record) (more bool, err error) {
	l := tx.l
	if !l.sizes && e != nil {
		return false, nil
	}
	at, err := tx.level()
	if err != nil {
		return false, err
	}
	need := level{1, chargeOf(key, final)}
	over := at.plus(need).over(l.limit())
	if e != nil {
		over.entries = 0 // the reservation has made room for the entry
	}
	growth := need.bytes
	if over != (level{}) {
		if at, more, err = tx.makeRoom(key, over); err != nil || more {
			return more, err
		}
	}
	hard := l.hardLimit()
	strip := l.sizes && len(final.result) > 0 && at.bytes+need.bytes > hard.bytes
	if strip {
		stripResult(final)
		need.bytes = chargeOf(key, final)
	}
	if e == nil && !at.fits(need, hard) {
		tx.count(op, OutcomeFull)
		return false, tx.full(false)
	}
	if strip {
		tx.fx.withoutAnswer++
	}
	if e != nil && e.state == api.StatePending {
		tx.growths = append(tx.growths, growth-int64(e.size)-EntryOverhead)
	}
	return false, nil
}

// stripResult removes the answer from an outcome but keeps its status, which is enough to never run the work again. The
// result was checked when the call arrived.
func stripResult(r *record) {
	status, _, _ := api.CheckRawResult(r.result)
	r.result = (&api.Result{Status: status, BodyOmitted: true}).AppendRaw(nil)
}

// full returns the error for a new key that has no room.
func (tx *Tx) full(share bool) error {
	after, err := tx.untilExpiry()
	if err != nil {
		return err
	}
	return &FullError{RetryAfter: after, Share: share}
}

// maxRetryAfter bounds FullError.RetryAfter.
const maxRetryAfter = time.Minute

// untilExpiry returns how long it takes until an entry expires and frees its room.
func (tx *Tx) untilExpiry() (time.Duration, error) {
	now := tx.Now().UnixMilli()
	next := tx.l.nextExpiry.Load()
	if next <= now {
		next = now + maxRetryAfter.Milliseconds()
		for _, state := range storedStates {
			if state == api.StatePending {
				continue // its outcome stays
			}
			hits, err := tx.Scan(Collection, indexOf(state), store.Range{From: sortKey(now + 1), Limit: 1})
			if err != nil {
				return 0, err
			}
			for _, h := range hits {
				if ms, err := timeOf(h.SortKey); err == nil {
					next = min(next, ms)
				}
			}
		}
		// Only a hint, valid whether or not this transaction commits.
		tx.l.nextExpiry.Store(next)
	}
	return min(max(milliseconds(next-now), time.Second), maxRetryAfter), nil
}

// makeRoom removes entries other than that of key until over is free: first expired ones, and then what other ledgers
// recorded. It returns the level after that. more says that there is more to remove than one transaction should.
func (tx *Tx) makeRoom(key string, over level) (at level, more bool, err error) {
	l := tx.l
	if at, err = tx.level(); err != nil {
		return at, false, err
	}
	goal := level{at.entries - over.entries, at.bytes - over.bytes}
	n := min(over.entries, roomBatch)
	if !l.sizes {
		n = min(n, maxEstimated)
	}
	if over.bytes > 0 {
		// Examine more than would be needed at average size, because the entries to remove may be small.
		average := max(at.bytes/max(at.entries, 1), 1)
		n = max(n, min(2*over.bytes/average+2, roomBatch))
	}
	gone, err := tx.expire(key, int(n))
	if err != nil {
		return at, false, err
	}
	if at, err = tx.level(); err != nil {
		return at, false, err
	}
	if over := at.over(goal); over != (level{}) && int64(gone) < n && l.opts.Origin != "" {
		// What other ledgers recorded never takes the room of what this one does.
		forgot, err := tx.forgetImports(key, int(n)-gone, over)
		if err != nil {
			return at, false, err
		}
		gone += forgot
		if at, err = tx.level(); err != nil {
			return at, false, err
		}
	}
	return at, int64(gone) == n && at.bytes > goal.bytes, nil
}

// expire removes up to n expired entries that the sweeper has not removed yet. They make room first, whatever their
// state.
func (tx *Tx) expire(key string, n int) (int, error) {
	removed := 0
	for _, state := range storedStates {
		if removed == n {
			break
		}
		r, err := tx.sweep(key, state, nil, n-removed, false)
		if err != nil {
			return removed, err
		}
		removed += r.removed
	}
	return removed, nil
}

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

// account applies a transaction's effects on the window to the counters.
func (l *Ledger) account(tx *Tx) {
	fx := &tx.fx
	if fx.pending != 0 {
		l.usage.pending.Add(fx.pending)
	}
	for _, growth := range tx.growths {
		l.usage.addGrowth(growth)
	}
	for _, d := range tx.deltas {
		// On a shared engine other managers remove some of this manager's entries, and it removes some of theirs.
		if !l.shared || d.entries > 0 || d.released {
			l.usage.add(d)
		}
	}
	if fx.withoutAnswer != 0 {
		l.counters.withoutAnswer.Add(fx.withoutAnswer)
	}
}

// lengthCache keeps the count of an engine whose transactions cannot tell it for a second, so that a reserve does not pay
// for it. The engine's own count may be three seconds old, or an estimate. Concurrent insertions are not in it. Each of them
// makes room for itself, so the window may be exceeded for a moment by their number.
type lengthCache struct {
	mu   sync.Mutex
	at   time.Time
	n    int
	busy bool
}

const lengthTTL = time.Second

// adjust applies this process's own changes, so that it does not make room for the same entry twice.
func (c *lengthCache) adjust(delta int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += int(delta)
}

func (c *lengthCache) get(ctx context.Context, st store.Store) (int, error) {
	c.mu.Lock()
	fresh := !c.at.IsZero() && time.Since(c.at) < lengthTTL
	if fresh || (c.busy && !c.at.IsZero()) {
		n := c.n
		c.mu.Unlock()
		return n, nil
	}
	c.busy = true
	c.mu.Unlock()
	n, err := st.Len(ctx, Collection, "")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if err != nil {
		return 0, err
	}
	c.n, c.at = n, time.Now()
	return n, nil
}
