package calls

import (
	"errors"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func TestCloseWaitsForRunningCalls(t *testing.T) {
	var c Calls
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan bool)
	go func() { closed <- c.Close() }()
	for c.Enter() == nil { // until Close has begun
		c.Leave()
	}
	select {
	case <-closed:
		t.Fatal("Close returned while a call was running")
	default:
	}
	c.Leave()
	if !<-closed {
		t.Error("Close does not know that it was the first")
	}
	if c.Close() {
		t.Error("the second Close believes that it was the first")
	}
	if err := c.Enter(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Enter after Close: %v", err)
	}
}

// TestNoCallOutlivesClose lets calls and Close race: a call that was let in before
// Close returned has left.
func TestNoCallOutlivesClose(t *testing.T) {
	for range 200 {
		var c Calls
		open := true
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if c.Enter() != nil {
					return
				}
				mu.Lock()
				if !open {
					t.Error("a call runs after Close")
				}
				mu.Unlock()
				c.Leave()
			})
		}
		c.Close()
		mu.Lock()
		open = false
		mu.Unlock()
		wg.Wait()
	}
}
