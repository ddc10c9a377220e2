package httpd

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// StreamHandler serves a gRPC stream: it takes the messages that Stream.Next returns, and answers with Stream.Send. It
// returns after Next has returned nil, and may leave work to Stream.Go.
type StreamHandler func(*Stream)

// Stream is one gRPC call of both directions on a connection of HTTP/2. Next is for one goroutine, all else is safe for
// concurrent use.
type Stream struct {
	server  *Server
	request *Request
	roles   Role
	metrics *routeMetrics
	refusal *Response // of the guard
	hw      http.ResponseWriter
	body    interface{ Read([]byte) (int, error) }
	control *http.ResponseController

	ctx    context.Context // ends with the connection's part of the stream, or when the server is stopped by force
	cancel context.CancelFunc
	work   sync.WaitGroup

	in       inbox
	kept     atomic.Int64 // memory of messages that are not freed
	readFrom atomic.Int64 // when the read began for which a part of a message waits, in Unix nanoseconds; 0: there is none

	seal      func([]byte) []byte
	out       outbox
	writeFrom atomic.Int64 // when the write began that is under way; 0: none is

	mu     sync.Mutex
	end    *StreamEnd
	ending chan struct{} // closed when end is set
}

// Observe records how long a group of messages took. It counts for the route as the time of a request does.
func (st *Stream) Observe(d time.Duration) { st.metrics.seconds.Observe(d.Seconds()) }

// StreamEnd is how a stream ends.
type StreamEnd struct {
	Code    StreamCode
	Message string
}

// StreamCode is a status of gRPC.
type StreamCode int

// The statuses with which the server ends a stream.
const (
	StreamOK                 StreamCode = 0
	StreamCancelled          StreamCode = 1
	StreamInvalidArgument    StreamCode = 3
	StreamPermissionDenied   StreamCode = 7
	StreamResourceExhausted  StreamCode = 8
	StreamFailedPrecondition StreamCode = 9
	StreamUnimplemented      StreamCode = 12
	StreamInternal           StreamCode = 13
	StreamUnavailable        StreamCode = 14
	StreamUnauthenticated    StreamCode = 16
)

var streamCodes = map[StreamCode]string{
	StreamOK: "ok", StreamCancelled: "cancelled", StreamInvalidArgument: "invalid_argument", StreamPermissionDenied: "permission_denied",
	StreamResourceExhausted: "resource_exhausted", StreamFailedPrecondition: "failed_precondition", StreamUnimplemented: "unimplemented",
	StreamInternal: "internal", StreamUnavailable: "unavailable", StreamUnauthenticated: "unauthenticated",
}

// streams are those that are open.
type streams struct {
	max      int64
	open     atomic.Int64
	unsent   atomic.Int64 // bytes of replies
	stopping chan struct{}
	once     sync.Once
}

const stopping = "the manager stops"

func (s *streams) stop() { s.once.Do(func() { close(s.stopping) }) }

func (s *streams) stopped() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// unserving returns why all calls would be refused, "" if the manager serves. Such a manager has no streams: a proxy chooses another
// manager only when a stream begins.
func (s *Server) unserving() string {
	if why := s.load.refuse.Load(); why != nil {
		return *why
	}
	if s.opts.Unready != nil {
		return s.opts.Unready()
	}
	return ""
}

// Values of headers of streams, made once.
var (
	contentTypeGRPC = []string{"application/grpc"}
	trailerStatus   = http.TrailerPrefix + "Grpc-Status"
	trailerMessage  = http.TrailerPrefix + "Grpc-Message"
)

// streamOnly answers a request for a stream that is none.
func streamOnly(*Request, *Response) error {
	return unsupported("this call is a stream of gRPC: it needs HTTP/2, POST and the content-type application/grpc")
}

// asksForStream reports whether a request is one of gRPC.
func asksForStream(hr *http.Request) bool {
	ct := hr.Header.Get("content-type")
	return hr.ProtoMajor > 1 && (ct == "application/grpc" || strings.HasPrefix(ct, "application/grpc+") || strings.HasPrefix(ct, "application/grpc;"))
}

// serveStream runs a stream through the steps of a request, and then serves it.
func (s *Server) serveStream(hw http.ResponseWriter, hr *http.Request, x *exchange, e *endpoint) {
	start, r, w := time.Now(), &x.req, &x.resp
	r.server = s
	s.startSpan(e, r)
	st := s.openStream(e, r, w)
	r.endSpan(max(w.Status, 200)) // a stream may last for days; the spans of its calls are linked to this one
	if st == nil {
		e.metrics.observe(w.Status, time.Since(start), r.span)
		_, _ = s.write(hw, hr, w, nil) // the client has left, or is too slow
		return
	}
	defer s.streams.open.Add(-1)
	defer func() { s.bodies.give(st.out.paid, false) }()
	st.hw, st.body, st.control = hw, hr.Body, http.NewResponseController(hw)
	st.ctx, st.cancel = r.watch()
	defer st.cancel()
	h := hw.Header()
	h[headerManagerCanonical] = s.version
	h["Content-Type"] = contentTypeGRPC
	for _, f := range w.Headers() {
		h.Add(f.Name, f.Value)
	}
	// The time for a request is not that of a stream.
	_, _ = st.control.SetReadDeadline(time.Time{}), st.control.SetWriteDeadline(time.Time{}) // HTTP/2 has both
	hw.WriteHeader(200)
	if st.control.Flush() != nil {
		s.metrics.streamEnds.WithLabelValues(streamCodes[StreamCancelled]).Inc()
		return
	}
	end := st.serve(e.Stream)
	s.metrics.streamEnds.WithLabelValues(streamCodes[end.Code]).Inc()
	h[trailerStatus] = []string{fmt.Sprint(int(end.Code))}
	if end.Message != "" {
		h[trailerMessage] = []string{percent(end.Message)}
	}
}

// openStream decides whether a stream may begin. If not, it answers and returns nil.
func (s *Server) openStream(e *endpoint, r *Request, w *Response) *Stream {
	if !s.load.enter() {
		s.metrics.shed.Inc()
		w.Problem(s.load.problem())
		return nil
	}
	defer s.load.leave()
	if s.authorize(e, r, w) != nil {
		return nil
	}
	why := s.unserving()
	if s.streams.stopped() {
		why = stopping
	}
	if why != "" {
		w.Problem(&api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: RetrySoon, Detail: why + "; nothing was changed",
		})
		return nil
	}
	if s.streams.open.Add(1) > s.streams.max || !s.bodies.take(freeUnsent, false, false) {
		s.streams.open.Add(-1)
		s.metrics.shed.Inc()
		w.Problem(noRoom())
		return nil
	}
	st := &Stream{server: s, request: r, roles: e.Roles, metrics: e.metrics, ending: make(chan struct{})}
	st.out.init()
	r.ctx = r.traced(s.deadlines.context(time.Now()))
	if s.opts.Guard != nil && s.opts.Guard(r, w) {
		st.refusal = &Response{Status: w.Status, RetryAfter: w.RetryAfter, Body: append([]byte(nil), w.Body...)}
	}
	if s.opts.Answered != nil {
		s.opts.Answered(w)
	}
	return st
}

// serve runs the handler and what belongs to the stream, and returns how the stream ended.
func (st *Stream) serve(handle StreamHandler) StreamEnd {
	var helpers sync.WaitGroup
	over := make(chan struct{})
	helpers.Go(func() { st.watch(over) })
	written := make(chan struct{})
	helpers.Go(func() {
		defer close(written)
		st.write()
	})
	func() {
		defer st.caught()
		handle(st)
	}()
	st.Fail(StreamInternal, "") // unless it has another end
	st.work.Wait()
	st.in.free(st)
	st.out.finish()
	<-written
	close(over)
	helpers.Wait()
	return *st.end
}

// Go runs a part of the stream's work, which the stream's end waits for.
func (st *Stream) Go(f func()) {
	st.work.Go(func() {
		defer st.caught()
		f()
	})
}

// caught ends the stream after a panic.
func (st *Stream) caught() {
	if p := recover(); p != nil {
		st.server.log.Error("handler of a stream panicked", "path", st.request.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		st.Fail(StreamInternal, "internal error")
	}
}

// Fail ends the stream: Next returns nil, what is at work may be finished and answered, then the client gets this status. Only the
// first call counts.
func (st *Stream) Fail(code StreamCode, message string) {
	st.mu.Lock()
	if st.end != nil {
		st.mu.Unlock()
		return
	}
	st.end = &StreamEnd{code, message}
	close(st.ending)
	st.mu.Unlock()
	_ = st.control.SetReadDeadline(time.Unix(1, 0)) // ends a read that is under way
}

// left says that the client takes no more replies.
func (st *Stream) left() {
	st.Fail(StreamCancelled, "")
	st.cancel()
	st.out.drop(st)
}

// Failed reports whether the stream ends for another reason than that the client has sent all. Calls that wait must then be answered.
func (st *Stream) Failed() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.end != nil && st.end.Code != StreamOK
}

// Ending is closed when the stream takes no more messages. Calls that wait must then be answered.
func (st *Stream) Ending() <-chan struct{} { return st.ending }

// Request is the one that opened the stream. It has the client's headers and address.
func (st *Stream) Request() *Request { return st.request }

// Refusal returns the guard's answer to all calls of the stream, nil if it has none. The stream must end with it.
func (st *Stream) Refusal() *Response { return st.refusal }

// Context bounds work that begins now. It does not end when the client leaves.
func (st *Stream) Context() context.Context {
	return st.request.traced(st.server.deadlines.context(time.Now()))
}

// Enter says that calls are at work, and leave must be called after them. Or it returns the problem that answers them. If both are nil,
// the stream ends and the calls get no answer, so that the client makes them at another manager.
func (st *Stream) Enter() (leave func(), p *api.Problem) {
	if why := st.server.unserving(); why != "" {
		st.Fail(StreamUnavailable, why)
		return nil, nil
	}
	if !st.server.load.enter() {
		st.server.metrics.shed.Inc()
		return nil, st.server.load.problem()
	}
	return st.server.load.leave, nil
}

// Hold says that a call which is at work begins to wait. stop must be called when the wait is over.
func (st *Stream) Hold() (stop func()) {
	st.server.load.hold()
	return st.server.load.unhold
}

// Open returns a context that ends when the client leaves or the server is stopped by force.
func (st *Stream) Open() context.Context { return st.ctx }

// watchEvery is how often a stream is looked at, if no time-out is too short for that.
const watchEvery = time.Second

// watch ends a stream whose credentials are no longer good, whose client stops in the middle of a message or takes no
// replies, and all streams when the server stops or serves no calls.
func (st *Stream) watch(over <-chan struct{}) {
	o := &st.server.opts
	tick := time.NewTicker(max(min(watchEvery, o.ReadTimeout/4, o.WriteTimeout/4), time.Millisecond))
	defer tick.Stop()
	stops, gone := st.server.streams.stopping, st.ctx.Done()
	for {
		select {
		case <-over:
			return
		case <-gone:
			gone = nil
			st.left()
		case <-stops:
			stops = nil
			st.Fail(StreamUnavailable, stopping)
		case now := <-tick.C:
			if since := st.writeFrom.Load(); since != 0 && now.UnixNano()-since > int64(o.WriteTimeout) {
				st.Fail(StreamCancelled, "")
				_ = st.control.SetWriteDeadline(time.Unix(1, 0)) // resets the stream
				st.left()
			}
			if since := st.readFrom.Load(); since != 0 && now.UnixNano()-since > int64(o.ReadTimeout) {
				st.Fail(StreamInvalidArgument, "the rest of a message did not arrive in time")
			}
			if why := st.server.unserving(); why != "" {
				st.Fail(StreamUnavailable, why)
			}
			if code, p := st.server.recheck(st.request, st.roles); p != nil {
				st.Fail(code, p.Detail)
			}
		}
	}
}

// recheck finds out whether the credentials of a stream still allow it.
func (s *Server) recheck(r *Request, roles Role) (StreamCode, *api.Problem) {
	c, p := s.opts.Auth.check(r)
	if p != nil {
		s.metrics.unauthorized.Inc()
		return StreamUnauthenticated, p
	}
	if !c.may(roles) {
		s.metrics.forbidden.Inc()
		return StreamPermissionDenied, forbidden(roles)
	}
	return StreamOK, nil
}

// percent encodes a message for the trailer grpc-message.
func percent(message string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(message) {
		if c := message[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
