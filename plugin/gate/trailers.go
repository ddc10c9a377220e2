package gate

import (
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// Trailers of answers. A local reply has none. But its last piece of body passes the
// filter, and a host lets a filter add trailers to the last piece.

// trailerPrefix begins the names under which a recorded answer keeps its trailers. They are among
// its headers, so ledgers of all releases keep them.
const trailerPrefix = "idempotency-trailer-"

// outTrailers are the trailers that the gate adds to its own reply.
type outTrailers struct {
	list [][2]string
	// bare: the reply has no body. The host gets one byte of body, so that there is a last piece.
	bare bool
}

// keepTrailers keeps those trailers of an answer that the route keeps. If there is no room for all of them, or the
// host did not hand over any, it keeps none and marks the answer.
func (s *Stream) keepTrailers(trailers [][2]string) {
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
