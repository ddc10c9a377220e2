package gate

import (
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

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

// What the route's response settings leave out of records and replays.

// recordHead records an answer without its body, which replays do not have either.
func (s *Stream) recordHead() {
	a := &s.answer
	kept := a.headers[:0]
	for _, h := range a.headers {
		if _, trailer := recordedTrailer(h.Name); !trailer && !describesBody(h.Name) {
			kept = append(kept, h)
		}
	}
	a.headers = kept
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
	case name == s.route.ReplayHeader, bare && describesBody(name):
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
