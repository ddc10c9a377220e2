package hostsim

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// OpenStream implements GRPCCluster. It ends streams with the statuses that Envoy gives them.
func (c *HTTPCluster) OpenStream(ctx context.Context, req StreamRequest, events StreamEvents) (GRPCStream, error) {
	s := &grpcClientStream{maxMessage: uint64(c.cfg.MaxMessageBytes), events: events}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.ready = sync.NewCond(&s.mu)
	err := c.begin(func() func() {
		stop := context.AfterFunc(c.ctx, s.cancel)
		unblock := context.AfterFunc(s.ctx, s.end)
		ended := s.run(c, req)
		unblock()
		stop()
		s.cancel()
		s.end()
		return ended
	})
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// maxUnsent bounds what a stream keeps for a server that does not read. Beyond it the stream ends. Envoy has no limit.
const maxUnsent = 64 << 20

// grpcClientStream is a stream, and the body of its HTTP request.
type grpcClientStream struct {
	maxMessage uint64
	events     StreamEvents
	ctx        context.Context
	cancel     context.CancelFunc

	mu       sync.Mutex
	ready    *sync.Cond
	unsent   []byte
	overfull bool
	finished bool // nothing more will be sent
	over     bool // nobody reads the body any more
}

// Send implements GRPCStream.
func (s *grpcClientStream) Send(message []byte, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished || s.over {
		return
	}
	if message != nil {
		if len(s.unsent)+len(message)+5 > maxUnsent {
			s.overfull = true
			s.cancel()
			return
		}
		s.unsent = append(s.unsent, 0)
		s.unsent = binary.BigEndian.AppendUint32(s.unsent, uint32(len(message)))
		s.unsent = append(s.unsent, message...)
	}
	s.finished = end
	s.ready.Signal()
}

// Reset implements GRPCStream.
func (s *grpcClientStream) Reset() { s.cancel() }

// Read gives the transport what is to be sent.
func (s *grpcClientStream) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unsent) == 0 && !s.finished && !s.over {
		s.ready.Wait()
	}
	if len(s.unsent) == 0 || s.over {
		return 0, io.EOF
	}
	n := copy(b, s.unsent)
	if s.unsent = s.unsent[n:]; len(s.unsent) == 0 {
		s.unsent = nil
	}
	return n, nil
}

// Close is called by the transport, which reads no more.
func (s *grpcClientStream) Close() error { s.end(); return nil }

func (s *grpcClientStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.unsent = true, nil
	s.ready.Broadcast()
}

func (s *grpcClientStream) run(c *HTTPCluster, req StreamRequest) (ended func()) {
	hr := c.request(http.MethodPost, "/"+req.Service+"/"+req.Method, req.Metadata)
	hr.Host, hr.Body, hr.ContentLength = req.Authority, s, -1
	hr.Header.Set("Content-Type", "application/grpc")
	hr.Header.Set("Te", "trailers")
	// A connection of its own, as with max_requests_per_connection: 1. On a shared one the next stream would go to a host
	// that has vanished, too. The connection ends with the stream, also if it comes too late for it.
	lifetime, over := context.WithCancel(context.Background())
	defer over()
	transport := c.newTransport(func(_ context.Context, network, address string) (net.Conn, error) {
		conn, err := c.dial(lifetime, network, address)
		if err == nil {
			context.AfterFunc(lifetime, func() { _ = conn.Close() })
		}
		return conn, err
	})
	resp, err := transport.RoundTrip(hr.WithContext(s.ctx))
	if err != nil {
		failure, detail := UpstreamDisconnected, connectFailure(err)
		if detail != "" {
			failure = UpstreamConnectFailed
		}
		return func() { s.events.Fail(failure, detail, false) }
	}
	defer resp.Body.Close()
	h := answerHeaders(resp)
	whole := resp.ContentLength == 0 // the end came with the headers
	switch {
	case whole && (resp.StatusCode == http.StatusOK || h.Has("grpc-status")):
		s.events.Metadata(nil)
		return s.finish(h)
	case resp.StatusCode != http.StatusOK:
		s.events.Metadata(nil)
		return s.fail(grpcCodeOfHTTP(resp.StatusCode))
	}
	s.events.Metadata(h)
	switch err := s.receive(resp.Body); {
	case errors.Is(err, errFrame):
		return s.fail(grpcCodeInternal)
	case err != nil && s.isOverfull():
		return s.fail(grpcCodeResourceExhausted)
	case err != nil:
		return func() { s.events.Fail(UpstreamDisconnected, "", true) }
	}
	return s.finish(HeadersOf(resp.Trailer))
}

var errFrame = errors.New("bad frame")

// receive passes on messages until the body ends.
func (s *grpcClientStream) receive(body io.Reader) error {
	var frame [5]byte
	for {
		if _, err := io.ReadFull(body, frame[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(frame[1:])
		if frame[0] != 0 || uint64(size) > s.maxMessage {
			return errFrame
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(body, message); err != nil {
			return err
		}
		s.events.Message(message)
	}
}

// finish ends the stream as its trailers say.
func (s *grpcClientStream) finish(trailers Headers) func() {
	status, err := strconv.Atoi(trailers.Get("grpc-status"))
	if err != nil || status < 0 {
		status = grpcCodeUnknown
	}
	s.events.Trailers(trailers)
	return func() { s.events.Close(status, StreamText(trailers.Get("grpc-message"), "via_upstream")) }
}

// fail ends a stream whose server broke the rules.
func (s *grpcClientStream) fail(status int) func() {
	s.events.Trailers(nil)
	return func() { s.events.Close(status, "via_upstream") }
}

func (s *grpcClientStream) isOverfull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overfull
}

// grpcCodeOfHTTP is the gRPC specification's status for the HTTP status of an answer that has none.
func grpcCodeOfHTTP(code int) int {
	switch code {
	case 400:
		return grpcCodeInternal
	case 401:
		return 16 // unauthenticated
	case 403:
		return 7 // permission denied
	case 404:
		return 12 // unimplemented
	case 429, 502, 503, 504:
		return grpcCodeUnavailable
	}
	return grpcCodeUnknown
}
