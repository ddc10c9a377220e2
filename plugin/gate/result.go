package gate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
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
	// headerAccepted is in recorded answers only. It is the first request's Accept-Encoding, recorded
	// if upstream sent an encoding that it does not accept.
	headerAccepted        = "idempotency-accepted-encoding"
	headerAcceptEncoding  = "accept-encoding"
	headerContentEncoding = "content-encoding"
	// headerBody marks replays without the body that the answer had.
	headerBody = "idempotency-body"
	headerLink = "link"
)

// omitted is the value of headerTrailers and headerBody.
const omitted = "omitted"

// The values of api.HeaderStatus and propertyStatus. They say what became of a request. For
// a request that the gate refuses, the value is the problem's code.
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

// recordedHeaders returns the headers of an answer that a replay repeats: the
// end-to-end headers that the route keeps, without those that the proxy makes for every
// answer, and without the gate's own. The date is recorded as the original date.
// False: there are more than a result may hold.
//
// The returned strings are copies, so they do not keep the host's header block
// alive.
func recordedHeaders(headers [][2]string, route *config.Route) ([]api.Header, bool) {
	named := connectionNames(headers)
	_, dated := lookup(headers, config.OriginalDate)
	count, size := 0, 0
	for i := range headers {
		name := recordedName(headers[i][0], route, named, dated)
		if name == "" {
			continue
		}
		count++
		size += len(name) + len(headers[i][1])
	}
	if count > api.MaxResultHeaders || size > api.MaxResultHeaderBytes {
		return nil, false
	}
	if count == 0 {
		return nil, true
	}
	text, out := newBlock(size), make([]api.Header, 0, count)
	for i := range headers {
		if name := recordedName(headers[i][0], route, named, dated); name != "" {
			out = append(out, api.Header{Name: text.add(name), Value: text.add(headers[i][1])})
		}
	}
	return out, true
}

// recordedName returns the name under which a header is recorded; empty: it is not. dated: the answer
// has an original date already, as an upstream's own replay does.
func recordedName(name string, route *config.Route, named []string, dated bool) string {
	switch {
	case name == headerDate && !dated:
		name = config.OriginalDate
	case skipHeader(name, named) || name == route.ReplayHeader:
		return ""
	}
	if !route.Response.Keeps(name) {
		return ""
	}
	return name
}

// addHeader adds a header of the gate's own to the recorded answer. False: there is no room.
func (a *answer) addHeader(name, value string) bool {
	size := len(name) + len(value)
	for i := range a.headers {
		size += len(a.headers[i].Name) + len(a.headers[i].Value)
	}
	fits := len(a.headers) < api.MaxResultHeaders && size <= api.MaxResultHeaderBytes
	if fits {
		a.headers = append(a.headers, api.Header{Name: name, Value: value})
	}
	return fits
}

// skipHeader reports whether a header is left out of a recorded answer.
func skipHeader(name string, named []string) bool {
	if len(name) == 0 || name[0] == ':' {
		return true
	}
	switch name {
	case headerConnection, "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authentication-info",
		"te", headerTrailer, "transfer-encoding", headerUpgrade,
		// The proxy makes these for each answer.
		headerContentLength, headerDate, "age", headerServiceTime,
		// These are the gate's own, and describe this one answer.
		api.HeaderStatus, api.HeaderReplayed, headerLedger, headerTrailers, headerBody, headerAccepted, headerAnswer:
		return true
	}
	return slices.Contains(named, name) || strings.HasPrefix(name, trailerPrefix)
}

// connectionNames returns the names that the connection headers declare to be
// hop-by-hop, in lower case.
func connectionNames(headers [][2]string) []string {
	var names []string
	for i := range headers {
		if headers[i][0] != headerConnection {
			continue
		}
		eachToken(headers[i][1], func(token string) bool {
			names = append(names, lower(token))
			return true
		})
	}
	return names
}

// eachToken calls f with the elements of a comma-separated list, without spaces
// and empty ones, until f returns false.
func eachToken(list string, f func(string) bool) {
	for len(list) > 0 {
		end := 0
		for end < len(list) && list[end] != ',' {
			end++
		}
		token := trim(list[:end])
		if token != "" && !f(token) {
			return
		}
		if end == len(list) {
			return
		}
		list = list[end+1:]
	}
}

// trim returns s without the optional white space around a field value.
func trim(s string) string { return strings.Trim(s, " \t") }

// lower returns s with ASCII letters in lower case. It does not copy s if nothing changes.
func lower(s string) string {
	for i := 0; i < len(s); i++ {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if 'A' <= b[i] && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// lookup returns the first value of a header.
func lookup(headers [][2]string, name string) (string, bool) {
	for i := range headers {
		if headers[i][0] == name {
			return headers[i][1], true
		}
	}
	return "", false
}

// mediaType returns the media type of a content-type value, without its
// parameters and in lower case.
func mediaType(contentType string) string {
	for i := 0; i < len(contentType); i++ {
		if contentType[i] == ';' {
			contentType = contentType[:i]
			break
		}
	}
	return lower(trim(contentType))
}

// isGRPC reports whether a media type belongs to gRPC (or gRPC-Web).
func isGRPC(media string) bool {
	const grpc = "application/grpc"
	return len(media) >= len(grpc) && media[:len(grpc)] == grpc &&
		(len(media) == len(grpc) || media[len(grpc)] == '+' || media[len(grpc)] == '-')
}

// parseDecimal reads a non-negative decimal number of at most 18 digits.
func parseDecimal(s string) (int64, bool) {
	if len(s) > 18 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}
