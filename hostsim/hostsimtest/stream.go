package hostsimtest

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// Stream is a stream that a test feeds step by step, with its output.
type Stream struct {
	*hostsim.Stream
	// Up is what upstream received, Down what the client received.
	Up, Down *Sink
	tb       testing.TB
	host     *hostsim.Host
}

// Open starts a stream on a worker (hostsim.AnyWorker: the next one).
func Open(tb testing.TB, h *hostsim.Host, worker int) *Stream {
	tb.Helper()
	return OpenWith(tb, h, hostsim.StreamOptions{Worker: worker})
}

// OpenWith starts a stream with options; its sinks are set here.
func OpenWith(tb testing.TB, h *hostsim.Host, opts hostsim.StreamOptions) *Stream {
	tb.Helper()
	s := &Stream{Up: newSink(), Down: newSink(), tb: tb, host: h}
	opts.Upstream, opts.Downstream = s.Up, s.Down
	var err error
	if s.Stream, err = h.NewStream(opts); err != nil {
		tb.Fatalf("NewStream: %v", err)
	}
	s.Down.early = func() bool { return !s.RequestComplete() }
	return s
}

// Settle waits until the host has handled everything that was fed.
func (s *Stream) Settle() {
	s.tb.Helper()
	Settle(s.tb, s.host)
}

// Request feeds a whole request like an HTTP/1 codec: headers, the pieces of body, and a last, empty piece. Without
// pieces the headers end the request.
func (s *Stream) Request(h hostsim.Headers, pieces ...string) {
	s.RequestHeaders(h, len(pieces) == 0)
	feed(s.RequestData, pieces)
}

// Respond feeds a whole response in the same way.
func (s *Stream) Respond(status int, pieces ...string) {
	s.ResponseHeaders(hostsim.H(":status", strconv.Itoa(status)), len(pieces) == 0)
	feed(s.ResponseData, pieces)
}

func feed(data func(b []byte, end bool), pieces []string) {
	for _, p := range pieces {
		data([]byte(p), false)
	}
	if len(pieces) > 0 {
		data(nil, true)
	}
}

// Over settles the host and reports whether the stream has ended.
func (s *Stream) Over() bool {
	s.tb.Helper()
	s.Settle()
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// AwaitDown waits until the client's message satisfies cond. It is for streams that wait for something outside the
// host.
func (s *Stream) AwaitDown(cond func(Message) bool) Message {
	s.tb.Helper()
	return s.await(s.Down, cond, "downstream")
}

// AwaitUp waits until upstream's message satisfies cond.
func (s *Stream) AwaitUp(cond func(Message) bool) Message {
	s.tb.Helper()
	return s.await(s.Up, cond, "upstream")
}

func (s *Stream) await(sink *Sink, cond func(Message) bool, side string) Message {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	m, err := sink.Await(ctx, cond)
	if err != nil {
		s.tb.Fatalf("%s never got what was awaited; it has %s", side, sink.Log())
	}
	return m
}

// Ended is a condition for AwaitDown and AwaitUp.
func Ended(m Message) bool { return m.Ended || m.Reset != "" }

// Get makes request headers.
func Get(path string, nameValues ...string) hostsim.Headers {
	return request("GET", path, nameValues)
}

// Post makes request headers.
func Post(path string, nameValues ...string) hostsim.Headers {
	return request("POST", path, nameValues)
}

func request(method, path string, nameValues []string) hostsim.Headers {
	return append(hostsim.H(":method", method, ":path", path, ":authority", "example.test"), hostsim.H(nameValues...)...)
}

// RequestWindowOpen reports whether AwaitRequest would return immediately.
func (s *Stream) RequestWindowOpen() bool { return s.AwaitRequest(new(glance)) != errShut }

// ResponseWindowOpen reports whether AwaitResponse would return immediately.
func (s *Stream) ResponseWindowOpen() bool { return s.AwaitResponse(new(glance)) != errShut }

var errShut = errors.New("the window is shut")

// glance is a context that ends as soon as its end is waited for.
type glance struct{ waited bool }

func (g *glance) Done() <-chan struct{} {
	g.waited = true
	c := make(chan struct{})
	close(c)
	return c
}

func (g *glance) Err() error {
	if g.waited {
		return errShut
	}
	return nil
}

func (*glance) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*glance) Value(any) any               { return nil }
