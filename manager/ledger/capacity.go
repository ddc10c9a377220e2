package ledger

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/store"
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

// makeRoom evicts final entries, other than that of key, when this transaction's
// insertion would make the window too large.
func (tx *Tx) makeRoom(op Op, key string) error {
	limit := int64(maxEvictions)
	held, _, err := tx.size()
	if err != nil {
		return err
	}
	if !tx.l.sizes {
		if held == uncounted {
			return errUncounted
		}
		limit = maxEstimated
	}
	n := int(min(held+tx.fx.entries+1-int64(tx.l.opts.MaxEntries), limit))
	if n <= 0 {
		return nil
	}
	gone, err := tx.expire(key, n)
	if err != nil || gone >= n {
		return err
	}
	evicted, err := tx.evict(key, n-gone, 0)
	if err != nil {
		return err
	}
	if gone+evicted > 0 {
		return nil
	}
	tx.count(op, OutcomeCapacity)
	return ErrCapacity
}

// size is how many entries there are, and how many bytes, without what this
// transaction did. Bytes are unknown, and unbounded, where the engine does not tell.
func (tx *Tx) size() (entries, bytes int64, err error) {
	if !tx.l.sizes {
		return tx.held, 0, nil
	}
	s, ok := tx.Tx.(store.Sizer)
	if !ok {
		return 0, 0, errors.New("ledger: the engine says that its transactions tell sizes, and they do not")
	}
	n, bytes, err := s.Size(collection)
	return int64(n), bytes, err
}

// makeBytes removes expired entries and evicts final ones, other than that of
// key, when growth more octets would be too many: about as many as it takes, up to
// evictBatch, and reports whether there may be more to evict. What then is still
// too much are pending entries, which stay, or the entry of key itself.
func (tx *Tx) makeBytes(key string, growth int64) (more bool, err error) {
	if !tx.l.sizes {
		return false, nil
	}
	entries, bytes, err := tx.size()
	if err != nil {
		return false, err
	}
	over := func() int64 { return bytes + tx.fx.bytes + growth - tx.l.opts.MaxBytes }
	if over() <= 0 {
		return false, nil
	}
	// More are looked at than it takes when they are of average size: the ones
	// that have to go may be small.
	average := max(bytes/max(entries, 1), 1)
	n := int(min(2*over()/average+2, evictBatch))
	gone, err := tx.expire(key, n)
	if err != nil {
		return false, err
	}
	if gone < n && over() > 0 {
		evicted, err := tx.evict(key, n-gone, over())
		if err != nil {
			return false, err
		}
		gone += evicted
	}
	return gone == n && over() > 0, nil
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
	for more := l.sizes; more; {
		err := l.transact(ctx, func(tx *Tx) (err error) {
			more, err = tx.makeBytes("", 0)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// candidate is a final entry that may have to go.
type candidate struct {
	key  string
	used int64 // when last used
	rec  record
}

// evict removes the least recently used final entries, other than key: up to n
// of them, or, when bytes is positive, only until that many octets are free.
func (tx *Tx) evict(key string, n int, bytes int64) (evicted int, err error) {
	window, err := tx.candidates(key, n)
	if err != nil {
		return 0, err
	}
	var freed int64
	for evicted < n && len(window) > 0 && (bytes <= 0 || freed < bytes) {
		i := 0
		for j := range window {
			if window[j].used < window[i].used {
				i = j
			}
		}
		victim := &window[i]
		if err := tx.remove(victim.key, &victim.rec); err != nil {
			return evicted, err
		}
		tx.fx.evicted++
		evicted++
		freed += int64(victim.rec.size)
		window = append(window[:i], window[i+1:]...)
	}
	return evicted, tx.requeue(window)
}

// candidates are the oldest final entries, each looked up again. When most of
// them were used since the index last heard of it, it looks further along the
// index, so that the n least recently used are among them unless more than
// evictWindows windows in a row were.
func (tx *Tx) candidates(key string, n int) ([]candidate, error) {
	var window []candidate
	size := evictWindow + n
	r := store.Range{Limit: size}
	if tx.l.shared {
		r.Limit *= 4
	}
	for range evictWindows {
		hits, err := tx.Scan(collection, indexLRU, r)
		if err != nil {
			return nil, err
		}
		more := len(hits) == r.Limit
		if more {
			last := hits[len(hits)-1]
			r.After = &last
		}
		if tx.l.shared && len(hits) > size {
			// Another manager is looking at the same entries right now.
			rand.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
			hits = hits[:size]
		}
		for _, h := range hits {
			if h.Key == key {
				continue
			}
			c := candidate{key: h.Key}
			e, err := tx.l.load(tx.Tx, h.Key, &c.rec)
			if err != nil {
				return nil, err
			}
			if e == nil || e.state == api.StatePending {
				continue // the hit was stale
			}
			c.used = max(e.touched, tx.l.touches.slot(h.Key).Load())
			window = append(window, c)
		}
		if !more || settled(window) >= n {
			break
		}
	}
	return tx.lapsed(key, window)
}

// lapsed appends reservations that ran out and are UNKNOWN, but are not in the index of
// final entries before the sweeper has stored that.
func (tx *Tx) lapsed(key string, window []candidate) ([]candidate, error) {
	now := tx.Now().UnixMilli()
	hits, err := tx.Scan(collection, indexOf(api.StatePending), store.Range{To: sortKey(now + 1), Limit: evictWindow})
	if err != nil {
		return nil, err
	}
	for _, h := range hits {
		c := candidate{key: h.Key}
		e, err := tx.l.load(tx.Tx, h.Key, &c.rec)
		if err != nil {
			return nil, err
		}
		if state, _ := standing(e, now); h.Key == key || state != api.StateUnknown || e.state != api.StatePending {
			continue
		}
		c.used = e.touched
		window = append(window, c)
	}
	return window, nil
}

// settled counts candidates that were used before anything beyond the window.
func settled(window []candidate) int {
	if len(window) == 0 {
		return 0
	}
	horizon, n := window[len(window)-1].rec.touched, 0
	for i := range window {
		if window[i].used <= horizon {
			n++
		}
	}
	return n
}

// requeue writes down the newer use of entries at the front of the index, so
// that the next eviction does not meet them there again.
func (tx *Tx) requeue(window []candidate) error {
	left := maxRequeued
	for i := range window {
		c := &window[i]
		if left == 0 || c.used <= c.rec.touched {
			continue
		}
		left--
		tx.replaced(&c.rec)
		c.rec.touched = c.used
		if err := tx.write(c.key, &c.rec); err != nil {
			return err
		}
	}
	return nil
}
