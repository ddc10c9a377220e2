// Package batch runs calls that come at the same time together.
//
// A Batcher has a bounded number of lanes. A call that finds a free lane starts immediately. Calls that come while all
// lanes are busy wait, and the next free lane takes as many of them as one batch may have. So one transaction, request or
// sync of a disk serves many callers when it is slow, and a single caller does not wait for others.
//
// The calls that wait are bounded by the callers, since each of them waits in Do.
package batch

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Batcher runs calls with arguments of type T. Its fields must not change after the first call. It is safe for concurrent
// use.
type Batcher[T any] struct {
	// Run does the calls of a batch. Its error is that of each call that it neither finished nor put back. The context
	// ends with Life and after Within. A panic of Run is raised in its callers.
	Run func(ctx context.Context, calls []*Call[T]) error
	// Life starts the lanes and ends them.
	Life *Life
	// Closed is the error of calls that the end of Life prevents or interrupts. If it is nil, a prevented call gets
	// context.Canceled, and an interrupted one the error of Run.
	Closed error
	// Lanes is how many batches run at the same time; 1 when 0.
	Lanes int
	// Count bounds the calls of a batch, and Size the sum of their sizes, which one call alone may exceed. 0: no bound.
	Count, Size int
	// Fits, when set, is called for each batch. The function that it returns reports whether a call may join the calls that
	// it accepted before. It must accept the first one. Calls that it refuses wait for another batch, which calls after them
	// do not.
	Fits func() func(*Call[T]) bool
	// Within bounds the time of a batch; 0: it has no bound of its own.
	Within time.Duration
	// Overdue, when set, is how long calls wait at most for a lane. Then a batch more starts, since those that run may hang.
	Overdue time.Duration
	// EndLeft ends the context of a batch when all its callers have left.
	EndLeft bool
	// Gather, when set, is called before a lane takes its next batch, and returns when it should.
	Gather func()

	mu      sync.Mutex
	pending []*Call[T]
	lanes   int
	timer   *time.Timer // runs while calls wait, if there is an Overdue
}

// Call is one call, which may be made once.
type Call[T any] struct {
	// Arg is what Run gets, and where it may leave an answer. The caller must not use it again when Do returned because its
	// context ended.
	Arg T
	// Size is what the call takes of the size of a batch.
	Size int

	state atomic.Int32
	batch *running[T] // nil while it is pending
	back  bool        // into the queue after Run
	err   error       // before done is closed
	done  chan struct{}
}

// running is a batch under way.
type running[T any] struct {
	calls  []*Call[T]
	ctx    context.Context
	cancel context.CancelFunc
}

// The states of a call.
const (
	waiting  int32 = iota
	finished       // it has its answer
	left           // its caller has left without one
)

// Finish answers a call before Run returns. It reports whether the caller gets the answer: another one has left, or has
// its answer.
func (c *Call[T]) Finish(err error) bool {
	if !c.state.CompareAndSwap(waiting, finished) {
		return false
	}
	c.err = err
	close(c.done)
	return true
}

// PutBack makes the call one of the next batch, if Run returns nil.
func (c *Call[T]) PutBack() { c.back = true }

// Args returns where the arguments of calls are.
func Args[T any](calls []*Call[T]) []*T {
	args := make([]*T, len(calls))
	for i, c := range calls {
		args[i] = &c.Arg
	}
	return args
}

// Do makes a call and returns its error. When ctx ends first, Do returns the context's error: a call that waits is then
// not made, and Run may still be at work with one that does not.
func (b *Batcher[T]) Do(ctx context.Context, c *Call[T]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.done = make(chan struct{})
	if !b.add(c) {
		return cmp.Or(b.Closed, context.Canceled)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.state.CompareAndSwap(waiting, left) {
			b.withdraw(c)
			return ctx.Err()
		}
		<-c.done
	}
	if p, ok := c.err.(*panicError); ok {
		panic(p)
	}
	return c.err
}

// Waiting is how many calls wait for a batch.
func (b *Batcher[T]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// Idle reports whether no call waits and no batch runs.
func (b *Batcher[T]) Idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lanes == 0
}

// add puts a call into the queue, which a lane serves. It returns false when Life has ended.
func (b *Batcher[T]) add(c *Call[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lanes < max(b.Lanes, 1) && !b.start() {
		return false
	}
	b.pending = append(b.pending, c)
	b.watch()
	return true
}

// start starts a lane. The caller holds mu.
func (b *Batcher[T]) start() bool {
	if !b.Life.Go(b.lane) {
		return false
	}
	b.lanes++
	return true
}

// watch starts the timer for calls that wait. The caller holds mu.
func (b *Batcher[T]) watch() {
	if b.Overdue == 0 || b.timer != nil || len(b.pending) == 0 {
		return
	}
	b.timer = time.AfterFunc(b.Overdue, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.timer = nil; len(b.pending) > 0 {
			b.start()
		}
	})
}

// withdraw removes a call whose caller has left.
func (b *Batcher[T]) withdraw(c *Call[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := func(c *Call[T]) bool { return c.state.Load() == waiting }
	if i := slices.Index(b.pending, c); i >= 0 {
		b.pending = slices.Delete(b.pending, i, i+1)
	} else if b.EndLeft && c.batch != nil && !slices.ContainsFunc(c.batch.calls, waits) {
		c.batch.cancel()
	}
}

func (b *Batcher[T]) lane() {
	for first := true; ; first = false {
		if b.Gather != nil {
			b.Gather()
		}
		r := b.next(first)
		if r == nil {
			return
		}
		b.run(r)
		r.cancel()
	}
}

// next takes the calls of the next batch. If there are none, or other lanes are enough, the lane ends.
func (b *Batcher[T]) next(first bool) *running[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 || !first && b.lanes > max(b.Lanes, 1) {
		b.lanes--
		return nil
	}
	r := &running[T]{ctx: b.Life.Context(), cancel: func() {}}
	if b.Within > 0 {
		r.ctx, r.cancel = context.WithTimeout(r.ctx, b.Within)
	} else if b.EndLeft {
		r.ctx, r.cancel = context.WithCancel(r.ctx)
	}
	fits := func(*Call[T]) bool { return true }
	if b.Fits != nil {
		fits = b.Fits()
	}
	rest, size := b.pending[:0], 0
	for i, c := range b.pending {
		if n := len(r.calls); b.Count > 0 && n == b.Count || b.Size > 0 && n > 0 && size+c.Size > b.Size {
			rest = append(rest, b.pending[i:]...)
			break
		}
		if !fits(c) {
			rest = append(rest, c)
			continue
		}
		c.batch = r
		r.calls, size = append(r.calls, c), size+c.Size
	}
	clear(b.pending[len(rest):])
	b.pending = rest
	b.watch()
	return r
}

// run runs a batch and finishes its calls.
func (b *Batcher[T]) run(r *running[T]) {
	err := b.guarded(r)
	answered := false
	var back []*Call[T]
	for _, c := range r.calls {
		if c.back && err == nil {
			c.back = false
			back = append(back, c)
		} else if c.Finish(err) {
			answered = true
		}
	}
	if p, ok := err.(*panicError); ok && !answered {
		panic(p)
	}
	if len(back) > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		back = slices.DeleteFunc(back, func(c *Call[T]) bool { c.batch = nil; return c.state.Load() != waiting })
		b.pending = append(back, b.pending...)
	}
}

// panicError is a panic of Run, to be raised again.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("batch: panic: %v\n\n%s", p.value, p.stack) }

// guarded calls Run, unless Life has ended.
func (b *Batcher[T]) guarded(r *running[T]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	closed := func() bool { return b.Closed != nil && b.Life.Context().Err() != nil }
	if closed() {
		return b.Closed
	}
	if err = b.Run(r.ctx, r.calls); err != nil && closed() {
		err = b.Closed
	}
	return err
}
