package calls

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
)

// Round lets callers share an operation: those that come while it runs share the next one, because the running one may
// have begun too early for them. The zero value is ready for use.
type Round[T any] struct {
	mu      sync.Mutex
	running bool
	next    *turn[T]
}

type turn[T any] struct {
	done   chan struct{}
	result T
	err    error
}

// Join returns the result and the error of an op that began after Join was called, or the error of ctx. The op may be the
// one that another caller passed, so all must pass the same function. It may outlive its callers: its context ends with
// life and after the time within.
func (r *Round[T]) Join(ctx context.Context, life *batch.Life, within time.Duration, op func(context.Context) (T, error)) (result T, err error) {
	r.mu.Lock()
	t := r.next
	if t == nil {
		t = &turn[T]{done: make(chan struct{})}
		r.next = t
	}
	ended := false
	if !r.running {
		r.running = life.Go(func() { r.run(life.Context(), within, op) })
		ended = !r.running
	}
	r.mu.Unlock()
	if ended {
		return result, context.Canceled
	}
	select {
	case <-t.done:
		return t.result, t.err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

func (r *Round[T]) run(life context.Context, within time.Duration, op func(context.Context) (T, error)) {
	for {
		r.mu.Lock()
		t := r.next
		r.next = nil
		if t == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(life, within)
		t.result, t.err = op(ctx)
		cancel()
		close(t.done)
	}
}
