package gate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// fix says what to correct in a reply of the gate's own; see fixType.
type fix uint8

const (
	fixNone fix = iota
	fixRemoveType
	fixRestoreType
)

// standIn is the status of a local reply that becomes 400 when it passes back through the filter. The host takes a local
// reply with 400 for an answer to a malformed message, and closes an HTTP/1 connection after it.
const standIn = 422

// reply sends a local reply, either now or when the request has come in. delayed: the reply waits, so the caller must not
// reuse body.
func (s *Stream) reply(status int, details string, headers [][2]string, body []byte) (delayed bool) {
	if s.isLookUp {
		headers = uncached(headers)
	}
	r := localReply{status: status, details: details, headers: headers, body: body}
	if s.awaitsEnd() && s.plugin.delayed.bytes+len(body) <= maxUnsentBytes {
		r.headers = slices.Clone(headers)
		s.delayReply(r)
		return true
	}
	s.send(r)
	return false
}

// uncached replaces what headers say about caches. The answer to a look-up depends on the key and the caller's credential,
// so a cache would give it to the wrong request.
func uncached(headers [][2]string) [][2]string {
	headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == headerCacheControl || h[0] == "expires" || h[0] == "pragma" })
	return append(headers, [2]string{headerCacheControl, "no-store"})
}

// send sends a local reply. The stream decides nothing more.
func (s *Stream) send(r localReply) {
	s.phase = phaseReplied
	s.plugin.handled++
	if r.status == 400 && s.http1() {
		r.status, s.restore400 = standIn, true
	}
	if !s.plugin.host.Reply(r.status, s.grpcStatus, r.details, r.headers, r.body) {
		s.plugin.host.Log(LevelError, "oncegate: the host refused a local reply")
	}
}

// replay answers the current stream with a recorded answer.
func (s *Stream) replay(result *api.Result) {
	p := s.plugin
	if result.BodyOmitted {
		s.replyNotRecorded(result.Status)
		return
	}
	if s.rpc {
		s.replayRPC(result)
		return
	}
	headers, body := p.headers[:0], result.Body
	bare := s.route.Response.NoBody && len(body) > 0
	contentType, typed, encoding, alike, trailers := "", false, "", false, false
	for i := range result.Headers {
		h := &result.Headers[i]
		switch h.Name {
		case s.route.OutcomeHeader:
			continue // an earlier configuration recorded it
		case headerAccepted:
			// Upstream sent an encoding that the first request did not accept. A retry that accepts the same as the first
			// gets the same answer.
			alike = h.Value == s.accept
			continue
		}
		if _, ok := recordedTrailer(h.Name); ok {
			trailers = !bare
			continue
		}
		if !s.replays(h.Name, bare) {
			continue
		}
		switch h.Name {
		case headerContentEncoding:
			if h.Value != "identity" {
				encoding += "," + h.Value
			}
		case headerContentType:
			contentType, typed = h.Value, true
		case "content-digest", "repr-digest":
			if s.rewritesID() {
				continue // of the body with the recorded id
			}
		}
		headers = append(headers, [2]string{h.Name, h.Value})
	}
	if bare {
		body = nil
		headers = append(headers, [2]string{headerBody, omitted})
	}
	if encoding != "" && len(body) > 0 && !alike && !fields.Accepts(s.accept, encoding) {
		clear(headers)
		s.replyNotAcceptable(encoding[1:])
		return
	}
	if encoding == "" && !bare {
		var answered bool
		if body, answered = withID(body, fields.MediaType(contentType), s.requestID); !answered {
			clear(headers)
			s.replyNotRecorded(result.Status)
			return
		}
	}
	headers = s.addReplayHeaders(headers)
	if trailers {
		body = s.attach(s.replayedTrailers(result.Headers), body)
	}
	s.fixType(contentType, typed, len(body))
	s.reply(result.Status, detailsReplayed, headers, body)
	p.recycle(headers)
}

// replays reports whether a replay has a header of the record. The settings may have changed since the record was made.
// bare: the replay leaves out the record's body.
func (s *Stream) replays(name string, bare bool) bool {
	switch {
	case name == headerTrailers, name == headerBody:
		return true
	case s.route.Adds(name), bare && config.DescribesBody(name):
		return false
	}
	return s.route.Response.Keeps(name)
}

// addReplayHeaders adds the headers that say that an answer is a replay.
func (s *Stream) addReplayHeaders(headers [][2]string) [][2]string {
	s.status = statusReplayed
	return s.addStatusHeaders(append(headers, [2]string{s.route.ReplayHeader, "true"}))
}

// addStatus adds the status of an answer that the gate makes, and the key where the route wants that.
func (s *Stream) addStatus(headers [][2]string) [][2]string {
	headers = append(headers, [2]string{api.HeaderStatus, s.status})
	if name := s.route.EchoHeader(); name != "" && s.key != "" {
		headers = append(headers, [2]string{name, s.key})
	}
	return headers
}

// addStatusHeaders adds the headers that say what became of the request.
func (s *Stream) addStatusHeaders(headers [][2]string) [][2]string {
	headers = s.addStatus(headers)
	if name := s.route.Response.TTLHeader; name != "" && s.remembered > 0 {
		headers = append(headers, [2]string{name, strconv.FormatInt(s.remembered/second, 10)})
	}
	if s.ledgerNone() {
		headers = append(headers, [2]string{headerLedger, "none"})
	}
	return headers
}

// recycle keeps the memory of headers, but not what they refer to.
func (p *Plugin) recycle(headers [][2]string) {
	clear(headers)
	p.headers = headers[:0]
}

// replayRaw answers the current stream with a recorded answer in its raw form. False: the record cannot be read, and
// nothing was sent.
func (s *Stream) replayRaw(raw []byte) bool {
	result := &s.plugin.replayed
	if result.ViewRaw(raw) != nil {
		return false
	}
	s.replay(result)
	clear(result.Headers)
	result.Body = nil // the reused memory must not keep the answer
	return true
}

// fixType records what fixOwnReply must correct in a reply with a body of size bytes. typed reports whether upstream's
// answer had a content type. A host adds a content type to local replies with a body and removes it from those without one.
func (s *Stream) fixType(contentType string, typed bool, size int) {
	s.fix = fixNone
	switch {
	case !typed && size > 0:
		s.fix = fixRemoveType
	case typed && size == 0:
		// contentType may be a view of memory that is reused before the reply passes back.
		s.fix, s.contentType = fixRestoreType, strings.Clone(contentType)
	}
}

// fixOwnReply corrects the gate's own local reply when it passes back through the filter.
func (s *Stream) fixOwnReply() {
	switch s.fix {
	case fixRemoveType:
		s.plugin.host.RemoveResponseHeader(headerContentType)
	case fixRestoreType:
		s.plugin.host.SetResponseHeader(headerContentType, s.contentType)
	}
	s.fix = fixNone
	if s.restore400 {
		// The host answers gRPC with 200, and its configuration may have changed the status.
		if status, _ := s.plugin.host.ResponseHeader(headerStatus); status == strconv.Itoa(standIn) {
			s.plugin.host.SetResponseHeader(headerStatus, "400")
		}
	}
	if len(s.trailers.list) > 0 {
		// With it, HTTP/1 could not send trailers.
		s.plugin.host.RemoveResponseHeader(headerContentLength)
	}
}

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
