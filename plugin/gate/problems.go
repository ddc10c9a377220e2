package gate

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/request"
)

func (s *Stream) badRequest(bad *request.Error) verdict {
	problem := bad.Problem()
	return s.invalid(&problem)
}

func (s *Stream) invalid(problem *api.Problem) verdict {
	return s.refuseAs(s.plugin.metrics.invalid, problem)
}

// refuseAs refuses a request, and counts it.
func (s *Stream) refuseAs(metric MetricID, problem *api.Problem) verdict {
	s.plugin.metrics.count(metric)
	s.recordWait()
	return s.refuse(problem)
}

func (s *Stream) refuse(problem *api.Problem) verdict {
	s.replyProblem(problem)
	return verdictReplied
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
	s.reply(status, detailsPrefix+s.status, headers, p.scratch)
	p.headers = headers
}

// maxRetryAfterSeconds bounds Retry-After. A client that comes back too early is only asked to wait again; one that comes
// back too late has waited longer than it needed to.
const maxRetryAfterSeconds = 10

const second = 1_000_000_000 // nanoseconds

// retryAfter turns nanoseconds into whole seconds for Retry-After, 1 to maxRetryAfterSeconds.
func retryAfter(ns int64) int {
	s := (ns + second - 1) / second
	return int(min(max(s, 1), maxRetryAfterSeconds))
}

// The problems that the gate answers with.

// pendingProblem is for a duplicate of a request that runs. remaining is for how long that can last, nanoseconds.
func pendingProblem(remaining int64) *api.Problem {
	return &api.Problem{Status: 409, Code: api.CodePending, RetryAfterSeconds: retryAfter(remaining),
		Title:  "The first request with this key is still being processed",
		Detail: "Try again later with the same key; the request was not executed a second time."}
}

// replyNotRecorded answers a duplicate of a request that ran but whose answer is not recorded. status is the answer's
// status; 0: not known either.
func (s *Stream) replyNotRecorded(status int) {
	s.plugin.metrics.count(s.plugin.metrics.notRecorded)
	detail := "The request is not executed again."
	if status != 0 {
		detail = "It was answered with status " + strconv.Itoa(status) + ". " + detail
	}
	s.replyProblem(&api.Problem{Status: 410, Code: api.CodeAnswerNotRecorded,
		Title: "The request was executed, but its answer is not recorded", Detail: detail})
}

// replyNotAcceptable answers a duplicate that does not accept the recorded answer's encoding.
func (s *Stream) replyNotAcceptable(encoding string) {
	s.plugin.metrics.count(s.plugin.metrics.notAcceptable)
	s.replyProblem(&api.Problem{Status: 406, Code: api.CodeEncodingNotAccepted,
		Title:  "The recorded answer has an encoding that this request does not accept",
		Detail: "The request is not executed again. With Accept-Encoding: " + encoding + " and the same key it gets the answer."})
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
