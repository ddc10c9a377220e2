package gate

import (
	"slices"

	"github.com/oncegate/oncegate/manager/api"
)

// Retry-After is never more than this many seconds: a client that comes back
// early is only told to wait again, one that comes back late has waited for nothing.
const maxRetryAfterSeconds = 10

const second = 1_000_000_000 // nanoseconds

// retryAfter turns a duration in nanoseconds into whole seconds for Retry-After.
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
		headers = append(headers, [2]string{headerRetryAfter, decimal(int64(problem.RetryAfterSeconds))})
	}
	p.scratch = problem.AppendJSON(p.scratch[:0])
	s.mark = string(problem.Code)
	if s.reply(problem.Status, detailsPrefix+s.mark, headers, p.scratch) {
		p.scratch = nil
	}
	p.headers = headers
}

// reply sends a local reply, at once or when the request has come in. kept: body is still needed.
func (s *Stream) reply(status int, details string, headers [][2]string, body []byte) (kept bool) {
	if s.awaitsEnd() && s.plugin.endings.bytes+len(body) <= maxUnsentBytes {
		s.later(&localReply{status: status, details: details, headers: slices.Clone(headers), body: body})
		return true
	}
	s.send(status, details, headers, body)
	return false
}

// send sends a local reply; the stream only passes on what follows.
func (s *Stream) send(status int, details string, headers [][2]string, body []byte) {
	s.phase = phaseReplied
	s.plugin.acts++
	if !s.plugin.host.Reply(status, details, headers, body) {
		s.plugin.host.Log(LevelError, "oncegate: the host refused a local reply")
	}
}

// replay answers the current stream with a recorded answer.
func (s *Stream) replay(result *api.Result) {
	p := s.plugin
	if result.BodyOmitted {
		p.metrics.count(p.metrics.notRecorded)
		s.replyProblem(notRecordedProblem(result.Status))
		return
	}
	headers := p.headers[:0]
	contentType, typed, encoding, alike := "", false, "", false
	for i := range result.Headers {
		h := &result.Headers[i]
		switch h.Name {
		case headerAccepted:
			// Upstream chose without being asked; a retry that asks as the first did gets the same.
			alike = h.Value == s.accept
			continue
		case headerContentEncoding:
			encoding += "," + h.Value
		case headerContentType:
			contentType, typed = h.Value, true
		}
		headers = append(headers, [2]string{h.Name, h.Value})
	}
	if encoding != "" && len(result.Body) > 0 && !alike && !accepts(s.accept, encoding) {
		clear(headers)
		p.metrics.count(p.metrics.notAcceptable)
		s.replyProblem(notAcceptableProblem(encoding[1:]))
		return
	}
	headers = append(headers,
		[2]string{api.HeaderReplayed, "true"},
		[2]string{api.HeaderStatus, statusReplayed})
	if s.ledgerNone() {
		headers = append(headers, [2]string{headerLedger, "none"})
	}
	s.fixType(contentType, typed, len(result.Body))
	s.mark = statusReplayed
	s.reply(result.Status, detailsReplayed, headers, result.Body)
	clear(headers)
	p.headers = headers[:0]
}

// replayRaw answers the current stream with a recorded answer in its raw form.
// false: the record cannot be read and nothing was sent.
func (s *Stream) replayRaw(raw []byte) bool {
	var result api.Result
	if result.ParseRaw(raw) != nil {
		return false
	}
	s.replay(&result)
	return true
}

// fixType says what to correct in a reply with this type, if typed, and so much body. A host
// gives its own replies a content type when they have a body and takes it away when they
// have none; what upstream said is put back when the reply passes by.
func (s *Stream) fixType(contentType string, typed bool, size int) {
	s.fix = fixNone
	switch {
	case !typed && size > 0:
		s.fix = fixRemoveType
	case typed && size == 0:
		s.fix, s.contentType = fixRestoreType, contentType
	}
}

// fixOwnReply corrects a local reply of ours on its way back through the filter.
func (s *Stream) fixOwnReply() {
	switch s.fix {
	case fixRemoveType:
		s.plugin.host.RemoveResponseHeader(headerContentType)
	case fixRestoreType:
		s.plugin.host.SetResponseHeader(headerContentType, s.contentType)
	}
	s.fix = fixNone
}

// The problems that the gate answers with.

func pendingProblem(remaining int64) *api.Problem {
	return &api.Problem{
		Status:            409,
		Code:              api.CodePending,
		Title:             "The first request with this key is still being processed",
		Detail:            "Try again later with the same key; the request was not executed a second time.",
		RetryAfterSeconds: retryAfter(remaining),
	}
}

func unknownProblem() *api.Problem {
	return &api.Problem{
		Status: 409,
		Code:   api.CodeOutcomeUnknown,
		Title:  "The first request with this key may have been executed, but its outcome is not known",
		Detail: "The request was not executed a second time. Find out whether the first one took effect before you send it with another key.",
	}
}

// notRecordedProblem is for a duplicate of a request that ran; status is what it was answered
// with, 0 when that is not known either.
func notRecordedProblem(status int) *api.Problem {
	detail := "The request is not executed again."
	if status != 0 {
		detail = "It was answered with status " + decimal(int64(status)) + ". " + detail
	}
	return &api.Problem{
		Status: 410,
		Code:   api.CodeAnswerNotRecorded,
		Title:  "The request was executed, but its answer is not recorded",
		Detail: detail,
	}
}

// notAcceptableProblem is for a duplicate that does not accept the recorded answer's encoding.
func notAcceptableProblem(encoding string) *api.Problem {
	return &api.Problem{
		Status: 406,
		Code:   api.CodeEncodingNotAccepted,
		Title:  "The recorded answer has an encoding that this request does not accept",
		Detail: "The request is not executed again. With Accept-Encoding: " + encoding + " and the same key it gets the answer.",
	}
}

func mismatchProblem() *api.Problem {
	return &api.Problem{
		Status: 422,
		Code:   api.CodeFingerprintMismatch,
		Title:  "The key was already used for another request",
		Detail: "A retry must repeat the request unchanged; another request needs a key of its own.",
	}
}

func unavailableProblem(seconds int) *api.Problem {
	return &api.Problem{
		Status:            503,
		Code:              api.CodeManagerUnavailable,
		Title:             "The idempotency ledger cannot be reached",
		Detail:            "The request was not executed; try again with the same key.",
		RetryAfterSeconds: min(max(seconds, 1), maxRetryAfterSeconds),
	}
}

func overloadedProblem() *api.Problem {
	return &api.Problem{
		Status:            503,
		Code:              api.CodeOverloaded,
		Title:             "There is no room to remember this request",
		Detail:            "The request was not executed; try again with the same key.",
		RetryAfterSeconds: 1,
	}
}

var unsupportedProblem = api.Problem{
	Status: 400,
	Code:   api.CodeUnsupportedProtocol,
	Title:  "CONNECT, protocol upgrades and gRPC cannot be protected by an idempotency key",
	Detail: "The request was not executed. Send it without a key, where none is required.",
}

func unreadableProblem() *api.Problem {
	return &api.Problem{
		Status: 400,
		Code:   api.CodeInvalidRequest,
		Title:  "The request headers cannot be read",
		Detail: "There are too many of them, or they are too large, to look for an idempotency key.",
	}
}
