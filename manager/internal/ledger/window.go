package ledger

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
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

// firstGrowth is Ledger.growth before the first outcome.
const firstGrowth = 256

// limit is what the window may hold. hardLimit is what it may hold with outcomes of work that has run, which are never
// refused for lack of room.
func (l *Ledger) limit() window.Level {
	if !l.sizes {
		return window.Level{Entries: int64(l.opts.MaxEntries), Bytes: window.Unbounded}
	}
	return window.Level{Entries: int64(l.opts.MaxEntries), Bytes: l.opts.MaxBytes}
}

func (l *Ledger) hardLimit() window.Level {
	at := l.limit()
	return window.Level{Entries: at.Entries + at.Entries/8 + 1, Bytes: at.Bytes + at.Bytes/8}
}

// level returns how much the window holds, including this transaction's changes.
func (tx *Tx) level() (window.Level, error) {
	mine := window.Level{Entries: tx.fx.entries, Bytes: tx.fx.bytes}
	if !tx.l.sizes {
		if tx.entryCount == uncounted {
			return window.Level{}, errUncounted
		}
		return window.Level{Entries: tx.entryCount}.Plus(window.Level{Entries: mine.Entries}), nil
	}
	there, err := sizeOf(tx.Tx, Collection)
	return there.Plus(mine), err
}

func sizeOf(tx store.Tx, c store.Collection) (window.Level, error) {
	n, bytes, err := tx.Size(c)
	return window.Level{Entries: int64(n), Bytes: bytes + int64(n)*EntryOverhead}, err
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
	limit, need := l.limit(), window.Level{Entries: 1}
	if l.sizes {
		growth, pending := l.growth.Load(), max(l.pending.Load()+tx.fx.pending, 0)
		need.Bytes = chargeOf(key, r) + growth
		limit.Bytes -= pending * growth
	}
	if over := at.Plus(need).Over(limit); over != (window.Level{}) {
		if at, _, err = tx.makeRoom(key, over); err != nil {
			return err
		}
		if !at.Fits(need, limit) {
			return tx.full(false)
		}
	}
	if !l.boundsScopes() {
		return nil
	}
	scope := l.scopeOf(key)
	if !tx.overShare(scope, limit.Over(at)) {
		return nil
	}
	if _, err := tx.expire(key, leastScan); err != nil {
		return err
	}
	if at, err = tx.level(); err != nil {
		return err
	}
	if tx.overShare(scope, limit.Over(at)) {
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
	need := window.Level{Entries: 1, Bytes: chargeOf(key, final)}
	over := at.Plus(need).Over(l.limit())
	if e != nil {
		over.Entries = 0 // the reservation has made room for the entry
	}
	growth := need.Bytes
	if over != (window.Level{}) {
		if at, more, err = tx.makeRoom(key, over); err != nil || more {
			return more, err
		}
	}
	hard := l.hardLimit()
	strip := l.sizes && len(final.result) > 0 && at.Bytes+need.Bytes > hard.Bytes
	if strip {
		stripResult(final)
		need.Bytes = chargeOf(key, final)
	}
	if e == nil && !at.Fits(need, hard) {
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
func (tx *Tx) makeRoom(key string, over window.Level) (at window.Level, more bool, err error) {
	l := tx.l
	if at, err = tx.level(); err != nil {
		return at, false, err
	}
	goal := window.Level{Entries: at.Entries - over.Entries, Bytes: at.Bytes - over.Bytes}
	n := min(over.Entries, roomBatch)
	if !l.sizes {
		n = min(n, maxEstimated)
	}
	if over.Bytes > 0 {
		// Examine more than would be needed at average size, because the entries to remove may be small.
		average := max(at.Bytes/max(at.Entries, 1), 1)
		n = max(n, min(2*over.Bytes/average+2, roomBatch))
	}
	gone, err := tx.expire(key, int(n))
	if err != nil {
		return at, false, err
	}
	if at, err = tx.level(); err != nil {
		return at, false, err
	}
	if over := at.Over(goal); over != (window.Level{}) && int64(gone) < n && l.opts.Origin != "" {
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
	return at, int64(gone) == n && at.Bytes > goal.Bytes, nil
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

// openWindow prepares what the ledger knows of the window besides its records.
func (l *Ledger) openWindow(ctx context.Context) (err error) {
	l.growth.Store(firstGrowth)
	size := window.Level{Entries: int64(l.opts.MaxEntries), Bytes: l.opts.MaxBytes}
	if l.scopes, err = window.Open(ctx, l.store, size, l.boundsScopes()); err != nil {
		return fmt.Errorf("ledger: what scopes hold: %w", err)
	}
	if !l.sizes {
		return nil
	}
	return l.countPending(ctx)
}

func (l *Ledger) countPending(ctx context.Context) error {
	n, err := l.store.Len(ctx, Collection, indexPending)
	if err == nil {
		l.pending.Store(int64(n))
	}
	return err
}

// storeScopes writes what scopes hold, where records have it.
func (l *Ledger) storeScopes(ctx context.Context) error {
	if !l.scopes.Kept() {
		return nil
	}
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	return l.transact(ctx, func(tx *Tx) error {
		l.scopes.ClaimChanged(&tx.blocks)
		return nil
	})
}

// boundsScopes reports whether scopes are bounded.
func (l *Ledger) boundsScopes() bool { return l.opts.ScopeShare > 0 && l.opts.ScopeShare < 1 }

// scopeOf returns the hash of a record's scope.
func (l *Ledger) scopeOf(recordKey string) uint64 {
	scope, _, _ := SplitEntryKey(recordKey)
	return l.scopes.Hash(scope)
}

// overShare reports whether a scope may not hold one entry more while free is the room that is left. A scope may hold a
// fixed multiple of what is free. So any number of greedy scopes leave some room, and a scope that holds little always
// finds room.
func (tx *Tx) overShare(scope uint64, free window.Level) bool {
	at := tx.l.scopes.Held(scope, tx.changes)
	share := tx.l.opts.ScopeShare
	multiple := share / (1 - share)
	return at.Entries > 0 && float64(at.Entries) >= multiple*float64(free.Entries) ||
		tx.l.sizes && at.Bytes > 0 && float64(at.Bytes) >= multiple*float64(free.Bytes)
}

// account applies a transaction's effects on the window to the counters.
func (l *Ledger) account(tx *Tx) {
	fx := &tx.fx
	if fx.pending != 0 {
		l.pending.Add(fx.pending)
	}
	for _, growth := range tx.growths {
		old := l.growth.Load()
		l.growth.Store(old + (max(growth, 0)-old)/16)
	}
	for _, c := range tx.changes {
		// On a shared engine other managers remove some of this manager's entries, and it removes some of theirs.
		if !l.shared || c.Entries > 0 || c.Released {
			l.scopes.Add(c)
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
