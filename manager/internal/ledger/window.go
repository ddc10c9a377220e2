package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// estimated executes r on an engine that cannot tell its transactions how many
// entries there are: with a count that may be a second old, or what the engine
// calls one. Others that insert at the same time are not in it, each makes room
// for itself: the window may be exceeded for a moment, by as many as there are.
func (l *Ledger) estimated(ctx context.Context, r *run) error {
	n, err := l.length.get(ctx, l.store)
	if err != nil {
		return err
	}
	// What others removed may have been taken off a count that was made without it.
	r.tx.held = max(int64(n), 0)
	return l.execute(ctx, r)
}

// lengthCache keeps the count of a shared engine for a second, so that a
// reserve does not pay for it.
type lengthCache struct {
	mu   sync.Mutex
	at   time.Time
	n    int
	busy bool
}

const lengthTTL = time.Second

// adjust takes over what this process itself changed, so that it does not make
// room for the same entry twice.
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
	n, err := st.Len(ctx, collection, "")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if err != nil {
		return 0, err
	}
	c.n, c.at = n, time.Now()
	return n, nil
}
