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
	// evictWindow is how many of the oldest final entries one eviction looks
	// at.
	evictWindow = 16
	// evictWindows bounds how far an eviction looks past entries that were used
	// since the index last heard of it.
	evictWindows = 4
	// maxEvictions bounds the entries that one insertion evicts. More than one
	// are due when there are too many already: the limit was lowered, or several
	// managers went by counts that were old.
	maxEvictions = 8
	// maxEstimated is maxEvictions where it is only estimated that there are too
	// many. Others who insert now make the same estimate.
	maxEstimated = 2
	// evictBatch bounds the entries that one transaction evicts when bytes are
	// short.
	evictBatch = 256
	// maxRequeued bounds the entries whose newer use one eviction writes down.
	maxRequeued = 4
)

// level is how much there is in the window. On engines that do not tell sizes the
// entries are an estimate, and bytes are neither known nor bounded.
type level struct{ entries, bytes int64 }

func (a level) plus(b level) level { return level{a.entries + b.entries, a.bytes + b.bytes} }

// over is by how much a exceeds b.
func (a level) over(b level) level {
	return level{max(a.entries-b.entries, 0), max(a.bytes-b.bytes, 0)}
}

// unbounded is more bytes than there can be.
const unbounded = 1 << 60

// limit is what the window holds, hardLimit what outcomes of work that has run may
// fill, for they are never refused for want of room.
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

// level is how much there is, with what this transaction did.
func (tx *Tx) level() (level, error) {
	mine := level{tx.fx.entries, tx.fx.bytes}
	if !tx.l.sizes {
		if tx.held == uncounted {
			return level{}, errUncounted
		}
		return level{tx.held, 0}.plus(level{mine.entries, 0}), nil
	}
	there, err := sizeOf(tx.Tx)
	return there.plus(mine), err
}

func sizeOf(tx store.Tx) (level, error) {
	s, ok := tx.(store.Sizer)
	if !ok {
		return level{}, errors.New("ledger: the engine says that its transactions tell sizes, and they do not")
	}
	n, bytes, err := s.Size(collection)
	return level{int64(n), bytes + int64(n)*EntryOverhead}, err
}

// chargeOf is what a record takes of the window.
func chargeOf(key string, r *record) int64 { return int64(len(key)+recordLen(r)) + EntryOverhead }

// admit makes sure that there is room for the reservation r of a new key, and for
// its outcome: an outcome that is still to come counts like the average of recent ones.
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
			// Reservations alone fill it: no eviction makes room.
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
	if l.opts.WhenFull == Refuse && l.shares() && tx.overShare(scope, limit.over(at)) {
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

// fitOutcome makes sure that there is room for an outcome: e is what it has replaced,
// nil when its reservation is gone. Up to the hard limit there is. Beyond it an
// outcome is recorded without its answer, which takes no more than its reservation,
// and one whose reservation is gone gets ErrFull. More says that room is made, and
// that there is more to do than one transaction should.
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
		over.entries = 0 // the reservation has made that room
	}
	growth := need.bytes
	left := room{at: at, begin: at}
	if over != (level{}) {
		if left, err = tx.makeRoom(key, over, false); err != nil || left.more {
			return left.more, err
		}
	}
	hard := l.hardLimit()
	barely := l.sizes && len(final.result) > 0 && left.at.bytes+need.bytes > hard.bytes
	if barely {
		bare(final)
		need.bytes = chargeOf(key, final)
	}
	if e == nil && !left.fits(need, hard) {
		tx.count(op, OutcomeFull)
		return false, tx.full(false)
	}
	if barely {
		tx.fx.bare++
	}
	if e != nil && e.state == api.StatePending {
		tx.growths = append(tx.growths, growth-int64(e.size)-EntryOverhead)
	}
	return false, nil
}

// bare leaves the answer out of an outcome: its status is enough never to run the
// work again. The result was found well-formed when the call came.
func bare(r *record) {
	status, _, _ := api.CheckRawResult(r.result)
	r.result = (&api.Result{Status: status, BodyOmitted: true}).AppendRaw(nil)
}

// full is the refusal of a new key.
func (tx *Tx) full(share bool) error {
	after, err := tx.untilExpiry()
	if err != nil {
		return err
	}
	return &FullError{RetryAfter: after, Share: share}
}

// maxRetryAfter bounds FullError.RetryAfter.
const maxRetryAfter = time.Minute

// untilExpiry is how long it takes until an entry expires whose room is free then.
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
		// Only a hint, and right whether or not this transaction happens.
		tx.l.nextExpiry.Store(next)
	}
	return min(max(milliseconds(next-now), time.Second), maxRetryAfter), nil
}

// room is what makeRoom leaves.
type room struct {
	// begin is the level without what has expired, at that after evictions.
	begin, at level
	// more: there is more to remove than one transaction should.
	more bool
}

// fits tells whether need does not exceed limit. Where there was too much already,
// because a limit was lowered, evictions need only keep it from becoming more.
func (r room) fits(need, limit level) bool {
	after := r.at.plus(need)
	if r.at != r.begin {
		limit = level{max(limit.entries, r.begin.entries), max(limit.bytes, r.begin.bytes)}
	}
	return after.over(limit) == level{}
}

// makeRoom removes entries other than that of key until over is free: expired ones,
// and then, if the window evicts, final ones; own says of the scope of key only.
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
		// More are looked at than it takes when they are of average size: the ones
		// that have to go may be small.
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

// expire removes up to n entries that have expired and that the sweeper has not
// removed yet: they make room first, whatever their state.
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

// freeBytes evicts final entries, in as many transactions as it takes, when there
// are too many bytes.
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
