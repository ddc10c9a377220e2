package gate

import (
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/plugin/request"
)

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

// headerValue returns the first value of a header.
func headerValue(headers [][2]string, name string) (string, bool) {
	for i := range headers {
		if headers[i][0] == name {
			return headers[i][1], true
		}
	}
	return "", false
}

// joined returns all values of a list header as one value.
func joined(headers [][2]string, name string) (list string) {
	for i := range headers {
		if headers[i][0] != name {
			continue
		}
		if list == "" {
			list = headers[i][1]
		} else {
			list += "," + headers[i][1]
		}
	}
	return list
}

// connectionNames returns the names that the connection headers declare to be hop-by-hop, in lower case.
func connectionNames(headers [][2]string) []string {
	var names []string
	for i := range headers {
		if headers[i][0] != headerConnection {
			continue
		}
		eachToken(headers[i][1], func(token string) bool {
			names = append(names, request.Lower(token))
			return true
		})
	}
	return names
}

// eachToken calls f with the elements of a comma-separated list, without spaces and empty ones, until f returns false.
func eachToken(list string, f func(string) bool) {
	for list != "" {
		var token string
		token, list, _ = strings.Cut(list, ",")
		if token = trim(token); token != "" && !f(token) {
			return
		}
	}
}

// trim returns s without the optional white space around a field value.
func trim(s string) string { return strings.Trim(s, " \t") }

// mediaType returns the media type of a content-type value, without its parameters and in lower case.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return request.Lower(trim(media))
}

// isGRPC reports whether a media type belongs to gRPC (or gRPC-Web).
func isGRPC(media string) bool {
	rest, ok := strings.CutPrefix(media, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == '-')
}

// hostsGRPC reports whether hosts take a request with this content type for gRPC.
func hostsGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+')
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// parseDecimal reads a non-negative decimal number of at most 18 digits.
func parseDecimal(s string) (int64, bool) {
	if len(s) > 18 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}

// cloneHeaders copies headers, so that they do not keep the host's header block alive.
func cloneHeaders(headers [][2]string) [][2]string {
	size := 0
	for i := range headers {
		size += len(headers[i][0]) + len(headers[i][1])
	}
	text, out := make(block, 0, size), make([][2]string, len(headers))
	for i := range headers {
		out[i] = [2]string{text.add(headers[i][0]), text.add(headers[i][1])}
	}
	return out
}

// httpDate formats nanoseconds since 1970 as HTTP does: Thu, 01 Jan 1970 00:00:00 GMT.
func httpDate(ns int64) string {
	t := time.Unix(ns/second, 0).UTC()
	year, month, day := t.Date()
	hour, minute, sec := t.Clock()
	b := make([]byte, 0, len("Thu, 01 Jan 1970 00:00:00 GMT"))
	b = append(b, "SunMonTueWedThuFriSat"[3*t.Weekday():][:3]...)
	b = append(b, ", "...)
	b = append(twoDigits(b, day), ' ')
	b = append(b, "JanFebMarAprMayJunJulAugSepOctNovDec"[3*(month-1):][:3]...)
	b = append(b, ' ')
	b = append(twoDigits(twoDigits(b, year/100), year%100), ' ')
	b = append(twoDigits(b, hour), ':')
	b = append(twoDigits(b, minute), ':')
	return string(append(twoDigits(b, sec), " GMT"...))
}

// twoDigits appends the last two digits of n.
func twoDigits(b []byte, n int) []byte { return append(b, byte('0'+n/10%10), byte('0'+n%10)) }

// Whether a client accepts the content coding of a recorded answer. Upstream chose it for the first request, and a retry
// may come from another client.

// accepts reports whether an Accept-Encoding allows all codings of a Content-Encoding. A request without the header accepts
// none: its client may not be able to decode.
func accepts(accept, encoding string) bool {
	all := true
	eachToken(encoding, func(coding string) bool {
		all = acceptsOne(accept, coding)
		return all
	})
	return all
}

func acceptsOne(accept, coding string) bool {
	coding = request.Lower(coding)
	if coding == "identity" {
		return true
	}
	named, rest := -1, -1 // what the list says of the coding and of *; -1: nothing, 0: no, 1: yes
	eachToken(accept, func(element string) bool {
		name, allowed := weigh(element)
		switch {
		case name == coding, "x-"+name == coding, name == "x-"+coding:
			named = allowed
		case name == "*":
			rest = allowed
		}
		return true
	})
	return named == 1 || named < 0 && rest == 1
}

// weigh parses an element of Accept-Encoding. It returns the coding, and 0 when a weight of zero refuses it, else 1.
func weigh(element string) (name string, allowed int) {
	name, q, _ := strings.Cut(element, ";")
	name, q = request.Lower(trim(name)), trim(q)
	if len(q) < 3 || q[0]|0x20 != 'q' || q[1] != '=' || strings.ContainsAny(q[2:], "123456789") {
		return name, 1
	}
	return name, 0
}
