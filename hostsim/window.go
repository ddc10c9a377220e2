package hostsim

import (
	"context"
	"sync"
)

// A feeder that does not wait for its window is reset at this backlog.
const (
	maxBacklogBytes  = 64 << 20
	maxBacklogEvents = 1 << 15
)

// window counts the bytes of one direction that were fed and have not left the stream.
type window struct {
	limit int

	mu     sync.Mutex
	queued int // bytes posted but not yet handled
	events int
	held   int // bytes that a paused filter makes the stream hold
	cut    bool
	room   chan struct{} // closed when there is room; nil while nobody waits
}

type queueResult uint8

const (
	queued queueResult = iota
	firstOverrun
	alreadyCut
)

func (w *window) queue(n int) queueResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return alreadyCut
	}
	if w.queued+n > maxBacklogBytes+w.limit || w.events >= maxBacklogEvents {
		w.cut = true
		return firstOverrun
	}
	w.queued += n
	w.events++
	return queued
}

// handled records that a queued piece was handled.
func (w *window) handled(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queued -= n
	w.events--
	w.signal()
}

func (w *window) setHeld(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = n
	w.signal()
}

func (w *window) signal() {
	if w.room != nil && w.queued+w.held <= w.limit {
		close(w.room)
		w.room = nil
	}
}

func (w *window) await(ctx context.Context, over <-chan struct{}) error {
	for {
		w.mu.Lock()
		if w.queued+w.held <= w.limit {
			w.mu.Unlock()
			select {
			case <-over:
				return ErrStreamOver
			default:
				return ctx.Err()
			}
		}
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-over:
			return ErrStreamOver
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
