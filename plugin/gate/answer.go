package gate

import (
	"encoding/base64"
	"encoding/binary"
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
	s.status = string(problem.Code)
	headers := s.addStatus(append(p.headers[:0], [2]string{headerContentType, s.route.Problems.MediaType}))
	if problem.RetryAfterSeconds > 0 {
		headers = append(headers, [2]string{headerRetryAfter, strconv.Itoa(problem.RetryAfterSeconds)})
	}
	if docs := s.route.Problems.DocsURL; docs != "" {
		headers = append(headers, [2]string{headerLink, "<" + docs + `>; rel="describedby"; type="text/html"`})
	}
	p.scratch = s.route.Problems.AppendBody(p.scratch[:0], problem, s.requestID)
	status := s.route.Problems.Status(problem)
	s.grpcStatus = grpcOf(problem)
	if s.rpc {
		message := string(problem.Code) + ": " + problem.Title + ". " + problem.Detail
		headers = append(headers, [2]string{headerGRPCDetails, grpcDetails(s.grpcStatus, message, problem)})
		if problem.RetryAfterSeconds > 0 {
			headers = append(headers, [2]string{headerPushback, strconv.Itoa(problem.RetryAfterSeconds * 1000)})
		}
		p.scratch = append(p.scratch[:0], message...)
		status = problem.Status
	}
	if s.reply(status, detailsPrefix+s.status, headers, p.scratch) {
		p.scratch = nil
	}
	p.headers = headers
}

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

// standIn is the status of a local reply that becomes 400 when it passes back through the filter. The host takes a local
// reply with 400 for an answer to a malformed message, and closes an HTTP/1 connection after it.
const standIn = 422

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
	if encoding != "" && len(body) > 0 && !alike && !accepts(s.accept, encoding) {
		clear(headers)
		s.replyNotAcceptable(encoding[1:])
		return
	}
	if encoding == "" && !bare {
		var answered bool
		if body, answered = withID(body, mediaType(contentType), s.requestID); !answered {
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

// The problems that the gate answers with.

// pendingProblem is for a duplicate of a request that runs. remaining is for how long that can last, nanoseconds.
func pendingProblem(remaining int64) *api.Problem {
	return &api.Problem{Status: 409, Code: api.CodePending, RetryAfterSeconds: retryAfter(remaining),
		Title:  "The first request with this key is still being processed",
		Detail: "Try again later with the same key; the request was not executed a second time."}
}

// notRecordedProblem is for a duplicate of a request that ran but whose answer is not recorded. status is the answer's
// status; 0: not known either.
func notRecordedProblem(status int) *api.Problem {
	detail := "The request is not executed again."
	if status != 0 {
		detail = "It was answered with status " + strconv.Itoa(status) + ". " + detail
	}
	return &api.Problem{Status: 410, Code: api.CodeAnswerNotRecorded,
		Title: "The request was executed, but its answer is not recorded", Detail: detail}
}

// notAcceptableProblem is for a duplicate that does not accept the recorded answer's encoding.
func notAcceptableProblem(encoding string) *api.Problem {
	return &api.Problem{Status: 406, Code: api.CodeEncodingNotAccepted,
		Title:  "The recorded answer has an encoding that this request does not accept",
		Detail: "The request is not executed again. With Accept-Encoding: " + encoding + " and the same key it gets the answer."}
}

func unavailableProblem(seconds int) *api.Problem {
	return &api.Problem{Status: 503, Code: api.CodeManagerUnavailable, RetryAfterSeconds: min(max(seconds, 1), maxRetryAfterSeconds),
		Title:  "The idempotency ledger cannot be reached",
		Detail: "The request was not executed; try again with the same key."}
}

// closedTitle is the title of unavailableProblem when the manager answered with this code.
func closedTitle(code api.Code) string {
	switch code {
	case api.CodeLedgerFull:
		return "The idempotency ledger has no room for new keys"
	case api.CodeQuarantine:
		return "The idempotency ledger may have forgotten keys and takes no new ones yet"
	case api.CodeRecordUnreadable:
		return "The idempotency ledger cannot read what it has of this key"
	case api.CodeDurability:
		return "The idempotency ledger cannot protect keys as this route asks"
	case api.CodeWrongHome:
		return "The data centres do not agree about this key"
	}
	return "The data centre that decides about this key cannot be reached" // CodeHomeUnavailable, CodeHomeUnanswered
}

var (
	unknownProblem = api.Problem{Status: 409, Code: api.CodeOutcomeUnknown,
		Title:  "The first request with this key may have been executed, but its outcome is not known",
		Detail: "The request was not executed a second time. Find out whether the first one took effect before you send it with another key."}
	mismatchProblem = api.Problem{Status: 422, Code: api.CodeFingerprintMismatch,
		Title:  "The key was already used for another request",
		Detail: "A retry must repeat the request unchanged; another request needs another key."}
	overloadedProblem = api.Problem{Status: 503, Code: api.CodeOverloaded, RetryAfterSeconds: 1,
		Title:  "There is no room to remember this request",
		Detail: "The request was not executed; try again with the same key."}
	unreadableProblem = api.Problem{Status: 400, Code: api.CodeInvalidRequest,
		Title:  "The request headers cannot be read",
		Detail: "There are too many of them, or they are too large, to look for an idempotency key."}
	batchProblem = api.Problem{Status: 400, Code: api.CodeInvalidRequest,
		Title:  "A batch of JSON-RPC requests cannot be protected",
		Detail: "The batch was not executed. Send each request by itself."}
	unsupportedProblem = api.Problem{Status: 400, Code: api.CodeUnsupportedProtocol,
		Title:  "CONNECT, protocol upgrades and gRPC cannot be protected by an idempotency key",
		Detail: "The request was not executed. Send it without a key, where none is required."}
	notUnaryProblem = api.Problem{Status: 400, Code: api.CodeUnsupportedProtocol,
		Title:  "Only a gRPC call with one request message can be protected by an idempotency key",
		Detail: "The call was not executed."}
	// noAnswerProblem is for a duplicate whose recorded answer cannot reach the client.
	noAnswerProblem = api.Problem{Status: 500, Code: api.CodeInternal,
		Title:  "The proxy has no route " + api.PathAnswer + " for recorded answers",
		Detail: "The call was not executed a second time."}
	// answerAwayProblem is for a duplicate when whatever serves that route cannot be reached.
	answerAwayProblem = api.Problem{Status: 503, Code: api.CodeUnavailable, RetryAfterSeconds: 1,
		Title:  "The recorded answer cannot be fetched now",
		Detail: "The call was not executed a second time; try again with the same key."}
)

// Statuses of gRPC.
const (
	grpcUnknown            = 2
	grpcInvalidArgument    = 3
	grpcAlreadyExists      = 6
	grpcPermissionDenied   = 7
	grpcFailedPrecondition = 9
	grpcAborted            = 10
	grpcUnimplemented      = 12
	grpcInternal           = 13
	grpcUnavailable        = 14
	grpcUnauthenticated    = 16
)

// grpcOfHTTP returns the gRPC status of an answer that is not gRPC, as the protocol says.
func grpcOfHTTP(status int) int {
	switch status {
	case 400:
		return grpcInternal
	case 401:
		return grpcUnauthenticated
	case 403:
		return grpcPermissionDenied
	case 404:
		return grpcUnimplemented
	case 429, 502, 503, 504:
		return grpcUnavailable
	}
	return grpcUnknown
}

// grpcOf returns the gRPC status of a problem.
func grpcOf(problem *api.Problem) int {
	switch problem.Code {
	case api.CodePending:
		return grpcUnavailable
	case api.CodeUnsupportedProtocol:
		return grpcUnimplemented
	case api.CodeOutcomeUnknown:
		return grpcAborted
	}
	switch problem.Status {
	case 400, 422:
		return grpcInvalidArgument
	case 406:
		return grpcFailedPrecondition
	case 404:
		return grpcUnimplemented
	case 409:
		return grpcAborted
	case 410:
		return grpcAlreadyExists
	case 503:
		return grpcUnavailable
	}
	return grpcInternal
}

// grpcDetails is the google.rpc.Status of a problem, in base64: code, message, an ErrorInfo with the problem's code as its
// reason, and a RetryInfo if the problem says when to try again.
func grpcDetails(code int, message string, problem *api.Problem) string {
	status := appendField(nil, 1, uint64(code))
	status = appendText(status, 2, message)
	info := appendText(nil, 1, string(problem.Code))
	info = appendText(info, 2, "oncegate")
	status = appendText(status, 3, anyOf("google.rpc.ErrorInfo", info))
	if problem.RetryAfterSeconds > 0 {
		delay := appendField(nil, 1, uint64(problem.RetryAfterSeconds)) // google.protobuf.Duration
		status = appendText(status, 3, anyOf("google.rpc.RetryInfo", appendText(nil, 1, string(delay))))
	}
	return base64.RawStdEncoding.EncodeToString(status)
}

// anyOf is a google.protobuf.Any.
func anyOf(name string, message []byte) string {
	return string(appendText(appendText(nil, 1, "type.googleapis.com/"+name), 2, string(message)))
}

// appendField appends a number in protobuf's encoding.
func appendField(b []byte, field byte, v uint64) []byte {
	return binary.AppendUvarint(append(b, field<<3), v)
}

// appendText appends a text or a message in protobuf's encoding.
func appendText(b []byte, field byte, text string) []byte {
	b = binary.AppendUvarint(append(b, field<<3|2), uint64(len(text)))
	return append(b, text...)
}
