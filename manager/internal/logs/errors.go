package logs

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Error is a refusal that knows how it is answered.
type Error struct{ P api.Problem }

func (e *Error) Error() string { return e.P.Detail }

// Problem implements the server's interface for such errors.
func (e *Error) Problem() api.Problem { return e.P }

func refusal(status int, code api.Code, title, format string, args ...any) *Error {
	return &Error{api.Problem{Status: status, Code: code, Title: title, Detail: fmt.Sprintf(format, args...)}}
}

// again refuses a call that may be repeated after some seconds.
func again(seconds int, code api.Code, title, format string, args ...any) error {
	e := refusal(503, code, title, format, args...)
	e.P.RetryAfterSeconds = seconds
	return e
}

// Refusals that do not depend on the engine.

// NoSuchLog is for a log that was not made.
func NoSuchLog(name string) error {
	return refusal(404, api.CodeNotFound, "Not found", "the log %q does not exist; PUT /v1/logs/{log} makes one", shorten(name))
}

// NoSuchWriter is for a writer that has no epoch.
func NoSuchWriter(writer string) error {
	return refusal(404, api.CodeNotFound, "Not found", "the log has no writer %q", shorten(writer))
}

// noSuchID is for an id that is not in the window.
func noSuchID() error {
	return refusal(404, api.CodeNotFound, "Not found", "the log's window holds no entry with this id")
}

// EntryGone is for an id whose entry retention has deleted.
func EntryGone(number uint64) error {
	return refusal(404, api.CodeNotFound, "Not found", "the id belongs to entry %d, which the log's retention has deleted", number)
}

// CursorGone is for a reader that retention has overtaken.
func CursorGone(after, first uint64) error {
	return refusal(410, api.CodeCursorGone, "Entries deleted",
		"the log's retention has deleted entries after cursor %d; the oldest that is kept is %d, which comes after cursor %d", after, first, first-1)
}

// CursorAhead is for a cursor that the log never gave out.
func CursorAhead(after, last uint64) error {
	return &api.FieldError{Field: "after", Value: fmt.Sprint(after), Allowed: fmt.Sprintf("must be a cursor that this log gave out; its last entry is %d", last)}
}

// Full is for new ids when the window is full and forgets none early.
func Full(seconds int) error {
	return again(seconds, api.CodeWindowFull, "Window full", "the log's window is full of ids that have not expired; nothing was written")
}

// TooManyLogs is for a log more than the manager keeps.
func TooManyLogs(most int) error {
	return refusal(409, api.CodeTooManyLogs, "Too many logs", "this manager keeps at most %d logs (--max-logs)", most)
}

// TooManyWriters is for a writer more than a log has.
func TooManyWriters() error {
	return refusal(409, api.CodeTooManyWriters, "Too many writers",
		"the log has %d writers already; an administrator can remove one: DELETE /v1/logs/{log}/writers/{writer}", MaxWriters)
}

// NotToChange is for a change of a log by a caller who may only make one.
func NotToChange(name string) error {
	return refusal(403, api.CodeForbidden, "Forbidden", "the log %q is there and has another configuration, which only administrators may change", shorten(name))
}

// IsNotToChange reports whether err is NotToChange's.
func IsNotToChange(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.P.Code == api.CodeForbidden
}

// OtherIdentity is for a change of what ids a log takes.
func OtherIdentity(has Identity) error {
	return refusal(409, api.CodeConflict, "Conflict", "identity: the log was made with %q, which stays", has)
}

// notWritten is for the items of an atomic batch of which another one was refused.
func notWritten() error {
	return refusal(424, api.CodeNotWritten, "Not written", "another entry of the atomic batch was refused, so none was written")
}

// Unsupported is for managers that keep no logs.
func Unsupported(why string) error {
	return refusal(501, api.CodeLogsUnsupported, "No logs", "this manager keeps no logs: %s", why)
}

// NoSpace is for an append when the medium is full.
func NoSpace() error {
	return again(5, api.CodeInsufficientStorage, "Insufficient storage", "no space is left for writing; nothing was written")
}

// TooLarge is for a batch that does not fit into one record.
func TooLarge() error {
	return refusal(413, api.CodeTooLarge, "Too large", "the batch is too large; nothing was written")
}

// Unknown is for a call of which nobody knows what it wrote, and why.
func Unknown(seconds int, why string) error {
	return again(seconds, api.CodeUnavailable, "Unavailable", "%s; what was written is unknown: repeat the call with the same ids", why)
}

// Busy is for a call that did not get its turn.
func Busy() error {
	return again(1, api.CodeUnavailable, "Unavailable", "the log has too many calls under way; nothing was written")
}

// quarantined is for an id that the log does not know, and may have forgotten.
func quarantined(left time.Duration) error {
	return again(int((left+time.Second-1)/time.Second), api.CodeQuarantine, "Quarantine",
		"this log may have forgotten this id; it takes no new ids until what it forgot would have left the window; nothing was written")
}

func mismatch() error {
	return refusal(422, api.CodePayloadMismatch, "Id reused", "the id was used for another payload")
}

func gap(format string, args ...any) error {
	return refusal(409, api.CodeSequenceGap, "Sequence gap", format, args...)
}

func fenced(format string, args ...any) error {
	return refusal(409, api.CodeFenced, "Fenced", format, args...)
}
