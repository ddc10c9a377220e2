package api

import "strconv"

// Code names a kind of problem. It is the last part of the problem's type URI
// and does not change between versions.
type Code string

// Problem codes of the gate and the manager.
const (
	CodeInvalidRequest      Code = "invalid-request"        // 400: a field is missing, malformed or unknown
	CodeInvalidKey          Code = "invalid-key"            // 400: the idempotency key is not 1 to 255 bytes of printable ASCII without a blank at either end
	CodeKeyRequired         Code = "key-required"           // 400: this route requires a key
	CodeUnsupportedProtocol Code = "unsupported-protocol"   // 400: a key on a request that cannot be protected: CONNECT, an upgrade, gRPC
	CodeScopeAmbiguous      Code = "scope-ambiguous"        // 400: the scope does not tell the caller apart from others
	CodeDurability          Code = "durability-unavailable" // 400: this manager cannot give the durability that was asked for
	CodeUnauthorized        Code = "unauthorized"           // 401: wrong or missing credentials
	CodeForbidden           Code = "forbidden"              // 403: these credentials do not allow this call
	CodeNotFound            Code = "not-found"              // 404: no such entry, job or path
	CodeMethodNotAllowed    Code = "method-not-allowed"     // 405
	CodeEncodingNotAccepted Code = "encoding-not-accepted"  // 406: the recorded answer has another content-encoding
	CodePending             Code = "request-pending"        // 409: the first attempt is still running
	CodeOutcomeUnknown      Code = "outcome-unknown"        // 409: the first attempt may have run, its outcome is not known
	CodeFenced              Code = "fenced"                 // 409: a later reservation superseded the token
	CodeDuplicateKey        Code = "duplicate-key"          // 409: a live job holds the job's key or deduplication lock
	CodeConflict            Code = "conflict"               // 409: the state does not allow this call
	CodeSequenceGap         Code = "sequence-gap"           // 409: a structured id skips a sequence of its client
	CodeTooManyLogs         Code = "too-many-logs"          // 409: the manager keeps as many logs as it may
	CodeTooManyWriters      Code = "too-many-writers"       // 409: the log has as many writers as it may
	CodeAnswerNotRecorded   Code = "answer-not-recorded"    // 410: the work ran, but its answer was too large to keep
	CodeCursorGone          Code = "cursor-gone"            // 410: the log's retention has deleted what follows the cursor
	CodeTooLarge            Code = "too-large"              // 413: body or result over the limit
	CodeUnsupportedMedia    Code = "unsupported-media"      // 415: content type is neither JSON nor raw
	CodeWrongShard          Code = "wrong-shard"            // 421: the call is meant for another shard than this manager's
	CodeWrongLedger         Code = "wrong-ledger"           // 421: the caller last met another ledger than this manager's
	CodeKeyMoved            Code = "key-moved"              // 421: another shard of the manager's list owns the key, and it has no entry here
	CodeWrongHome           Code = "wrong-home"             // 421: another data centre decides about the key
	CodeFingerprintMismatch Code = "fingerprint-mismatch"   // 422: the key was used for another request
	CodePayloadMismatch     Code = "payload-mismatch"       // 422: the entry's id was used for another payload
	CodeNotWritten          Code = "not-written"            // 424: another entry of the atomic batch was refused
	CodeInternal            Code = "internal"               // 500
	CodeRecordUnreadable    Code = "record-unreadable"      // 500: the stored record cannot be read
	CodeBodyModeUnavailable Code = "body-mode-unavailable"  // 500: the proxy does not show request bodies to the gate
	CodeLogsUnsupported     Code = "logs-unsupported"       // 501: the manager's engine keeps no logs
	CodeManagerUnavailable  Code = "manager-unavailable"    // 503: the gate cannot reach the ledger
	CodeUnavailable         Code = "unavailable"            // 503: starting, stopping or failed
	CodeOverloaded          Code = "overloaded"             // 503: load is shed
	CodeLargeAnswer         Code = "large-answer"           // 503: the recorded answer is too large for this stream; make the call on a stream for large messages
	CodeLedgerFull          Code = "ledger-full"            // 503: the window is full of entries that have not expired
	CodeQuarantine          Code = "quarantine"             // 503: the ledger may have forgotten the key
	CodeWindowFull          Code = "window-full"            // 503: the log's window is full of ids that have not expired
	CodeHomeUnavailable     Code = "home-unavailable"       // 503: the data centre that decides about the key cannot be reached; nothing was changed
	CodeHomeUnanswered      Code = "home-unanswered"        // 503: the data centre that decides about the key did not answer; the outcome is unknown
	CodeInsufficientStorage Code = "insufficient-storage"   // 503: the disk is full
	CodeQueueFull           Code = "queue-full"             // 503: the jobs, or those of this submitter, take as many bytes as they may
	CodeStoreFull           Code = "store-full"             // 503: the store has used up its quota
	CodeStoreUnreachable    Code = "store-unreachable"      // 503: the manager cannot reach its store; nothing was changed
)

// TypePrefix starts the type URI of every problem.
const TypePrefix = "urn:oncegate:problem:"

// Problem is an RFC 9457 problem.
type Problem struct {
	Status int    `json:"status"`
	Code   Code   `json:"code"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// RetryAfterSeconds, when positive, is also sent as Retry-After.
	RetryAfterSeconds int `json:"-"`
}

// AppendJSON appends the problem as a JSON object with the members type,
// title, status, code and, when set, detail.
func (p *Problem) AppendJSON(dst []byte) []byte { return p.AppendTyped(dst, TypePrefix) }

// MarshalJSON is AppendJSON for encoding/json.
func (p Problem) MarshalJSON() ([]byte, error) { return p.AppendJSON(nil), nil }

// AppendTyped is AppendJSON with another beginning of the type than TypePrefix. base is a URI, so it needs
// no escapes in JSON.
func (p *Problem) AppendTyped(dst []byte, base string) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, base...)
	dst = append(dst, p.Code...)
	dst = append(dst, `","title":`...)
	dst = AppendJSONString(dst, p.Title)
	dst = append(dst, `,"status":`...)
	dst = strconv.AppendInt(dst, int64(p.Status), 10)
	dst = append(dst, `,"code":"`...)
	dst = append(dst, p.Code...)
	dst = append(dst, '"')
	if p.Detail != "" {
		dst = append(dst, `,"detail":`...)
		dst = AppendJSONString(dst, p.Detail)
	}
	return append(dst, '}')
}

// AppendJSONString appends s as a JSON string. Bytes that are not UTF-8
// become U+FFFD, so the output is always valid JSON.
func AppendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	plain := 0 // bytes that stand for themselves
	for plain < len(s) && s[plain] >= 0x20 && s[plain] < 0x7f && s[plain] != '"' && s[plain] != '\\' {
		plain++
	}
	dst = append(dst, s[:plain]...)
	for _, r := range s[plain:] { // invalid bytes arrive as U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < 0x20 || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = append(dst, string(r)...)
		}
	}
	return append(dst, '"')
}
