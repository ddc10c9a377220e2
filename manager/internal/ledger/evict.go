package ledger

import (
	"math/rand/v2"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// candidate is a final entry that may be evicted.
type candidate struct {
	key    string
	used   int64 // when last used
	greedy bool  // its scope has more than its share
	rec    record
}

// before orders candidates by which is evicted first.
func (c *candidate) before(d *candidate) bool {
	if c.greedy != d.greedy {
		return c.greedy
	}
	return c.used < d.used
}

// evict removes up to n of the least recently used final entries other than key, until over is free. With own it
// removes only entries of the scope of key.
func (tx *Tx) evict(key string, n int, over level, own bool) (evicted int, err error) {
	find := tx.candidates
	if own {
		find = tx.ownCandidates
	}
	window, err := find(key, n)
	if err != nil {
		return 0, err
	}
	now := tx.Now().UnixMilli()
	for evicted < n && len(window) > 0 && (over.entries > 0 || over.bytes > 0) {
		i := 0
		for j := range window {
			if window[j].before(&window[i]) {
				i = j
			}
		}
		victim := &window[i]
		if err := tx.remove(victim.key, &victim.rec); err != nil {
			return evicted, err
		}
		evicted++
		over = over.over(level{1, int64(victim.rec.size) + EntryOverhead})
		if live(&victim.rec, now) {
			age := now - victim.rec.created
			tx.fx.ages.add(ages{1, age, age, age})
			tx.change(opEvict, victim.key)
		}
		window = append(window[:i], window[i+1:]...)
	}
	if own {
		return evicted, nil
	}
	return evicted, tx.requeue(window)
}

// candidates returns the oldest final entries, each read again. If most of them were used since the index was updated,
// it examines more of the index. So the n least recently used entries are among them, unless more than evictWindows
// windows in a row were used.
func (tx *Tx) candidates(key string, n int) ([]candidate, error) {
	var window []candidate
	size := evictWindow + n
	r := store.Range{After: tx.l.front.After(indexLRU), Limit: size}
	if tx.l.shared {
		r.Limit *= 4
	}
	for left, skips := evictWindows, maxSkipped; left > 0 && skips > 0; {
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
			// Another manager may be examining the same entries.
			rand.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
			hits = hits[:size]
		}
		for _, h := range hits {
			if h.Key == key {
				continue
			}
			c, ok, err := tx.candidate(h.Key)
			if err != nil {
				return nil, err
			}
			if ok {
				_, c.greedy = tx.scopeOf(h.Key)
				window = append(window, c)
			}
		}
		if !more || countCertain(window) >= n {
			break
		}
		if len(window) > 0 {
			left--
			continue
		}
		// Mostly records that cannot be read.
		skips -= r.Limit
		tx.l.front.Pass(indexLRU, *r.After)
	}
	return tx.addLapsed(key, window)
}

// maxSkipped bounds how many hits that are not candidates one transaction skips. The next transaction continues behind
// them.
const maxSkipped = 1024

// addLapsed appends reservations that ran out and are UNKNOWN. They are not in the index of final entries until the
// sweeper has stored their new state.
func (tx *Tx) addLapsed(key string, window []candidate) ([]candidate, error) {
	now := tx.Now().UnixMilli()
	hits, err := tx.Scan(collection, indexPending, store.Range{To: sortKey(now + 1), After: tx.l.front.After(indexPending), Limit: evictWindow})
	if err != nil {
		return nil, err
	}
	for _, h := range hits {
		c := candidate{key: h.Key}
		e, err := tx.l.load(tx.Tx, h.Key, &c.rec)
		if err != nil && !tx.l.opts.Unreadable.Met(err) {
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

// candidate reads a hit again. ok is false when the hit was stale or cannot be read.
func (tx *Tx) candidate(key string) (c candidate, ok bool, err error) {
	c.key = key
	e, err := tx.l.load(tx.Tx, key, &c.rec)
	if tx.l.opts.Unreadable.Met(err) {
		return c, false, nil
	}
	if err != nil || e == nil || e.state == api.StatePending {
		return c, false, err
	}
	c.used = max(e.touched, tx.l.touches.slot(key).Load())
	return c, true, nil
}

// countCertain counts the candidates that were used before every entry beyond the window.
func countCertain(window []candidate) int {
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

// requeue stores the newer use of entries at the front of the index, so that the next eviction does not meet them there
// again.
func (tx *Tx) requeue(window []candidate) error {
	left := maxRequeued
	for i := range window {
		c := &window[i]
		if left == 0 || c.used <= c.rec.touched {
			continue
		}
		left--
		tx.replaced(c.key, &c.rec)
		c.rec.touched = c.used
		if err := tx.write(c.key, &c.rec); err != nil {
			return err
		}
	}
	return nil
}
