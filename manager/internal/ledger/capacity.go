package ledger

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// evictWindow is how many of the oldest final entries one eviction examines.
	evictWindow = 16
	// evictWindows bounds how many windows of entries an eviction examines if they were used since the index was
	// updated.
	evictWindows = 4
	// maxEvictions bounds the entries that one insertion evicts. More than one is due when there are already too many:
	// the limit was lowered, or several managers relied on outdated counts.
	maxEvictions = 8
	// maxEstimated is maxEvictions if the excess is only estimated. Other managers that insert now make the same
	// estimate.
	maxEstimated = 2
	// evictBatch bounds the entries that one transaction evicts when there are too many bytes.
	evictBatch = 256
	// maxRequeued bounds the entries whose newer use one eviction stores.
	maxRequeued = 4
)

// level is how much the window holds. On engines that do not tell sizes the number of entries is an estimate, and bytes
// are neither known nor bounded.
type level struct{ entries, bytes int64 }

func (a level) plus(b level) level { return level{a.entries + b.entries, a.bytes + b.bytes} }

// over returns by how much a exceeds b.
func (a level) over(b level) level {
	return level{max(a.entries-b.entries, 0), max(a.bytes-b.bytes, 0)}
}

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
	there, err := sizeOf(tx.Tx, collection)
	return there.plus(mine), err
}

func sizeOf(tx store.Tx, c store.Collection) (level, error) {
	s, ok := tx.(store.Sizer)
	if !ok {
		return level{}, errors.New("ledger: the engine says that its transactions tell sizes, and they do not")
	}
	n, bytes, err := s.Size(c)
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
		if l.opts.WhenFull == Evict && (pending+1)*need.bytes > limit.bytes {
			// The window is full of reservations, which are never evicted.
			return tx.full(false)
		}
		limit.bytes -= pending * growth
	}
	scope, greedy := tx.scopeOf(key)
	if over := at.plus(need).over(limit); over != (level{}) {
		r, err := tx.makeRoom(key, over, greedy)
		if err != nil {
			return err
		}
		if at = r.at; !r.fits(need, limit) {
			return tx.full(greedy)
		}
	}
	if l.opts.WhenFull == Refuse && l.boundsScopes() && tx.overShare(scope, limit.over(at)) {
		if _, err := tx.expire(key, maxEvictions); err != nil {
			return err
		}
		if at, err = tx.level(); err != nil {
			return err
		}
		if tx.overShare(scope, limit.over(at)) {
			return tx.full(true)
		}
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
	left := room{at: at, begin: at}
	if over != (level{}) {
		if left, err = tx.makeRoom(key, over, false); err != nil || left.more {
			return left.more, err
		}
	}
	hard := l.hardLimit()
	strip := l.sizes && len(final.result) > 0 && left.at.bytes+need.bytes > hard.bytes
	if strip {
		stripResult(final)
		need.bytes = chargeOf(key, final)
	}
	if e == nil && !left.fits(need, hard) {
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
			hits, err := tx.Scan(collection, indexOf(state), store.Range{From: sortKey(now + 1), Limit: 1})
			if err != nil {
				return 0, err
			}
			for _, h := range hits {
				if ms, err := strconv.ParseInt(h.SortKey, 36, 64); err == nil {
					next = min(next, ms)
				}
			}
		}
		// Only a hint, valid whether or not this transaction commits.
		tx.l.nextExpiry.Store(next)
	}
	return min(max(milliseconds(next-now), time.Second), maxRetryAfter), nil
}

// room is the result of makeRoom.
type room struct {
	// begin is the level without expired entries; at is the level after the evictions.
	begin, at level
	// more: there is more to remove than one transaction should.
	more bool
}

// fits reports whether need fits below limit. If the window was already above the limit, because the limit was lowered,
// evictions only have to keep it from growing.
func (r room) fits(need, limit level) bool {
	after := r.at.plus(need)
	if r.at != r.begin {
		limit = level{max(limit.entries, r.begin.entries), max(limit.bytes, r.begin.bytes)}
	}
	return after.over(limit) == level{}
}

// makeRoom removes entries other than that of key until over is free: first expired ones and then, if the window
// evicts, final ones. With own it evicts only entries of the scope of key.
func (tx *Tx) makeRoom(key string, over level, own bool) (r room, err error) {
	l := tx.l
	at, err := tx.level()
	if err != nil {
		return r, err
	}
	goal := level{at.entries - over.entries, at.bytes - over.bytes}
	n := min(over.entries, evictBatch)
	switch {
	case !l.sizes:
		n = min(n, maxEstimated)
	case l.opts.WhenFull == Evict:
		n = min(n, maxEvictions)
	}
	if over.bytes > 0 {
		// Examine more than would be needed at average size, because the entries to evict may be small.
		average := max(at.bytes/max(at.entries, 1), 1)
		n = max(n, min(2*over.bytes/average+2, evictBatch))
	}
	gone, err := tx.expire(key, int(n))
	if err != nil {
		return r, err
	}
	if r.begin, err = tx.level(); err != nil {
		return r, err
	}
	if over := r.begin.over(goal); over != (level{}) && int64(gone) < n && l.opts.Origin != "" {
		// What other ledgers recorded never takes the room of what this one does.
		forgot, err := tx.forgetImports(key, int(n)-gone, over)
		if err != nil {
			return r, err
		}
		gone += forgot
		if r.begin, err = tx.level(); err != nil {
			return r, err
		}
	}
	r.at = r.begin
	if over = r.at.over(goal); l.opts.WhenFull == Evict && int64(gone) < n && over != (level{}) {
		evicted, err := tx.evict(key, int(n)-gone, over, own)
		if err != nil {
			return r, err
		}
		gone += evicted
		if r.at, err = tx.level(); err != nil {
			return r, err
		}
	}
	r.more = int64(gone) == n && r.at.bytes > goal.bytes
	return r, nil
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

// freeBytes evicts final entries while there are too many bytes, in as many transactions as necessary.
func (l *Ledger) freeBytes(ctx context.Context) error {
	for more := l.opts.WhenFull == Evict; more; {
		err := l.transact(ctx, func(tx *Tx) error {
			more = false
			at, err := tx.level()
			if err != nil {
				return err
			}
			if over := at.over(level{at.entries, l.limit().bytes}); over != (level{}) {
				r, err := tx.makeRoom("", over, false)
				more = r.more
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
