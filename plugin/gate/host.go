package gate

import (
	"time"

	"github.com/oncegate/oncegate/plugin/cache"
)

// Action says what the host must do with the data that a stream callback was called for.
type Action uint8

const (
	// Continue passes the data on. From a body callback it also releases headers that an earlier Pause held.
	Continue Action = iota
	// Pause holds the data: headers until a resume, body in the host's buffer. When the buffer is full, the host stops
	// reading from the sender and fails nothing.
	Pause
	// PauseAll holds headers and everything after them. No body callback follows until the request is resumed, whatever the
	// host's settings say about Pause.
	PauseAll
	// Collect holds body like Pause, but a body beyond the host's limit fails the stream. Later body callbacks report, and
	// hand over, everything that the host holds.
	Collect
	// Drop makes the host forget the piece of body that it showed. The gate has a copy and puts it back in front of a later
	// piece, or does not need it.
	Drop
)

// Level is the severity of a log line.
type Level uint8

// The severities.
const (
	LevelDebug Level = iota
	LevelInfo
	LevelWarn
	LevelError
)

// MetricKind is the type of a metric.
type MetricKind uint8

// The types of metrics.
const (
	Counter MetricKind = iota
	Gauge
	Histogram
)

// MetricID names a defined metric. 0 is a metric that could not be defined; the gate never changes it.
type MetricID uint32

// CallStatus reports whether a callout is under way.
type CallStatus uint8

// The statuses of a callout.
const (
	CallSent      CallStatus = iota
	CallRefused              // no healthy host, or a circuit breaker is full
	CallNoCluster            // the host knows no such cluster
)

// Host is what the gate needs of the proxy: Proxy-Wasm calls without their encodings. No method panics, whatever the proxy
// answers.
//
// Select and the methods after it act on the current stream: the one whose callback runs, or the one that Select chose
// since that callback began. What they return is only valid during the running callback, except for bodies.
type Host interface {
	cache.SharedData

	// Now is the wall clock in nanoseconds since 1970.
	Now() int64
	// Random fills b with random bytes. False: the host has none.
	Random(b []byte) bool
	// Env returns the value of a variable in the VM's environment. False: there is no such variable, or the host does not
	// let the gate look.
	Env(name string) (value string, ok bool)
	// Log writes one line.
	Log(level Level, line string)
	// SetTick asks for a tick about every period.
	SetTick(period time.Duration) bool
	// Done lets the host continue the shutdown for which Plugin.Shutdown returned false.
	Done()

	// DefineMetric returns the metric of that name; 0: the host refused.
	DefineMetric(kind MetricKind, name string) MetricID
	// AddMetric changes a counter or gauge by delta, which is not 0.
	AddMetric(id MetricID, delta int64)
	// RecordMetric adds a sample to a histogram or sets a gauge.
	RecordMetric(id MetricID, value uint64)

	// RegisterQueue makes this VM the reader of the queue of that name.
	RegisterQueue(name string) (uint32, bool)
	// Enqueue adds a message; the queue's reader gets a queue callback for it.
	Enqueue(queue uint32, message []byte) bool
	// Dequeue takes the oldest message; false when there is none.
	Dequeue(queue uint32) ([]byte, bool)

	// Call starts an HTTP callout. The gate calls it only while the plugin context is active, so that the answer arrives
	// whatever happens to the stream that it is for. After CallSent the host calls Plugin.OnCallResponse with the id
	// returned here; after any other status no answer comes. headers and body are not retained.
	Call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, CallStatus)
	// CallHeaders returns all headers of the answer that OnCallResponse runs for, with :status. They are empty when the
	// answer broke off after its headers.
	CallHeaders() [][2]string
	// CallTrailers returns the trailers of the answer that OnCallResponse runs for.
	CallTrailers() [][2]string
	// CallBody returns the answer's whole body, empty when there is none.
	CallBody(size int) []byte

	// OpenStream begins a gRPC stream to a manager (api.StreamService, api.StreamMethod) in that cluster. The gate calls
	// it, SendStream and CloseStream only while the plugin context is active or selected. After CallSent the host calls
	// Plugin.OnStreamMessage for each message that comes and, once, Plugin.OnStreamClose, neither before the running
	// callback has ended. After any other status nothing comes. metadata is not retained.
	OpenStream(cluster, authority string, metadata [][2]string) (uint32, CallStatus)
	// SendStream sends a message. It is not retained. False: the host refused.
	SendStream(id uint32, message []byte) bool
	// CloseStream resets the stream. The host may still call Plugin.OnStreamClose, and nothing else, with its id.
	CloseStream(id uint32)
	// StreamMessage returns the message of size bytes that OnStreamMessage runs for. It is valid during that callback;
	// shorter: the host refused.
	StreamMessage(size int) []byte

	// Select makes a stream the current one; 0 is the plugin itself. False: the host does not know the stream any more, and
	// the current one is unchanged.
	Select(stream uint32) bool
	// RequestHeader returns the first value of one request header.
	RequestHeader(name string) (string, bool)
	// RequestHeaders returns all request headers. They are empty when the host cannot hand them over, or when the request
	// was released.
	RequestHeaders() [][2]string
	// SetRequestHeader replaces the values of a request header by one, and RemoveRequestHeader removes it, before the
	// request is released. The host then chooses the route again. False: the host refused.
	SetRequestHeader(name, value string) bool
	RemoveRequestHeader(name string)
	// RequestBody returns the size bytes of body that the body callback reported; fewer: the host refused. The caller owns
	// them.
	RequestBody(size int) []byte
	// PrependRequestBody puts bytes in front of the piece that the body callback is for. False: the host refused.
	PrependRequestBody(b []byte) bool
	// ResponseHeaders returns all response headers. They are empty when the host cannot hand them over. Only
	// OnResponseHeaders may call it.
	ResponseHeaders() [][2]string
	// ResponseHeader returns the first value of one response header.
	ResponseHeader(name string) (string, bool)
	// SetResponseHeaders replaces all response headers, :status included.
	SetResponseHeaders(headers [][2]string)
	// SetResponseHeader replaces the values of a response header by one.
	SetResponseHeader(name, value string)
	// RemoveResponseHeader removes a response header.
	RemoveResponseHeader(name string)
	// ResponseBody is RequestBody for the response.
	ResponseBody(size int) []byte
	// ReplaceResponseBody replaces the piece that the body callback is for.
	ReplaceResponseBody(b []byte)
	// ResponseTrailers returns all response trailers. Only OnResponseTrailers may call it.
	ResponseTrailers() [][2]string
	// SetResponseTrailers gives a response without trailers some. Only the callback for its last piece of body may call it.
	SetResponseTrailers(trailers [][2]string)
	// Property returns a property in its serialized form.
	Property(path ...string) ([]byte, bool)
	// SetProperty sets one of the gate's own properties on the stream, for access logs and other filters. value is not
	// empty.
	SetProperty(name, value string)
	// Reply answers the request locally. details says why, for access logs; it has no spaces. A gRPC request gets
	// grpcStatus, and the body as its message. A stream callback that calls it must then return Pause.
	Reply(status, grpcStatus int, details string, headers [][2]string, body []byte) bool
	// ResumeRequest releases a request that a callback paused.
	ResumeRequest() bool
	// ResumeResponse releases a response that a callback paused.
	ResumeResponse() bool
}

// AppendTarget appends the form in which Proxy-Wasm hosts get the target of a gRPC stream, a serialized
// envoy.config.core.v3.GrpcService: {envoy_grpc: {cluster_name, authority}}.
func AppendTarget(dst []byte, cluster, authority string) []byte {
	return appendText(dst, 1, string(appendText(appendText(nil, 1, cluster), 2, authority)))
}

const methodConnect = "CONNECT"

// Names of headers that the gate looks at.
const (
	headerAuthority     = ":authority"
	headerCacheControl  = "cache-control"
	headerMethod        = ":method"
	headerPath          = ":path"
	headerStatus        = ":status"
	headerConnection    = "connection"
	headerContentLength = "content-length"
	headerContentType   = "content-type"
	headerDate          = "date"
	headerAccept        = "accept"
	headerExpect        = "expect"
	headerRetryAfter    = "retry-after"
	headerTrailer       = "trailer"
	headerUpgrade       = "upgrade"
	// headerLedger marks answers of routes that only the cache protects.
	headerLedger = "idempotency-ledger"
	// headerTrailers marks answers whose trailers are left out, because there was no room for them.
	headerTrailers = "idempotency-trailers"
	// headerAccepted is in recorded answers only. It is the first request's Accept-Encoding, recorded if upstream sent an
	// encoding that it does not accept.
	headerAccepted        = "idempotency-accepted-encoding"
	headerAcceptEncoding  = "accept-encoding"
	headerContentEncoding = "content-encoding"
	// headerBody marks replays without the body that the answer had.
	headerBody     = "idempotency-body"
	headerLink     = "link"
	headerLocation = "location"
)

// omitted is the value of headerTrailers and headerBody.
const omitted = "omitted"

// The values of api.HeaderStatus and propertyStatus. They say what became of a request. For a request that the gate
// refuses, the value is the problem's code.
const (
	statusExecuted = "executed"
	statusReplayed = "replayed"
	statusBypassed = "bypassed"
	statusNotSent  = "not-sent" // it did not reach upstream, and the gate did not answer
	statusReleased = "released" // upstream answered, and its answer freed the key
	statusUnknown  = "unknown"  // upstream may have run it, but gave no answer
	// statusContinued: the client left, and the gate's upstream call continued.
	statusContinued = "continued"
)

// The response code details of the gate's own replies are detailsPrefix and one of these statuses.
const (
	detailsPrefix   = "oncegate_"
	detailsReplayed = detailsPrefix + statusReplayed
)

// Properties that show access logs what became of a request, and the parts of a structured key:
// FILTER_STATE(wasm.oncegate.status:PLAIN) in Envoy. Other filters see only those of the key, because the gate sets the
// status when the stream ends.
const (
	propertyStatus   = "oncegate.status"
	propertyUpstream = "oncegate.upstream" // of the gate's own upstream call: response code details, flags, attempts and host
	propertyClient   = "oncegate.key.client"
	propertySequence = "oncegate.key.sequence"
	propertyNonce    = "oncegate.key.nonce"
)

// metrics are the filter's numbers. All VMs of a process share them by name.
type metrics struct {
	host Host

	hitCommitted, hitRejected, waited, miss, mismatch, conflict, notRecorded, notAcceptable     MetricID
	unknown, invalid, ambiguous, unsupported, bypass, managerError, noBody, fenced              MetricID
	committed, rejected, released, unknownOutcomes, oversize, abandoned, renewed, lost          MetricID
	carried, direct, routed, upstream                                                           MetricID
	call, connects, wait, retries, moved, wrongShard, ledgerChanged, orphaned, waiters, entries MetricID
	bytes, evicted, full, answersDropped, casRetry                                              MetricID
}

func (m *metrics) define(host Host) {
	m.host = host
	for _, d := range [...]struct {
		id   *MetricID
		kind MetricKind
		name string
	}{
		// One of these counts each request that has a key.
		{&m.hitCommitted, Counter, "oncegate_gate_requests_hit_committed_total"},   // replayed without waiting: committed
		{&m.hitRejected, Counter, "oncegate_gate_requests_hit_rejected_total"},     // replayed without waiting: rejected
		{&m.waited, Counter, "oncegate_gate_requests_waited_total"},                // replayed after waiting for the original
		{&m.miss, Counter, "oncegate_gate_requests_miss_total"},                    // forwarded under a reservation
		{&m.mismatch, Counter, "oncegate_gate_requests_mismatch_total"},            // 422
		{&m.conflict, Counter, "oncegate_gate_requests_conflict_total"},            // 409
		{&m.notRecorded, Counter, "oncegate_gate_requests_not_recorded_total"},     // 410
		{&m.notAcceptable, Counter, "oncegate_gate_requests_not_acceptable_total"}, // 406
		{&m.unknown, Counter, "oncegate_gate_requests_outcome_unknown_total"},      // 409: the first request's outcome is unknown
		{&m.invalid, Counter, "oncegate_gate_requests_invalid_total"},              // 400
		{&m.ambiguous, Counter, "oncegate_gate_requests_scope_ambiguous_total"},    // 400: the request lacks what its scope names
		{&m.unsupported, Counter, "oncegate_gate_requests_unsupported_total"},      // 400: CONNECT, an upgrade or gRPC
		{&m.bypass, Counter, "oncegate_gate_requests_bypass_total"},                // forwarded without protection
		{&m.managerError, Counter, "oncegate_gate_requests_manager_error_total"},   // 503
		{&m.noBody, Counter, "oncegate_gate_requests_body_unavailable_total"},      // 500
		{&m.fenced, Counter, "oncegate_gate_requests_fenced_total"},                // the ledger refused the outcome: it knows another one, or another attempt has the key
		// What became of reservations.
		{&m.committed, Counter, "oncegate_gate_outcomes_committed_total"},     // the answer was recorded
		{&m.rejected, Counter, "oncegate_gate_outcomes_rejected_total"},       // the refusal was recorded
		{&m.released, Counter, "oncegate_gate_outcomes_released_total"},       // nothing ran, the key is free again
		{&m.unknownOutcomes, Counter, "oncegate_gate_outcomes_unknown_total"}, // the outcome is unknown
		{&m.oversize, Counter, "oncegate_gate_outcomes_oversize_total"},       // the answer was recorded without its body
		{&m.abandoned, Counter, "oncegate_gate_outcomes_abandoned_total"},     // an outcome that never reached the ledger
		{&m.renewed, Counter, "oncegate_gate_reservations_renewed_total"},     // renewals that the ledger granted
		{&m.lost, Counter, "oncegate_gate_reservations_lost_total"},           // reservations that another attempt took over while upstream worked
		// Upstream calls of the gate's own.
		{&m.carried, Counter, "oncegate_gate_upstream_calls_total"},     // calls made
		{&m.direct, Counter, "oncegate_gate_upstream_direct_total"},     // those of them that went to the cluster of the request's route
		{&m.routed, Counter, "oncegate_gate_upstream_routed_total"},     // calls not made although the route asks for it: the router carried the request
		{&m.upstream, Histogram, "oncegate_gate_upstream_microseconds"}, // duration of the calls, microseconds
		// Calls to managers, waiting duplicates, and the cache.
		{&m.call, Histogram, "oncegate_gate_call_microseconds"},                   // time from a call to its reply, microseconds
		{&m.connects, Counter, "oncegate_gate_connections_total"},                 // connections to managers that were opened
		{&m.wait, Histogram, "oncegate_gate_wait_milliseconds"},                   // how long duplicates waited, milliseconds
		{&m.retries, Counter, "oncegate_gate_call_retries_total"},                 // calls that repeat an earlier one
		{&m.moved, Counter, "oncegate_gate_call_moved_total"},                     // reserves that were sent to the key's new owner next
		{&m.wrongShard, Counter, "oncegate_gate_call_wrong_shard_total"},          // calls that a manager refused because it is another shard, or another one owns the key
		{&m.ledgerChanged, Counter, "oncegate_gate_ledger_changed_total"},         // times that a shard's ledger was another one than before
		{&m.orphaned, Counter, "oncegate_gate_orphans_total"},                     // duplicates that found that the VM that worked on their key is dead
		{&m.waiters, Gauge, "oncegate_gate_waiters"},                              // duplicates that wait now
		{&m.entries, Gauge, "oncegate_gate_cache_entries"},                        // entries in the cache
		{&m.bytes, Gauge, "oncegate_gate_cache_bytes"},                            // bytes of recorded answers in the cache
		{&m.evicted, Counter, "oncegate_gate_cache_evictions_total"},              // entries that made room for others
		{&m.full, Counter, "oncegate_gate_cache_full_total"},                      // keys refused because no entry could make room for them
		{&m.answersDropped, Counter, "oncegate_gate_cache_answers_dropped_total"}, // answers that found no room in the cache
		{&m.casRetry, Counter, "oncegate_gate_cas_retries_total"},                 // shared-data updates repeated because another VM was faster
	} {
		*d.id = host.DefineMetric(d.kind, d.name)
	}
}

// count adds one.
func (m *metrics) count(id MetricID) { m.add(id, 1) }

// add changes a counter or a gauge. It leaves out a change by 0, which a host refuses for counters.
func (m *metrics) add(id MetricID, delta int64) {
	if id != 0 && delta != 0 {
		m.host.AddMetric(id, delta)
	}
}

// record sets a gauge, or adds a sample to a histogram. A negative value, from a clock that was set back, counts as 0.
func (m *metrics) record(id MetricID, value int64) {
	if id != 0 {
		m.host.RecordMetric(id, uint64(max(value, 0)))
	}
}
