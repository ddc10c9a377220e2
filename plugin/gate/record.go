package gate

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
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

// block holds copies of several strings, which cost one allocation together.
type block []byte

// newBlock returns a block for strings of size bytes in all.
func newBlock(size int) block { return make(block, 0, size) }

// add returns a copy of s. The block should have room for it.
func (b *block) add(s string) string {
	at := len(*b)
	*b = append(*b, s...)
	return unsafe.String(unsafe.SliceData((*b)[at:]), len(s))
}

// cloneHeaders copies headers, so that they do not keep the host's header block alive.
func cloneHeaders(headers [][2]string) [][2]string {
	size := 0
	for i := range headers {
		size += len(headers[i][0]) + len(headers[i][1])
	}
	text, out := newBlock(size), make([][2]string, len(headers))
	for i := range headers {
		out[i] = [2]string{text.add(headers[i][0]), text.add(headers[i][1])}
	}
	return out
}

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

// recordedHeaders returns the headers of an answer that a replay repeats: the end-to-end headers that the route keeps,
// without those that the proxy makes for every answer, and without the gate's own. The date is recorded as the original
// date. False: there are more than a result may hold.
//
// The returned strings are copies, so they do not keep the host's header block alive.
func recordedHeaders(headers [][2]string, route *config.Route) ([]api.Header, bool) {
	named := connectionNames(headers)
	_, dated := headerValue(headers, config.OriginalDate)
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

// recordedName returns the name under which a header is recorded; empty: it is not. dated: the answer has an original date
// already, as an upstream's own replay does.
func recordedName(name string, route *config.Route, named []string, dated bool) string {
	switch {
	case name == headerDate && !dated:
		name = config.OriginalDate
	case skipHeader(name, named) || route.Adds(name) || isChallenge(name):
		return ""
	}
	if !route.Response.Keeps(name) {
		return ""
	}
	return name
}

// isChallenge reports whether a header belongs to the exchange of credentials with one client.
func isChallenge(name string) bool {
	return name == "www-authenticate" || name == "authentication-info"
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

// What the route's response settings leave out of records and replays.

// recordHead records an answer without its body, which replays do not have either.
func (s *Stream) recordHead() {
	a := &s.answer
	recorded := a.headers[:0]
	for _, h := range a.headers {
		if _, trailer := recordedTrailer(h.Name); !trailer && !describesBody(h.Name) {
			recorded = append(recorded, h)
		}
	}
	a.headers = recorded
	a.addHeader(headerBody, omitted)
	s.recordOutcome(nil, false)
}

// addDate adds the date to an answer that has none.
func (s *Stream) addDate() {
	if !s.route.Response.Keeps(config.OriginalDate) {
		return
	}
	for i := range s.answer.headers {
		if s.answer.headers[i].Name == config.OriginalDate {
			return
		}
	}
	s.answer.addHeader(config.OriginalDate, httpDate(s.plugin.host.Now()))
}

// replays reports whether a replay has a header of the record. The settings may have changed since the record was made.
// bare: the replay leaves out the record's body.
func (s *Stream) replays(name string, bare bool) bool {
	switch {
	case name == headerTrailers, name == headerBody:
		return true
	case s.route.Adds(name), bare && describesBody(name):
		return false
	}
	return s.route.Response.Keeps(name)
}

func describesBody(name string) bool {
	return name == headerContentType || name == headerContentEncoding
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

// Trailers of answers. A local reply has none. But its last piece of body passes the filter, and a host lets a filter add
// trailers to the last piece.

// trailerPrefix begins the names under which a recorded answer keeps its trailers. They are among its headers, so ledgers
// of all releases keep them.
const trailerPrefix = "idempotency-trailer-"

// outTrailers are the trailers that the gate adds to its own reply.
type outTrailers struct {
	list [][2]string
	// bare: the reply has no body. The host gets one byte of body, so that there is a last piece.
	bare bool
}

// copyTrailers copies those trailers of an answer that the route keeps. If there is no room for all of them, or the host
// did not hand over any, it copies none and marks the answer.
func (s *Stream) copyTrailers(trailers [][2]string) {
	a := &s.answer
	was, fits := len(a.headers), len(trailers) > 0
	for _, t := range trailers {
		if !skipHeader(t[0], nil) && s.route.Response.Keeps(t[0]) {
			fits = fits && a.addHeader(trailerPrefix+t[0], t[1])
		}
	}
	if !fits {
		a.headers = a.headers[:was]
		a.addHeader(headerTrailers, omitted)
	}
}

// recordedTrailer returns the name of the trailer that a recorded header stands for.
func recordedTrailer(name string) (string, bool) { return strings.CutPrefix(name, trailerPrefix) }

// attach adds trailers to the reply that follows. It returns the body for the host.
func (s *Stream) attach(trailers [][2]string, body []byte) []byte {
	s.trailers = outTrailers{list: trailers}
	if len(trailers) > 0 && len(body) == 0 {
		s.trailers.bare = true
		return []byte{' '}
	}
	return body
}

// addTrailers adds the trailers to the last piece of the gate's own reply.
func (s *Stream) addTrailers(end bool) Action {
	t, host := &s.trailers, s.plugin.host
	if t.bare {
		host.ReplaceResponseBody(nil)
	}
	if end && len(t.list) > 0 {
		host.SetResponseTrailers(t.list)
		s.trailers = outTrailers{}
	}
	return Continue
}

// endToEnd returns the trailers that a client gets.
func endToEnd(trailers [][2]string) (out [][2]string) {
	for _, t := range trailers {
		if !skipHeader(t[0], nil) {
			out = append(out, [2]string{strings.Clone(t[0]), strings.Clone(t[1])})
		}
	}
	return out
}

// replayedTrailers returns those trailers among the headers of a recorded answer that the route keeps. They are copies,
// because the answer may be a view of memory that is reused before its last piece passes the filter.
func (s *Stream) replayedTrailers(headers []api.Header) (out [][2]string) {
	for i := range headers {
		if name, ok := recordedTrailer(headers[i].Name); ok && s.route.Response.Keeps(name) {
			out = append(out, [2]string{strings.Clone(name), strings.Clone(headers[i].Value)})
		}
	}
	return out
}
