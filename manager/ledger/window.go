package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/store"
)

// window bounds the number of entries, on an engine inside this process,
// without counting them for each insertion: there are at most as many as at the
// last count, plus one for each insertion that was under way then or has begun
// since. Entries that go are noticed by the next count, which is due when the
// bound says that the window may be full.
type window struct {
	// inFlight are transactions that may insert an entry, begun all that ever
	// were. A transaction is in flight before it has begun.
	inFlight, begun atomic.Int64
	last            atomic.Pointer[count]
}

// count is an upper bound of the entries that those transactions leave which
// had begun at its time.
type count struct{ entries, begun int64 }

// begin counts a transaction and returns an upper bound of the entries there
// are with its own; ok is false before the first count.
func (w *window) begin() (bound int64, ok bool) {
	n := w.begun.Add(1)
	c := w.last.Load()
	if c == nil {
		return 0, false
	}
	return c.entries + n - c.begun, true
}

// recount takes a new count. What is in flight before length is called may be
// part of both; nothing is part of neither.
func (w *window) recount(length func() (int, error)) (int, error) {
	c := count{begun: w.begun.Load()}
	c.entries = w.inFlight.Load()
	n, err := length()
	if err != nil {
		return 0, err
	}
	c.entries += int64(n)
	w.last.Store(&c)
	return n, nil
}

// counted executes r with an upper bound of the number of entries known. Each
// concurrent run counts itself and all that began before it, so that together
// they cannot exceed the window.
func (l *Ledger) counted(ctx context.Context, r *run) error {
	w := &l.window
	ticket := w.inFlight.Add(1)
	defer w.inFlight.Add(-1)
	if l.shared {
		length, err := l.length.get(ctx, l.store)
		if err != nil {
			return err
		}
		return l.execute(ctx, int64(length)+ticket, r)
	}
	if bound, ok := w.begin(); ok && bound <= int64(l.opts.MaxEntries) {
		return l.execute(ctx, bound, r)
	}
	length, err := w.recount(func() (int, error) { return l.store.Len(ctx, collection, "") })
	if err != nil {
		return err
	}
	return l.execute(ctx, int64(length)+ticket, r)
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
