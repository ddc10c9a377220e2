package hostsim

import (
	"context"
	"errors"
)

// AnyWorker lets NewStream choose the worker (round robin).
const AnyWorker = -1

// Errors of Stream and NewStream.
var (
	// ErrClosed: the host is closing or closed.
	ErrClosed = errors.New("hostsim: host is closed")
	// ErrTooManyStreams: the chosen worker already runs Config.MaxStreams streams.
	ErrTooManyStreams = errors.New("hostsim: too many streams on this worker")
	// ErrStreamOver: the stream has ended; nothing more will be taken or sent.
	ErrStreamOver = errors.New("hostsim: stream is over")
)

// Sink receives one direction of a stream's output: the upstream sink gets the
// request as it leaves the filter, the downstream sink gets the response.
//
// All methods are called on the worker's event loop, in order, and must not
// block; calling the stream's input methods from inside is fine (they only
// post). A sink owns the slices it is given and may keep them.
//
// A message is Headers, then any number of Data, then at most one Trailers; the
// last of these carries the end of the message (endStream, or Trailers
// itself). Nothing follows the end, and nothing follows Reset.
type Sink interface {
	// Headers starts the message. On the upstream sink this is the moment the
	// router opens the upstream request.
	Headers(h Headers, endStream bool)
	// Data is a piece of body; it may be empty when endStream is set.
	Data(b []byte, endStream bool)
	// Trailers ends the message.
	Trailers(h Headers)
	// Reset ends the message abnormally. Upstream: cancel the request, its answer is
	// no longer wanted (also when the request was already sent whole). Downstream:
	// close the client's connection without finishing the response.
	Reset(reason ResetReason)
}

// ResetReason says why a sink's message was cut.
type ResetReason string

// Reset reasons.
const (
	ResetClientGone     ResetReason = "client_disconnect"     // to upstream: the client left
	ResetLocalReply     ResetReason = "local_reply"           // to upstream: the filter or the host answered instead
	ResetUpstream       ResetReason = "upstream_reset"        // to downstream: upstream broke off after response headers
	ResetTooLarge       ResetReason = "response_too_large"    // to downstream: response buffer over its limit, headers already sent
	ResetIdle           ResetReason = "stream_idle_timeout"   // either side: nothing moved for Config.StreamIdleTimeout
	ResetByFilter       ResetReason = "closed_by_filter"      // either side: the filter called proxy_close_stream
	ResetHostClosed     ResetReason = "host_closed"           // either side: Host.Close
	ResetOverrun        ResetReason = "stream_backlog_exceed" // either side: the owner fed far more than the windows allow
	ResetResponseFirst  ResetReason = "response_complete"     // to upstream: response ended before the request did
	ResetProtocolMisuse ResetReason = "protocol_misuse"       // either side: events in an order no codec would produce
)

// StreamOptions describe a new stream.
type StreamOptions struct {
	// Worker pins the stream to a worker (0..Workers-1). AnyWorker (-1) takes the
	// next one in turn.
	Worker int
	// Downstream gets the response; Upstream gets the request. Both are required.
	Downstream, Upstream Sink
	// Connection describes the client's connection to the property interface.
	Connection ConnectionInfo
	// RouteName and ClusterName answer the properties xds.route_name and
	// xds.cluster_name.
	RouteName, ClusterName string
	// Properties are further properties by path, its segments joined by "."
	// ("xds.listener_direction"), in their serialized form.
	Properties map[string][]byte
}

// ConnectionInfo describes a downstream connection.
type ConnectionInfo struct {
	// ID is connection.id; 0 takes the host's next number.
	ID uint64
	// SourceAddress and DestinationAddress are "ip:port"; empty when unknown.
	SourceAddress, DestinationAddress string
	// Protocol is request.protocol, "HTTP/1.1" when empty.
	Protocol string
	// TLS tells that the connection is encrypted (connection.mtls stays false) and
	// makes https the default :scheme.
	TLS bool
}

// UpstreamFailure is a way in which the router gets no (whole) answer.
type UpstreamFailure int

// Upstream failures. Before response headers the host answers as Envoy's router
// does (status and body text in parentheses) and that answer travels back
// through the filter; after them the downstream message is reset.
const (
	UpstreamConnectFailed UpstreamFailure = iota + 1 // connection refused or timed out: 503, flag UF
	UpstreamDisconnected                             // connection closed or stream reset: 503, flag UC
	UpstreamTimedOut                                 // no answer in time: 504 "upstream request timeout", flag UT
	UpstreamNoHealthy                                // no usable host: 503 "no healthy upstream", flag UH
	UpstreamOverflow                                 // circuit breaker: 503, flag UO
	UpstreamNoRoute                                  // no route for the request: 404 without body, flag NR
)

// Stream is one HTTP exchange on its way through the filter, played on one
// worker. Its owner (a gateway's codec, a test) feeds what client and upstream
// send and gets what the filter lets through on the two sinks.
//
// All input methods may be called from any goroutine, never block and are
// executed in the order of the calls on the worker's event loop. What arrives
// after the stream's end is dropped. Feeders keep memory bounded by calling
// AwaitRequest or AwaitResponse before each piece of body; one that posts a
// backlog far beyond the windows has its stream reset (ResetOverrun).
type Stream struct {
	done chan struct{}
}

// NewStream starts a stream on a worker. The first event must be RequestHeaders;
// a stream that never gets one is ended by ClientReset. Errors: ErrClosed,
// ErrTooManyStreams, or one that names a bad option.
func (h *Host) NewStream(opts StreamOptions) (*Stream, error) { return nil, ErrClosed }

// RequestHeaders feeds the client's request headers. Names are lower-cased; the
// headers must hold :method, :path and :authority. The stream owns hd afterwards.
func (s *Stream) RequestHeaders(hd Headers, endStream bool) {}

// RequestData feeds a piece of request body, which the stream owns afterwards.
func (s *Stream) RequestData(b []byte, endStream bool) {}

// RequestTrailers feeds the request's trailers and ends the request.
func (s *Stream) RequestTrailers(hd Headers) {}

// ClientReset tells that the client is gone.
func (s *Stream) ClientReset() {}

// UpstreamSelected tells the address ("ip:port") that the request goes to; it
// answers the property upstream.address.
func (s *Stream) UpstreamSelected(address string) {}

// ResponseHeaders feeds upstream's response headers, which must hold :status. The
// stream owns hd afterwards.
func (s *Stream) ResponseHeaders(hd Headers, endStream bool) {}

// ResponseData feeds a piece of response body, which the stream owns afterwards.
func (s *Stream) ResponseData(b []byte, endStream bool) {}

// ResponseTrailers feeds the response's trailers and ends the response.
func (s *Stream) ResponseTrailers(hd Headers) {}

// UpstreamFailed tells that no (whole) response will come. detail is appended to
// the answer's text as Envoy appends a transport failure reason; it may be empty.
func (s *Stream) UpstreamFailed(f UpstreamFailure, detail string) {}

// AwaitRequest waits until the stream may be fed more request body: until the bytes
// it was given and has neither sent on nor (in buffering mode, where the limit
// ends the request instead of slowing it) collected are below Config.BufferLimit.
// It returns ErrStreamOver when the stream has ended, or ctx's error.
func (s *Stream) AwaitRequest(ctx context.Context) error { return ErrStreamOver }

// AwaitResponse is AwaitRequest for the response body.
func (s *Stream) AwaitResponse(ctx context.Context) error { return ErrStreamOver }

// Done is closed when the stream is over on both sides and the filter has seen
// its log, done and delete callbacks.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Worker is the number of the worker that plays the stream.
func (s *Stream) Worker() int { return 0 }
