package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Bounds of one transaction of a group.
const (
	groupCalls = 128
	groupBytes = 4 << 20
	// groupLanes is how many transactions of a group run concurrently: while the medium makes one durable, the server
	// works on another.
	groupLanes = 2
)

// group runs calls of one kind that arrive at the same time in shared transactions, on stores where a transaction is a
// few round trips however much it does. Calls that arrive while all lanes are busy wait for the next transaction. A
// call that finds a free lane starts immediately.
//
// Inside a transaction the calls run one after the other. Each sees what those before it did, and a refused call has
// written nothing. So the other calls make no difference to a caller.
type group[T any] struct {
	q *Queue
	// run does the calls in one transaction. It may be called again.
	run func(tx store.Tx, calls []*T) error

	mu      sync.Mutex
	pending []*member[T]
	running int
}

type member[T any] struct {
	call *T
	size int
	err  error // before done is closed
	done chan struct{}
}

// do runs one call of about the given size. When it returns nil, the call has been done durably. When ctx ends first,
// the call may still be done and must not be used any more.
func (g *group[T]) do(ctx context.Context, call *T, size int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := &member[T]{call: call, size: size, done: make(chan struct{})}
	g.mu.Lock()
	if g.running < groupLanes {
		if !g.q.spawn(g.lane) {
			g.mu.Unlock()
			return ErrClosed
		}
		g.running++
	}
	g.pending = append(g.pending, m)
	g.mu.Unlock()
	select {
	case <-m.done:
		return m.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.pending, m); i >= 0 {
		g.pending = slices.Delete(g.pending, i, i+1)
	}
	return ctx.Err()
}

// nextBatch removes the calls of the next transaction. If there are none, the lane ends.
func (g *group[T]) nextBatch() []*member[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, size := 0, 0
	for n < min(len(g.pending), groupCalls) && (n == 0 || size+g.pending[n].size <= groupBytes) {
		size += g.pending[n].size
		n++
	}
	if n == 0 {
		g.running--
		return nil
	}
	batch := slices.Clone(g.pending[:n])
	g.pending = slices.Delete(g.pending, 0, n)
	return batch
}

func (g *group[T]) lane() {
	for {
		batch := g.nextBatch()
		if len(batch) == 0 {
			return
		}
		err := g.transact(batch)
		// An error of one call (a damaged record, a transaction that is too large, conflicts with other transactions)
		// must not affect the others.
		alone := err != nil && len(batch) > 1 && g.q.base.Err() == nil && !mayHaveHappened(err)
		for i, m := range batch {
			if m.err = err; alone {
				m.err = g.transact(batch[i : i+1])
			}
			close(m.done)
		}
	}
}

// mayHaveHappened reports whether a transaction that failed with err may have happened nevertheless. Then it must not be run
// again: a worker may already have an enqueued job, which would be reset.
func mayHaveHappened(err error) bool {
	for _, e := range []error{store.ErrUnavailable, store.ErrFailed, store.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (g *group[T]) transact(batch []*member[T]) error {
	ctx, cancel := context.WithTimeout(g.q.base, claimTimeout)
	defer cancel()
	calls := make([]*T, len(batch))
	for i, m := range batch {
		calls[i] = m.call
	}
	err := g.q.store.Update(ctx, func(tx store.Tx) error { return g.run(tx, calls) })
	if err != nil && g.q.base.Err() != nil {
		err = ErrClosed
	}
	return err
}
