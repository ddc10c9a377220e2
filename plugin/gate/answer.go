package gate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// fix says what to correct in a reply of the gate's own; see fixType.
type fix uint8

const (
	fixNone fix = iota
	fixRemoveType
	fixRestoreType
)

// maxRetryAfterSeconds bounds Retry-After. A client that comes back too early is only asked to wait again; one that comes
// back too late has waited longer than it needed to.
const maxRetryAfterSeconds = 10

const second = 1_000_000_000 // nanoseconds

// retryAfter turns nanoseconds into whole seconds for Retry-After, 1 to maxRetryAfterSeconds.
func retryAfter(ns int64) int {
	s := (ns + second - 1) / second
	return int(min(max(s, 1), maxRetryAfterSeconds))
}

// replyProblem answers the current stream with a problem.
func (s *Stream) replyProblem(problem *api.Problem) {
	p := s.plugin
	headers := append(p.headers[:0],
		[2]string{headerContentType, api.ContentTypeProblem},
		[2]string{api.HeaderStatus, string(problem.Code)})
	if problem.RetryAfterSeconds > 0 {
		headers = append(headers, [2]string{headerRetryAfter, strconv.Itoa(problem.RetryAfterSeconds)})
	}
	if docs := s.route.Problems.DocsURL; docs != "" {
		headers = append(headers, [2]string{headerLink, "<" + docs + `>; rel="describedby"; type="text/html"`})
	}
	p.scratch = problem.AppendTyped(p.scratch[:0], s.route.Problems.TypeBase)
	s.status = string(problem.Code)
	s.grpcStatus = grpcOf(problem)
	if s.rpc {
		message := string(problem.Code) + ": " + problem.Title + ". " + problem.Detail
		headers = append(headers, [2]string{headerGRPCDetails, grpcDetails(s.grpcStatus, message, problem)})
		if problem.RetryAfterSeconds > 0 {
			headers = append(headers, [2]string{headerPushback, strconv.Itoa(problem.RetryAfterSeconds * 1000)})
		}
		p.scratch = append(p.scratch[:0], message...)
	}
	if s.reply(problem.Status, detailsPrefix+s.status, headers, p.scratch) {
		p.scratch = nil
	}
	p.headers = headers
}

// reply sends a local reply, either now or when the request has come in. kept: the reply waits, so the caller must not
// reuse body.
func (s *Stream) reply(status int, details string, headers [][2]string, body []byte) (kept bool) {
	if s.isLookUp {
		headers = uncached(headers)
	}
	if s.awaitsEnd() && s.plugin.delayed.bytes+len(body) <= maxUnsentBytes {
		s.delayReply(&localReply{status: status, details: details, headers: slices.Clone(headers), body: body})
		return true
	}
	s.send(status, details, headers, body)
	return false
}

// uncached replaces what headers say about caches. The answer to a look-up depends on the key and the caller's credential,
// so a cache would give it to the wrong request.
func uncached(headers [][2]string) [][2]string {
	headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == headerCacheControl || h[0] == "expires" || h[0] == "pragma" })
	return append(headers, [2]string{headerCacheControl, "no-store"})
}

// standIn is the status of a local reply that becomes 400 when it passes back through the filter. The host takes a local
// reply with 400 for an answer to a malformed message, and closes an HTTP/1 connection after it.
const standIn = 422

// send sends a local reply. The stream decides nothing more.
func (s *Stream) send(status int, details string, headers [][2]string, body []byte) {
	s.phase = phaseReplied
	s.plugin.handled++
	if status == 400 && s.http1() {
		status, s.restore400 = standIn, true
	}
	if !s.plugin.host.Reply(status, s.grpcStatus, details, headers, body) {
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
			encoding += "," + h.Value
		case headerContentType:
			contentType, typed = h.Value, true
		}
		headers = append(headers, [2]string{h.Name, h.Value})
	}
	if bare {
		body = nil
		headers = append(headers, [2]string{headerBody, omitted})
	}
	if encoding != "" && len(body) > 0 && !alike && !accepts(s.accept, encoding) {
		clear(headers)
		s.replyNotAcceptable(encoding[1:])
		return
	}
	headers = s.addReplayHeaders(headers)
	if trailers {
		body = s.attach(s.replayedTrailers(result.Headers), body)
	}
	s.fixType(contentType, typed, len(body))
	s.reply(result.Status, detailsReplayed, headers, body)
	p.recycle(headers)
}

// addReplayHeaders adds the headers that say that an answer is a replay.
func (s *Stream) addReplayHeaders(headers [][2]string) [][2]string {
	s.status = statusReplayed
	return s.addStatusHeaders(append(headers, [2]string{s.route.ReplayHeader, "true"}))
}

// addStatusHeaders adds the headers that say what became of the request.
func (s *Stream) addStatusHeaders(headers [][2]string) [][2]string {
	headers = append(headers, [2]string{api.HeaderStatus, s.status})
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

func (s *Stream) replyNotRecorded(status int) {
	s.plugin.metrics.count(s.plugin.metrics.notRecorded)
	s.replyProblem(notRecordedProblem(status))
}

func (s *Stream) replyNotAcceptable(encoding string) {
	s.plugin.metrics.count(s.plugin.metrics.notAcceptable)
	s.replyProblem(notAcceptableProblem(encoding))
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
