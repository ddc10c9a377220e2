package calls

import (
	"context"
	"sync"
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

// Join returns the result and the error of an op that began after Join was called, or the error of ctx. work counts the
// goroutine that runs it. The op may be the one that another caller passed, so all must pass the same function.
func (r *Round[T]) Join(ctx context.Context, work *sync.WaitGroup, op func() (T, error)) (T, error) {
	r.mu.Lock()
	t := r.next
	if t == nil {
		t = &turn[T]{done: make(chan struct{})}
		r.next = t
	}
	if !r.running {
		r.running = true
		work.Go(func() { r.run(op) })
	}
	r.mu.Unlock()
	select {
	case <-t.done:
		return t.result, t.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (r *Round[T]) run(op func() (T, error)) {
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
		t.result, t.err = op()
		close(t.done)
	}
}
