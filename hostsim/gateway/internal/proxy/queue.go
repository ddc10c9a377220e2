package proxy

import (
	"context"
	"sync"

	"github.com/oncegate/oncegate/hostsim"
)

type eventKind uint8

const (
	eventHeaders eventKind = iota + 1
	eventData
	eventTrailers
	eventReset
)

// event is one step of a message that leaves the host.
type event struct {
	kind    eventKind
	headers hostsim.Headers // of eventHeaders and eventTrailers
	data    []byte
	end     bool
	early   bool // of a response's headers: the request is not complete
}

// queue carries a message from the host's event loop, which never blocks, to one goroutine that writes it to a socket.
// It has no limit of its own: the feeder of the stream first waits for room, so the queue holds at most the feeder's
// limit plus what the host had collected.
type queue struct {
	mu     sync.Mutex
	events []event
	bytes  int
	ready  chan struct{} // capacity 1: events may be there
	room   chan struct{} // capacity 1: bytes were removed
}

func newQueue() *queue {
	return &queue{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put appends an event. It never blocks.
func (q *queue) put(e event) {
	q.mu.Lock()
	q.events = append(q.events, e)
	q.bytes += len(e.data)
	q.mu.Unlock()
	notify(q.ready)
}

// take returns the oldest event, and waits for one until ctx ends. It returns an event that is already there even if
// ctx has ended.
func (q *queue) take(ctx context.Context) (event, error) {
	for {
		if e, ok := q.tryTake(); ok {
			return e, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			if e, ok := q.tryTake(); ok {
				return e, nil
			}
			return event{}, context.Cause(ctx)
		}
	}
}

// tryTake is take without waiting.
func (q *queue) tryTake() (event, bool) {
	q.mu.Lock()
	if len(q.events) == 0 {
		q.mu.Unlock()
		return event{}, false
	}
	e := q.events[0]
	q.events[0] = event{}
	q.events = q.events[1:]
	if len(q.events) == 0 {
		q.events = nil
	}
	q.bytes -= len(e.data)
	q.mu.Unlock()
	if len(e.data) > 0 {
		notify(q.room)
	}
	return e, true
}

// awaitRoom waits until fewer than limit bytes are queued. Only one goroutine may
// wait at a time.
func (q *queue) awaitRoom(ctx context.Context, limit int) error {
	for {
		q.mu.Lock()
		full := q.bytes >= limit
		q.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-q.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sink is a hostsim.Sink that queues; onHeaders and onReset, when set, run first.
type sink struct {
	q         *queue
	onHeaders func(h hostsim.Headers, end bool) // gets the headers instead of the queue
	onReset   func(hostsim.ResetReason)
	early     func() bool // reports whether a response begins before the request's end
}

func (s *sink) Headers(h hostsim.Headers, end bool) {
	if s.onHeaders != nil {
		s.onHeaders(h, end)
		return
	}
	s.q.put(event{kind: eventHeaders, headers: h, end: end, early: s.early != nil && s.early()})
}

func (s *sink) Data(b []byte, end bool) {
	s.q.put(event{kind: eventData, data: b, end: end})
}

func (s *sink) Trailers(h hostsim.Headers) {
	s.q.put(event{kind: eventTrailers, headers: h, end: true})
}

func (s *sink) Reset(reason hostsim.ResetReason) {
	if s.onReset != nil {
		s.onReset(reason)
	}
	s.q.put(event{kind: eventReset, end: true})
}
