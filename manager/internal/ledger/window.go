package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// estimated executes r on an engine whose transactions cannot tell how many entries there are. It uses a count that may
// be four seconds old (a second here, and three in the engine), or the engine's estimate. Concurrent insertions are not in it. Each of them makes room for itself,
// so the window may be exceeded for a moment by their number.
func (l *Ledger) estimated(ctx context.Context, r *run) error {
	n, err := l.length.get(ctx, l.store)
	if err != nil {
		return err
	}
	// Removals by others may have been subtracted from a count that never included them.
	r.tx.entryCount = max(int64(n), 0)
	return l.execute(ctx, r)
}

// lengthCache keeps the count of a shared engine for a second, so that a reserve does not pay for it.
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
