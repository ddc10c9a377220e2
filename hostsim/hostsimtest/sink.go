package hostsimtest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/hostsim"
)

// Sink records one direction of a stream's output.
type Sink struct {
	mu      sync.Mutex
	msg     Message
	log     []string
	changed chan struct{}
	// early, if set, reports on the worker's loop whether the request is still incomplete.
	early func() bool
	// onChange, if set, is called on the worker's loop after each change.
	onChange func(Message)
}

// Message is what a sink has received so far.
type Message struct {
	Headers  hostsim.Headers // nil: none yet
	Body     []byte
	Trailers hostsim.Headers
	Ended    bool
	Early    bool                // a response that began before the request's end: Envoy closes an HTTP/1.1 connection after it, or resets the HTTP/2 stream
	Reset    hostsim.ResetReason // empty: not reset
}

// Status is the ":status" header.
func (m Message) Status() string { return m.Headers.Get(":status") }

func newSink() *Sink { return &Sink{changed: make(chan struct{})} }

func (s *Sink) change(entry string, f func()) {
	s.mu.Lock()
	f()
	s.log = append(s.log, entry)
	close(s.changed)
	s.changed = make(chan struct{})
	msg, on := s.snapshot(), s.onChange
	s.mu.Unlock()
	if on != nil {
		on(msg)
	}
}

func end(endStream bool) string {
	if endStream {
		return " end"
	}
	return ""
}

// Headers implements hostsim.Sink.
func (s *Sink) Headers(h hostsim.Headers, endStream bool) {
	first := cmp.Or(h.Get(":status"), h.Get(":method")+" "+h.Get(":path"))
	s.change("headers "+first+end(endStream), func() {
		s.msg.Headers, s.msg.Ended = h, endStream
		s.msg.Early = s.early != nil && s.early()
		if s.msg.Headers == nil {
			s.msg.Headers = hostsim.Headers{}
		}
	})
}

// Data implements hostsim.Sink.
func (s *Sink) Data(b []byte, endStream bool) {
	shown := fmt.Sprintf("%d bytes", len(b))
	if len(b) <= 40 {
		shown = fmt.Sprintf("%q", b)
	}
	s.change("data "+shown+end(endStream), func() {
		s.msg.Body = append(s.msg.Body, b...)
		s.msg.Ended = endStream
	})
}

// Trailers implements hostsim.Sink.
func (s *Sink) Trailers(h hostsim.Headers) {
	s.change(fmt.Sprintf("trailers %d end", len(h)), func() { s.msg.Trailers, s.msg.Ended = h, true })
}

// Reset implements hostsim.Sink.
func (s *Sink) Reset(reason hostsim.ResetReason) {
	s.change("reset "+string(reason), func() { s.msg.Reset = reason })
}

// snapshot shares the body's bytes, which are only ever appended to.
func (s *Sink) snapshot() Message {
	m := s.msg
	m.Body = m.Body[:len(m.Body):len(m.Body)]
	return m
}

// Message returns what has arrived so far.
func (s *Sink) Message() Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot()
}

// Log returns what has arrived so far as text, one entry per event, separated by " | ".
func (s *Sink) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log, " | ")
}

// Await waits until the message satisfies cond.
func (s *Sink) Await(ctx context.Context, cond func(Message) bool) (Message, error) {
	for {
		s.mu.Lock()
		m, changed := s.snapshot(), s.changed
		s.mu.Unlock()
		if cond(m) {
			return m, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m, ctx.Err()
		}
	}
}
