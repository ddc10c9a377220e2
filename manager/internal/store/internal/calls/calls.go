// Package calls lets an engine's Close wait for the running calls and reject later ones.
package calls

import (
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Calls counts running calls. The zero value is open.
type Calls struct {
	mu      sync.RWMutex // read-locked while a call registers, so that Close either waits for the call or rejects it
	closed  bool
	running sync.WaitGroup
}

// Enter registers a call; the caller must call Leave. After Close it returns store.ErrClosed.
func (c *Calls) Enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return store.ErrClosed
	}
	c.running.Add(1)
	return nil
}

// Leave ends a registered call.
func (c *Calls) Leave() { c.running.Done() }

// Close rejects further calls, waits for the running ones and reports whether it was the first Close.
func (c *Calls) Close() bool {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
	return first
}
