package remote

import (
	"math/rand/v2"
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Claims keeps the claiming scans of a process apart on an engine without row locks. After conflicts with other processes
// it spreads them. The zero value is ready.
type Claims struct {
	mu    sync.Mutex
	taken map[store.ID]struct{} // by running transactions
}

// Claimer has what one run of a transaction has taken. The zero value has taken nothing.
type Claimer struct{ taken map[store.ID]struct{} }

// Has reports whether the run has taken a record.
func (by *Claimer) Has(c store.Collection, key string) bool {
	_, has := by.taken[store.ID{Collection: c, Key: key}]
	return has
}

// Window is how many hits a scan that is to take limit records reads, at most store.MaxScan. It grows with every run of the
// transaction after a conflict.
func (c *Claims) Window(limit, run int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(limit*(1+4*min(run, 16))+len(c.taken), store.MaxScan)
}

// Take takes up to limit of the hits that nobody has taken: the first ones in the first run, and in later ones (run > 0)
// those from a random position on. It returns them, and those that come next. Both use the memory of hits.
func (c *Claims) Take(by *Claimer, coll store.Collection, hits []store.Hit, limit, run int) (taken, rest []store.Hit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := hits[:0]
	for _, h := range hits {
		if !c.has(coll, h) {
			free = append(free, h)
		}
	}
	if len(free) > limit {
		start := 0
		if run > 0 {
			start = rand.IntN(len(free) - limit + 1)
		}
		free, rest = free[start:start+limit], free[start+limit:]
	}
	c.take(by, coll, free)
	return free, rest
}

// TakeAll takes the hits, or none of them if one is taken.
func (c *Claims) TakeAll(by *Claimer, coll store.Collection, hits []store.Hit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range hits {
		if c.has(coll, h) {
			return false
		}
	}
	c.take(by, coll, hits)
	return true
}

// Release ends what a run has taken.
func (c *Claims) Release(by *Claimer) {
	if len(by.taken) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range by.taken {
		delete(c.taken, id)
	}
	by.taken = nil
}

func (c *Claims) has(coll store.Collection, h store.Hit) bool {
	_, has := c.taken[store.ID{Collection: coll, Key: h.Key}]
	return has
}

func (c *Claims) take(by *Claimer, coll store.Collection, hits []store.Hit) {
	if c.taken == nil {
		c.taken = make(map[store.ID]struct{})
	}
	if by.taken == nil {
		by.taken = make(map[store.ID]struct{}, len(hits))
	}
	for _, h := range hits {
		id := store.ID{Collection: coll, Key: h.Key}
		c.taken[id], by.taken[id] = struct{}{}, struct{}{}
	}
}
