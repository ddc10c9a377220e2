package batch

import (
	"context"
	"sync"
)

// Life is how long goroutines may run that belong together, such as the lanes of batchers.
type Life struct {
	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex // orders the start of goroutines before the wait for them
	ended   bool
	running sync.WaitGroup
}

// NewLife begins a life. It has the values of ctx, but does not end with it: the caller must call End.
func NewLife(ctx context.Context) *Life {
	l := new(Life)
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return l
}

// Context is the context of the goroutines, which End ends.
func (l *Life) Context() context.Context { return l.ctx }

// Go runs f on a goroutine that End waits for. It returns false after End.
func (l *Life) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.running.Go(f)
	}
	return !l.ended
}

// End ends the context, and waits for the goroutines. Later ones do not start.
func (l *Life) End() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.cancel()
	l.running.Wait()
}
