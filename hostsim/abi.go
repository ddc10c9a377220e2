package hostsim

import "fmt"

// Status is the result of a host function, as numbered by the Proxy-Wasm ABI.
type Status uint32

// Statuses of ABI 0.2.x.
const (
	StatusOK                   Status = 0
	StatusNotFound             Status = 1
	StatusBadArgument          Status = 2
	StatusSerializationFailure Status = 3
	StatusParseFailure         Status = 4
	StatusInvalidMemoryAccess  Status = 6
	StatusEmpty                Status = 7
	StatusCasMismatch          Status = 8
	StatusInternalFailure      Status = 10
	StatusBrokenConnection     Status = 11
	StatusUnimplemented        Status = 12
)

var statusNames = map[Status]string{
	StatusOK: "Ok", StatusNotFound: "NotFound", StatusBadArgument: "BadArgument",
	StatusSerializationFailure: "SerializationFailure", StatusParseFailure: "ParseFailure",
	StatusInvalidMemoryAccess: "InvalidMemoryAccess", StatusEmpty: "Empty", StatusCasMismatch: "CasMismatch",
	StatusInternalFailure: "InternalFailure", StatusBrokenConnection: "BrokenConnection",
	StatusUnimplemented: "Unimplemented",
}

// String is the status' name in the ABI.
func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("Status(%d)", uint32(s))
}

// Action is what a stream callback returns. The ABI names two values; Envoy
// reads the larger ones as its own filter statuses, and so does this host:
//
//	from headers: 0 continue, 1 stop iteration (see Config.AllowOnHeadersStopIteration),
//	              2 continue without ending the stream, 3 stop all and buffer, 4 and more stop all and watermark
//	from body:    0 continue, 1 stop and buffer, 2 stop and watermark, 3 and more stop and drop
//	from trailers: 0 continue, 1 and more stop
type Action uint32

// Actions of the ABI.
const (
	ActionContinue Action = 0
	ActionPause    Action = 1
)

// MapType selects a header map in host functions.
type MapType uint32

// Map types.
const (
	MapRequestHeaders       MapType = 0
	MapRequestTrailers      MapType = 1
	MapResponseHeaders      MapType = 2
	MapResponseTrailers     MapType = 3
	MapGRPCInitialMetadata  MapType = 4
	MapGRPCTrailingMetadata MapType = 5
	MapHTTPCallHeaders      MapType = 6
	MapHTTPCallTrailers     MapType = 7
	mapTypeMax                      = MapHTTPCallTrailers
)

// BufferType selects a buffer in host functions.
type BufferType uint32

// Buffer types.
const (
	BufferRequestBody    BufferType = 0
	BufferResponseBody   BufferType = 1
	BufferDownstreamData BufferType = 2
	BufferUpstreamData   BufferType = 3
	BufferHTTPCallBody   BufferType = 4
	BufferGRPCMessage    BufferType = 5
	BufferVMConfig       BufferType = 6
	BufferPluginConfig   BufferType = 7
	BufferCallData       BufferType = 8
	bufferTypeMax                   = BufferCallData
)

// StreamType selects a direction in host functions.
type StreamType uint32

// Stream types.
const (
	StreamTypeRequest    StreamType = 0
	StreamTypeResponse   StreamType = 1
	StreamTypeDownstream StreamType = 2
	StreamTypeUpstream   StreamType = 3
)

// MetricType is a metric's kind.
type MetricType uint32

// Metric types.
const (
	MetricCounter   MetricType = 0
	MetricGauge     MetricType = 1
	MetricHistogram MetricType = 2
)

// LogLevel is a guest's log level.
type LogLevel uint32

// Log levels.
const (
	LogTrace    LogLevel = 0
	LogDebug    LogLevel = 1
	LogInfo     LogLevel = 2
	LogWarn     LogLevel = 3
	LogError    LogLevel = 4
	LogCritical LogLevel = 5
	logMax               = LogCritical
)

// ResponseFlags are the bits of the property response.flags.
type ResponseFlags uint64

// Response flags that this host sets, with Envoy's values.
const (
	FlagNoHealthyUpstream     ResponseFlags = 0x2      // UH
	FlagUpstreamTimeout       ResponseFlags = 0x4      // UT
	FlagConnectFailure        ResponseFlags = 0x20     // UF
	FlagUpstreamTermination   ResponseFlags = 0x40     // UC
	FlagUpstreamProtocolError ResponseFlags = 0x800000 // UPE
	FlagUpstreamOverflow      ResponseFlags = 0x80     // UO
	FlagNoRoute               ResponseFlags = 0x100    // NR
	FlagDownstreamReset       ResponseFlags = 0x4000   // DC
	FlagStreamIdleTimeout     ResponseFlags = 0x10000  // SI
)

// callback is one of the functions that the host calls, as the ABI defines it.
type callback struct {
	name   string
	params int // all i32, the context first
	result resultKind
	index  int // in callbacks
}

// resultKind is what a callback's result means.
type resultKind uint8

const (
	noResult resultKind = iota
	boolResult
	actionResult
)

// maxParams is the most parameters that a callback has.
const maxParams = 5

// The callbacks.
var (
	onContextCreate    = &callback{"proxy_on_context_create", 2, noResult, 0}
	onVMStart          = &callback{"proxy_on_vm_start", 2, boolResult, 0}
	onConfigure        = &callback{"proxy_on_configure", 2, boolResult, 0}
	onTick             = &callback{"proxy_on_tick", 1, noResult, 0}
	onQueueReady       = &callback{"proxy_on_queue_ready", 2, noResult, 0}
	onHTTPCallResponse = &callback{"proxy_on_http_call_response", 5, noResult, 0}
	onGRPCMetadata     = &callback{"proxy_on_grpc_receive_initial_metadata", 3, noResult, 0}
	onGRPCReceive      = &callback{"proxy_on_grpc_receive", 3, noResult, 0}
	onGRPCTrailers     = &callback{"proxy_on_grpc_receive_trailing_metadata", 3, noResult, 0}
	onGRPCClose        = &callback{"proxy_on_grpc_close", 3, noResult, 0}
	onRequestHeaders   = &callback{"proxy_on_request_headers", 3, actionResult, 0}
	onRequestBody      = &callback{"proxy_on_request_body", 3, actionResult, 0}
	onRequestTrailers  = &callback{"proxy_on_request_trailers", 2, actionResult, 0}
	onResponseHeaders  = &callback{"proxy_on_response_headers", 3, actionResult, 0}
	onResponseBody     = &callback{"proxy_on_response_body", 3, actionResult, 0}
	onResponseTrailers = &callback{"proxy_on_response_trailers", 2, actionResult, 0}
	onDone             = &callback{"proxy_on_done", 1, boolResult, 0}
	onLog              = &callback{"proxy_on_log", 1, noResult, 0}
	onDelete           = &callback{"proxy_on_delete", 1, noResult, 0}
)

var callbacks = numbered(
	onContextCreate, onVMStart, onConfigure, onTick, onQueueReady, onHTTPCallResponse,
	onGRPCMetadata, onGRPCReceive, onGRPCTrailers, onGRPCClose,
	onRequestHeaders, onRequestBody, onRequestTrailers, onResponseHeaders, onResponseBody, onResponseTrailers,
	onDone, onLog, onDelete,
)

func numbered(all ...*callback) []*callback {
	for i, c := range all {
		c.index = i
	}
	return all
}
