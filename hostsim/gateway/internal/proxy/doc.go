// Package proxy is a reverse proxy for HTTP/1.1 around a hostsim.Host: each
// request becomes a stream that the host plays through its filter, and what
// the filter lets through goes to one upstream.
//
// # Who does what
//
// net/http parses and frames on both sides. The host decides everything that a filter can observe: pausing, buffering
// and its limits, local replies, the answer to a failed upstream, idle streams. This package only moves bytes between
// the two, with four guarantees:
//
//   - A request is sent to upstream at most once. http.Transport repeats requests
//     on its own when it considers them replayable, among them every request
//     that carries an Idempotency-Key header and no body. It never does so for
//     a request that has a body without GetBody, so every request gets one here,
//     empty ones too.
//   - Memory is bounded. Each direction of a stream has a queue between the host's
//     event loop, which must not block, and the socket; a direction is fed only
//     while both the host's window and that queue have room.
//   - A stream ends when the client does. The loss of the client's connection
//     resets the stream and the host then cancels the upstream request.
//   - Nothing outlives its request: ServeHTTP returns after the goroutines that
//     feed the stream have ended.
//
// # One exchange
//
//	client ──read──> pump ──RequestData──> ┌────────┐ ──Upstream sink──> queue ──> Transport
//	                                       │ stream │
//	client <─write── queue <─Downstream ── └────────┘ <──ResponseData─── Transport
//
// The handler's goroutine writes the response, the pump reads the client's body,
// a third goroutine runs the upstream request once the filter has let the headers
// go.
//
// # What is like Envoy, and what is not
//
// Names are lower case; :method, :path, :authority, :scheme, x-request-id and
// x-forwarded-proto are there; hop-by-hop headers are taken out, but the filter
// sees upstream's transfer-encoding and x-envoy-upstream-service-time, as it does in
// Envoy. The end of a body comes as a separate, empty piece. Expect: 100-continue is
// answered at once. Upgrades and CONNECT are refused with 403, HTTP/1.0 with 426, a
// path with a fragment with 400, header maps over the limits with 431. A client that
// closes its sending side counts as gone. A response that begins before the request has
// come in whole closes the connection, even if the rest came in the same packet.
//
// Different: a client that leaves while flow control holds its body back is only
// noticed when the body moves again. Upstream's informational answers (1xx) are dropped; an upstream
// that answers 101 is treated as one that broke off.
package proxy
