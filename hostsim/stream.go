package hostsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// AnyWorker lets NewStream choose the worker (round robin).
const AnyWorker = -1

// Errors of Stream and NewStream.
var (
	// ErrClosed: the host is closing or closed.
	ErrClosed = errors.New("hostsim: host is closed")
	// ErrTooManyStreams: the chosen worker already runs Config.MaxStreams streams.
	ErrTooManyStreams = errors.New("hostsim: too many streams on this worker")
	// ErrStreamOver: the stream has ended, and accepts and sends nothing more.
	ErrStreamOver = errors.New("hostsim: stream is over")
)

// Sink receives one direction of a stream's output: the upstream sink gets the request after the filter, the downstream
// sink gets the response.
//
// All methods are called on the worker's event loop, in order, and must not block. They may call the stream's input
// methods, which only post. A sink may keep its arguments: body slices belong to it, header maps must not be written
// to.
//
// A message is Headers, then any number of Data, then at most one Trailers. The last of these ends the message
// (endStream, or Trailers itself). Nothing follows Reset, and nothing follows the end, except that the upstream sink
// gets a Reset when the answer is no longer needed.
type Sink interface {
	// Headers starts the message. On the upstream sink this is the moment the
	// router opens the upstream request.
	Headers(h Headers, endStream bool)
	// Data is a piece of body; it may be empty when endStream is set.
	Data(b []byte, endStream bool)
	// Trailers ends the message.
	Trailers(h Headers)
	// Reset ends the message abnormally. Upstream: cancel the request, because its answer is no longer needed (this may
	// happen after the whole request was sent). Downstream: close the client's connection without finishing the
	// response.
	Reset(reason ResetReason)
}

// ResetReason says why a sink's message was cut.
type ResetReason string

// Reset reasons.
const (
	ResetClientGone     ResetReason = "client_disconnect"     // to upstream: the client left
	ResetLocalReply     ResetReason = "local_reply"           // to upstream: the filter or the host answered instead
	ResetUpstream       ResetReason = "upstream_reset"        // to downstream: upstream broke off after response headers
	ResetTooLarge       ResetReason = "response_too_large"    // either side: a collected response is over its limit, headers already sent
	ResetIdle           ResetReason = "stream_idle_timeout"   // either side: nothing moved for Config.StreamIdleTimeout
	ResetByFilter       ResetReason = "closed_by_filter"      // either side: the filter called proxy_close_stream
	ResetHostClosed     ResetReason = "host_closed"           // either side: Host.Close
	ResetOverrun        ResetReason = "stream_backlog_exceed" // either side: the owner fed far more than the windows allow
	ResetResponseFirst  ResetReason = "response_complete"     // to upstream: the response ended before the request did
	ResetProtocolMisuse ResetReason = "protocol_misuse"       // either side: events in an order that no codec produces
)

// StreamOptions describe a new stream.
type StreamOptions struct {
	// Worker pins the stream to a worker (0..Workers-1). AnyWorker (-1) means the next one in turn.
	Worker int
	// Downstream gets the response; Upstream gets the request. Both are required.
	Downstream, Upstream Sink
	// Connection describes the client's connection to the property interface.
	Connection ConnectionInfo
	// Route finds the request's route for the properties xds.route_name and xds.cluster_name. It is called when they
	// are read first, and again after the filter changed request headers, which clears Envoy's cached route. Nil: no
	// route is known. It runs on the worker's loop.
	Route func(Headers) Route
	// Properties are further properties by path, in their serialized form. The segments of a path are joined by "."
	// ("xds.listener_direction").
	Properties map[string][]byte
}

// Route is what a request was matched to.
type Route struct{ Name, Cluster string }

// ConnectionInfo describes a downstream connection.
type ConnectionInfo struct {
	// ID is connection.id; 0 takes the process' next number.
	ID uint64
	// SourceAddress and DestinationAddress are "ip:port"; empty when unknown.
	SourceAddress, DestinationAddress string
	// Protocol is request.protocol, "HTTP/1.1" when empty.
	Protocol string
	// TLS tells that the connection is encrypted; it makes https the default :scheme.
	TLS bool
}

// UpstreamFailure is the reason that the router got no (complete) answer.
type UpstreamFailure int

// Upstream failures. Before response headers the host answers like Envoy's router (status and body text in
// parentheses), and that answer travels back through the filter. While the filter holds a response's headers, the
// answer goes directly to the client. Later the downstream message is reset.
const (
	UpstreamConnectFailed UpstreamFailure = iota + 1 // connection refused or timed out: 503, flag UF
	UpstreamDisconnected                             // connection closed or stream reset: 503, flag UC
	UpstreamTimedOut                                 // no answer in time: 504 "upstream request timeout", flag UT
	UpstreamNoHealthy                                // no usable host: 503 "no healthy upstream", flag UH
	UpstreamOverflow                                 // circuit breaker: 503, flag UO
	UpstreamNoRoute                                  // no route for the request: 404 without body, flag NR
	UpstreamProtocolError                            // not HTTP, or the connection's orderly end within a message: 502, flag UPE
)

// Stream is one HTTP exchange through the filter, on one worker. Its owner (a gateway's codec, a test) feeds what
// client and upstream send, and gets what the filter lets through on the two sinks.
//
// All input methods may be called from any goroutine, never block, and are executed in the order of the calls on the
// worker's event loop. Input after the stream's end is dropped. Feeders keep memory bounded by calling AwaitRequest or
// AwaitResponse before each piece of body. A feeder that posts far more than the windows allow has its stream reset
// (ResetOverrun).
type Stream struct {
	host *Host
	t    *thread
	opts StreamOptions
	done chan struct{}

	// The worker's loop owns the fields below.
	vm   *vm        // nil: the stream passes without the filter
	ctx  *vmContext // nil while the filter does not know the stream
	req  half
	resp half
	info streamInfo
	grpc bool // the request came with gRPC's content type, whatever the filter made of it

	endFlag    bool // the end flag of the latest callback, of either half
	inDecoding bool // a request callback runs
	prepared   *localReply
	failSent   bool // the answer for a dead VM is being sent
	// bypassResponse: the reply in the response half does not pass the (dead) filter.
	bypassResponse bool
	upstreamOpen   bool // request headers were sent
	upstreamCut    bool // the upstream sink was reset
	logging        bool // on_log is running
	over           bool

	// The worker's list of streams, least recently active first.
	prev, next *Stream
	active     time.Time
}

// NewStream starts a stream on a worker. The first event must be RequestHeaders; ClientReset ends a stream that never
// gets one. Errors: ErrClosed, ErrTooManyStreams, or an error that names a bad option.
func (h *Host) NewStream(opts StreamOptions) (*Stream, error) {
	if opts.Downstream == nil || opts.Upstream == nil {
		return nil, errors.New("hostsim: StreamOptions: Downstream and Upstream are required")
	}
	if opts.Worker < AnyWorker || opts.Worker >= len(h.workers) {
		return nil, fmt.Errorf("hostsim: StreamOptions.Worker is %d, allowed are -1 to %d", opts.Worker, len(h.workers)-1)
	}
	t := h.pick(opts.Worker)
	if err := t.admit(); err != nil {
		return nil, err
	}
	if opts.Connection.ID == 0 {
		opts.Connection.ID = h.process.nextConnection()
	}
	opts.Connection.Protocol = cmp.Or(opts.Connection.Protocol, "HTTP/1.1")
	s := &Stream{host: h, t: t, opts: opts, done: make(chan struct{})}
	s.req.s, s.resp.s, s.resp.response = s, s, true
	s.req.window.limit, s.resp.window.limit = h.cfg.BufferLimit, h.cfg.BufferLimit
	s.req.streaming, s.resp.streaming = true, true
	s.info.start = h.cfg.Clock.Now()
	t.loop.post(event{kind: evFunc, f: func() { t.add(s) }})
	return s, nil
}

// RequestHeaders feeds the client's request headers. Names are converted to lower case. Without :method, :path or
// :authority the answer is 400, and the filter sees nothing. The stream owns hd afterwards.
func (s *Stream) RequestHeaders(hd Headers, endStream bool) {
	s.post(event{kind: evRequestHeaders, headers: hd, eos: endStream})
}

// RequestData feeds a piece of request body, which the stream owns afterwards.
// HTTP/1 codecs signal the end of a body with a last piece that is empty.
func (s *Stream) RequestData(b []byte, endStream bool) {
	s.postData(&s.req, event{kind: evRequestData, data: b, eos: endStream})
}

// RequestTrailers feeds the request's trailers and ends the request.
func (s *Stream) RequestTrailers(hd Headers) {
	s.post(event{kind: evRequestTrailers, headers: hd})
}

// Request feeds a whole request with a body, like an HTTP/1 codec that finds all of it in one packet: nothing else
// happens on the worker between the headers and the end. The stream owns hd and body afterwards.
func (s *Stream) Request(hd Headers, body []byte) {
	if s.req.window.queue(len(body)) != queued || s.req.window.queue(0) != queued {
		s.post(event{kind: evOverrun})
		return
	}
	lowerNames(hd)
	s.t.loop.post(event{kind: evRequestHeaders, stream: s, headers: hd},
		event{kind: evRequestData, stream: s, data: body}, event{kind: evRequestData, stream: s, eos: true})
}

// ClientReset reports that the client disconnected.
func (s *Stream) ClientReset() { s.post(event{kind: evClientReset}) }

// UpstreamSelected reports the address ("ip:port") that the request is sent to, for the property upstream.address. A
// router that tries again calls it again: the number of calls is the property upstream.request_attempt_count.
func (s *Stream) UpstreamSelected(address string) {
	s.post(event{kind: evUpstreamSelected, text: address})
}

// ResponseHeaders feeds upstream's response headers, which must contain :status. The stream owns hd afterwards.
// Informational (1xx) responses do not pass the filter and must not be fed.
func (s *Stream) ResponseHeaders(hd Headers, endStream bool) {
	s.post(event{kind: evResponseHeaders, headers: hd, eos: endStream})
}

// ResponseData feeds a piece of response body, which the stream owns afterwards.
func (s *Stream) ResponseData(b []byte, endStream bool) {
	s.postData(&s.resp, event{kind: evResponseData, data: b, eos: endStream})
}

// ResponseTrailers feeds the response's trailers and ends the response.
func (s *Stream) ResponseTrailers(hd Headers) {
	s.post(event{kind: evResponseTrailers, headers: hd})
}

// UpstreamFailed reports that no (complete) response will come. detail is appended to the answer's text, as Envoy does
// with a transport failure reason; it may be empty.
func (s *Stream) UpstreamFailed(f UpstreamFailure, detail string) {
	s.post(event{kind: evUpstreamFailed, failure: f, text: detail})
}

// BeginsAgain ends the stream because Envoy sends the request through a new filter chain. Either the router follows an
// upstream's redirect itself (internal_redirect_policy), and response has upstream's headers, which on_log still sees.
// Or a filter asked for it, and response is nil. The filter gets no response callback, and the client gets nothing: the
// owner starts another stream with the same Downstream sink. A request can begin again only if it has arrived completely
// and its response has not begun. The stream owns response afterwards.
func (s *Stream) BeginsAgain(response Headers) {
	s.post(event{kind: evBeganAnew, headers: response})
}

// AwaitRequest waits until the stream may be fed more request body: until the bytes that were fed but not handled are
// not above Config.BufferLimit, and neither are the bytes that the filter makes the stream hold. Once the held bytes
// were above the limit, they must fall to half of it. It returns ErrStreamOver when the stream has ended, or ctx's
// error.
func (s *Stream) AwaitRequest(ctx context.Context) error { return s.req.window.await(ctx, s.done) }

// AwaitResponse is AwaitRequest for the response body.
func (s *Stream) AwaitResponse(ctx context.Context) error { return s.resp.window.await(ctx, s.done) }

// Done is closed when the stream is over on both sides and the filter has had its log, done and delete callbacks.
func (s *Stream) Done() <-chan struct{} { return s.done }

// RequestComplete reports whether the request's end has arrived. Only the sinks' methods may call it. If response
// headers are sent before that, Envoy closes an HTTP/1.1 connection after the response, and says so in a header that
// the filter does not see. Over HTTP/2 it resets the stream (RST_STREAM, NO_ERROR) if the whole response is sent before that.
func (s *Stream) RequestComplete() bool { return s.req.ended }

// Worker is the number of the stream's worker.
func (s *Stream) Worker() int { return s.t.index }

func (s *Stream) post(e event) {
	e.stream = s
	lowerNames(e.headers)
	s.t.loop.post(e)
}

func lowerNames(hd Headers) {
	for i := range hd {
		hd[i][0] = strings.ToLower(hd[i][0])
	}
}

func (s *Stream) postData(h *half, e event) {
	e.stream = s
	switch h.window.queue(len(e.data)) {
	case queued:
		s.t.loop.post(e)
	case firstOverrun:
		s.t.loop.post(event{kind: evOverrun, stream: s})
	}
}
