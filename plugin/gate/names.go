package gate

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
