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
	// maxEvictions bounds the entries that one insertion evicts. More than
	// one are due when concurrent insertions were counted twice.
	maxEvictions = 8
	// evictBatch bounds the entries that one transaction evicts when bytes are
	// short.
	evictBatch = 256
	// maxRequeued bounds the entries whose newer use one eviction writes down.
	maxRequeued = 4
)

// makeRoom evicts final entries when this transaction's insertion would make
// the window too large.
func (tx *Tx) makeRoom(op Op, key string) error {
	if tx.held == uncounted {
		return errUncounted
	}
	over := tx.held - int64(tx.l.opts.MaxEntries)
	if over <= 0 {
		return nil
	}
	n := int(min(over, maxEvictions))
	gone, err := tx.expire(key, n)
	if err != nil || gone >= n {
		return err
	}
	evicted, err := tx.evict(key, n-gone, 0)
	if err != nil {
		return err
	}
	if gone+evicted == 0 {
		tx.count(op, OutcomeCapacity)
		return ErrCapacity
	}
	return nil
}

// expire removes up to n entries that have expired and that the sweeper has not
// removed yet: they make room first, whatever their state.
func (tx *Tx) expire(key string, n int) (int, error) {
	removed := 0
	for _, state := range storedStates {
		if removed == n {
			break
		}
		r, err := tx.sweep(key, state, n-removed)
		if err != nil {
			return removed, err
		}
		removed += r.removed
	}
	return removed, nil
}

// freeBytes evicts final entries, in transactions of their own, until size more
// octets fit. What then is still too much are pending entries, which stay, or
// the new entry itself.
func (l *Ledger) freeBytes(ctx context.Context, size int64) error {
	if l.shared {
		return nil
	}
	for {
		over := l.bytes.Load() + size - l.opts.MaxBytes
		if over <= 0 {
			return nil
		}
		var evicted int
		err := l.transact(ctx, func(tx *Tx) error {
			var err error
			evicted, err = tx.evict("", evictBatch, over)
			return err
		})
		if err != nil || evicted == 0 {
			return err
		}
	}
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
			e, err := load(tx.Tx, h.Key, &c.rec)
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

// countBytes adds up the size of all records, in pieces so that nobody waits
// long for it.
func (l *Ledger) countBytes(ctx context.Context) error {
	before := l.bytes.Load()
	var total int64
	for _, state := range storedStates {
		r := store.Range{Limit: 5000}
		for {
			var hits []store.Hit
			var piece int64
			err := l.store.View(ctx, func(tx store.Tx) error {
				piece = 0
				var err error
				if hits, err = tx.Scan(collection, indexOf(state), r); err != nil {
					return err
				}
				for _, h := range hits {
					// A record is in the index of one state only.
					value, err := tx.Get(collection, h.Key)
					if err == nil {
						piece += int64(len(h.Key) + len(value))
					} else if !errors.Is(err, store.ErrNotFound) {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			total += piece
			if len(hits) < r.Limit {
				break
			}
			last := hits[len(hits)-1]
			r.After = &last
		}
	}
	l.bytes.Add(total - before)
	return nil
}
