package hostsimtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/oncegate/oncegate/hostsim"
)

// ServerStream is a gRPC stream as a test's server sees it. It is safe for concurrent use.
type ServerStream struct {
	hostsim.StreamRequest
	// OnMessage gets the guest's messages instead of Next. It runs on the guest's loop and must not block. A nil message
	// is the end of the guest's side without one. Cluster.StreamHandler sets it.
	OnMessage func(message []byte, end bool)

	// Events is what the server can do, for what no method offers.
	Events hostsim.StreamEvents

	ctx context.Context

	mu       sync.Mutex
	messages [][]byte
	ended    bool
	changed  chan struct{}
}

// OpenStream implements hostsim.GRPCCluster.
func (c *Cluster) OpenStream(ctx context.Context, req hostsim.StreamRequest, events hostsim.StreamEvents) (hostsim.GRPCStream, error) {
	if c.RefuseStream != nil {
		if err := c.RefuseStream(req); err != nil {
			return nil, err
		}
	}
	s := &ServerStream{StreamRequest: req, ctx: ctx, Events: events, changed: make(chan struct{})}
	if c.StreamHandler != nil {
		c.StreamHandler(s)
		return clientSide{s}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = append(c.streams, s)
	c.wake()
	return clientSide{s}, nil
}

// NextStream returns the oldest stream that was not returned yet, and waits for one if there is none.
func (c *Cluster) NextStream(ctx context.Context) (*ServerStream, error) {
	var s *ServerStream
	err := c.await(ctx, "stream", func() bool {
		if len(c.streams) == 0 {
			return false
		}
		s, c.streams = c.streams[0], c.streams[1:]
		return true
	})
	return s, err
}

// clientSide is the guest's side of the stream. The host's loop calls it.
type clientSide struct{ s *ServerStream }

func (c clientSide) Send(message []byte, end bool) {
	s := c.s
	if s.OnMessage != nil {
		s.OnMessage(message, end)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if message != nil {
		s.messages = append(s.messages, message)
	}
	s.ended = s.ended || end
	close(s.changed)
	s.changed = make(chan struct{})
}

// Reset has nothing to do: the host ends the stream's context, too.
func (clientSide) Reset() {}

// Next returns the oldest message that was not returned yet, and waits for one if there is none. ok is false when the
// guest has ended its side.
func (s *ServerStream) Next(ctx context.Context) (message []byte, ok bool, err error) {
	for {
		s.mu.Lock()
		changed := s.changed
		if len(s.messages) > 0 {
			message, s.messages = s.messages[0], s.messages[1:]
			s.mu.Unlock()
			return message, true, nil
		}
		ended := s.ended
		s.mu.Unlock()
		if ended {
			return nil, false, nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return nil, false, fmt.Errorf("the guest's side of the stream was cut: %w", s.ctx.Err())
		case <-ctx.Done():
			return nil, false, fmt.Errorf("no message came: %w", ctx.Err())
		}
	}
}

// Accept sends response headers, which come before the first message.
func (s *ServerStream) Accept(nameValues ...string) {
	s.Events.Metadata(append(hostsim.H(":status", "200", "content-type", "application/grpc"), hostsim.H(nameValues...)...))
}

// Send sends a message.
func (s *ServerStream) Send(message []byte) { s.Events.Message(message) }

// Finish ends the stream with a status.
func (s *ServerStream) Finish(status int, message string, nameValues ...string) {
	s.Events.Trailers(append(hostsim.H("grpc-status", fmt.Sprint(status), "grpc-message", message), hostsim.H(nameValues...)...))
	s.close(status, message)
}

// Refuse ends a stream that was not accepted, with a status in the headers.
func (s *ServerStream) Refuse(status int, message string) {
	s.Events.Metadata(nil)
	s.Events.Trailers(hostsim.H(":status", "200", "content-type", "application/grpc", "grpc-status", fmt.Sprint(status), "grpc-message", message))
	s.close(status, message)
}

// Break ends a stream whose server broke the rules: status 2 for one that ended without trailers, 13 for bad frames.
func (s *ServerStream) Break(status int) {
	s.Events.Trailers(nil)
	s.close(status, "")
}

func (s *ServerStream) close(status int, message string) {
	s.Events.Close(status, hostsim.StreamText(message, "via_upstream"))
}

// Fail ends the stream as a failed connection does. accepted says that Accept has been called.
func (s *ServerStream) Fail(f hostsim.UpstreamFailure, detail string, accepted bool) {
	s.Events.Fail(f, detail, accepted)
}

// Cut is done when the guest's side is gone: the guest cancelled the stream, its plugin or host ended, or the stream
// is over.
func (s *ServerStream) Cut() <-chan struct{} { return s.ctx.Done() }
