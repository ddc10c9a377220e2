package hostsim

import (
	"context"
	"sync/atomic"
	"time"
)

// thread is one of Envoy's threads: an event loop, the VM that lives on it and, on a worker, its streams.
type thread struct {
	host  *Host
	name  string
	index int // of a worker; -1 on the main thread
	loop  *loop

	streams atomic.Int64 // admitted and not yet over
	closing atomic.Bool

	// The loop owns the fields below.
	vm        *vm
	loadedAt  time.Time
	oldest    *Stream // least recently active; the list ends at newest
	newest    *Stream
	idleTimer timer
	idleArmed bool
}

func newThread(h *Host, name string, index int) *thread {
	t := &thread{host: h, name: name, index: index}
	t.loop = newLoop(&h.idle, t.handle)
	t.idleTimer = timer{clock: h.cfg.Clock, loop: t.loop}
	return t
}

func (t *thread) handle(e *event) {
	switch e.kind {
	case evFunc:
		e.f()
	case evQueueReady:
		if t.vm != nil {
			t.vm.onQueueReady(e.context, e.queue)
		}
	default:
		e.stream.handle(e)
	}
}

// startVM makes the thread's VM.
func (t *thread) startVM(ctx context.Context) error {
	v := newVM(t, t.name, false)
	t.vm, t.loadedAt = v, t.host.cfg.Clock.Now()
	return v.start(ctx)
}

// vmForStream returns the VM for a new stream, nil if the stream passes without the filter. Under FailReload it
// replaces a dead VM first.
func (t *thread) vmForStream() *vm {
	v := t.vm
	if !v.failed {
		return v
	}
	switch t.host.cfg.FailurePolicy {
	case FailOpen:
		return nil
	case FailReload:
		if t.host.cfg.Clock.Now().Sub(t.loadedAt) < t.host.cfg.ReloadBackoff {
			return v
		}
		v.discard()
		if err := t.startVM(t.host.ctx); err != nil {
			t.host.cfg.Logger.Error("reloading the filter failed", "thread", t.name, "error", err)
			t.vm.discard()
			t.vm.failed = true
		}
		return t.vm
	}
	return v
}

// admit counts a new stream, and rejects it if there are too many.
func (t *thread) admit() error {
	if t.closing.Load() {
		return ErrClosed
	}
	if t.streams.Add(1) > int64(t.host.cfg.MaxStreams) {
		t.streams.Add(-1)
		return ErrTooManyStreams
	}
	return nil
}

// --- the list of streams, ordered by last activity ---

func (t *thread) add(s *Stream) {
	s.active = t.host.cfg.Clock.Now()
	t.link(s)
	t.armIdle()
	if t.closing.Load() {
		s.reset(ResetHostClosed) // it was admitted while Close went through the list
	}
}

func (t *thread) link(s *Stream) {
	s.prev, s.next = t.newest, nil
	if t.newest != nil {
		t.newest.next = s
	} else {
		t.oldest = s
	}
	t.newest = s
}

func (t *thread) unlink(s *Stream) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		t.oldest = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		t.newest = s.prev
	}
	s.prev, s.next = nil, nil
}

// touch records activity of the stream.
func (t *thread) touch(s *Stream) {
	s.active = t.host.cfg.Clock.Now()
	if t.newest != s {
		t.unlink(s)
		t.link(s)
	}
}

func (t *thread) remove(s *Stream) {
	t.unlink(s)
	t.streams.Add(-1)
}

// armIdle sets the thread's timer for the stream that is idle longest. All streams have the same timeout, so the list
// is in the order of their deadlines.
func (t *thread) armIdle() {
	if t.idleArmed || t.oldest == nil {
		return
	}
	t.idleArmed = true
	d := t.oldest.active.Add(t.host.cfg.StreamIdleTimeout).Sub(t.host.cfg.Clock.Now())
	t.idleTimer.arm(d, event{kind: evFunc, f: t.onIdleTimer})
}

func (t *thread) onIdleTimer() {
	t.idleArmed = false
	now := t.host.cfg.Clock.Now()
	for s := t.oldest; s != nil && now.Sub(s.active) >= t.host.cfg.StreamIdleTimeout; s = t.oldest {
		s.handle(&event{kind: evIdle}) // moves it to the list's end, or off it
	}
	t.armIdle()
}

// closeStreams resets all open streams.
func (t *thread) closeStreams() {
	for t.oldest != nil {
		t.oldest.reset(ResetHostClosed)
	}
}
