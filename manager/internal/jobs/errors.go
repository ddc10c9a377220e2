package jobs

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Errors for errors.Is. The typed errors below wrap them and name the job, key or field.
var (
	// ErrInvalid: a field of the request is missing, malformed or out of
	// bounds; always a *FieldError.
	ErrInvalid = errors.New("jobs: invalid request")
	// ErrTooLarge: a payload or result is over its limit; always a *FieldError.
	ErrTooLarge = errors.New("jobs: too large")
	// ErrNotFound: there is no such job or dead letter; always
	// a *NotFoundError.
	ErrNotFound = errors.New("jobs: not found")
	// ErrDuplicateKey: a live job holds the key or the deduplication lock; always a *DuplicateKeyError.
	ErrDuplicateKey = errors.New("jobs: duplicate key")
	// ErrFenced: the lease token is not the job's current one, because the lease ran out and was revoked, or the job
	// was finished or handed back under another token. Always a *FencedError.
	ErrFenced = errors.New("jobs: fenced")
	// ErrConflict: the job's state does not allow the call; always a
	// *StateError.
	ErrConflict = errors.New("jobs: the job's state does not allow this")
	// ErrForbidden: the caller may not work on jobs of this function; always a
	// *ForbiddenError.
	ErrForbidden = errors.New("jobs: forbidden")
	// ErrQuarantine: the queue was restored to an older point, and may have forgotten the job with the proposed id; always
	// a *QuarantineError.
	ErrQuarantine = errors.New("jobs: the id may be that of a forgotten job")
	// ErrFull: the jobs, or those of one submitter, take as many bytes as they may; always a *FullError.
	ErrFull = errors.New("jobs: the queue is full")
	// ErrOverloaded: as many calls wait as Options.MaxWaiters allows.
	ErrOverloaded error = &unavailableError{api.CodeOverloaded, "too many calls wait"}
	// ErrClosed is returned by calls after Close.
	ErrClosed error = &unavailableError{api.CodeUnavailable, "the queue is closed"}
)

// unavailableError is a temporary error.
type unavailableError struct {
	code   api.Code
	detail string
}

func (e *unavailableError) Error() string { return "jobs: " + e.detail }

// Problem returns the HTTP answer: 503.
func (e *unavailableError) Problem() api.Problem {
	return api.Problem{Status: 503, Code: e.code, Title: "Unavailable", Detail: e.detail, RetryAfterSeconds: 1}
}

// QuarantineError says for how long an id may be that of a job that a restore forgot.
type QuarantineError struct{ RetryAfter time.Duration }

func (e *QuarantineError) Error() string { return ErrQuarantine.Error() }

// Unwrap returns ErrQuarantine.
func (e *QuarantineError) Unwrap() error { return ErrQuarantine }

// Problem returns the HTTP answer: 503.
func (e *QuarantineError) Problem() api.Problem {
	return api.Problem{
		Status: 503, Code: api.CodeQuarantine, Title: "Quarantine",
		Detail:            "this queue may have forgotten the job with this id; nothing was changed",
		RetryAfterSeconds: int((e.RetryAfter + time.Second - 1) / time.Second),
	}
}

// FullError is the answer to a submission for which there is no room.
type FullError struct {
	// Owner is the Submission.Owner whose jobs take their share, empty if all jobs together take as much as they may.
	Owner string
	// Bytes is what the jobs take, Allowed what they may.
	Bytes, Allowed int64
}

func (e *FullError) Error() string {
	whose := "all jobs"
	if e.Owner != "" {
		whose = "this submitter's waiting and running jobs"
	}
	return fmt.Sprintf("%s take %d bytes; allowed: at most %d with the new job; nothing was changed", whose, e.Bytes, e.Allowed)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// Problem returns the HTTP answer: 503.
func (e *FullError) Problem() api.Problem {
	return api.Problem{Status: 503, Code: api.CodeQueueFull, Title: "Queue full", Detail: e.Error(), RetryAfterSeconds: 5}
}

// FieldError says what is wrong with one field of a request.
type FieldError struct {
	// Field is the field's name on the wire, for example "max_attempts".
	Field string
	// Value is the offending value, shortened to at most 64 characters; empty if the field is missing.
	Value string
	// Allowed completes the sentence "allowed: ...".
	Allowed string
	// TooLarge: the value is well-formed but over a size limit.
	TooLarge bool
}

func (e *FieldError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("field %s: is missing; allowed: %s", e.Field, e.Allowed)
	}
	return fmt.Sprintf("field %s: %s is not allowed; allowed: %s", e.Field, e.Value, e.Allowed)
}

// Unwrap returns ErrTooLarge or ErrInvalid.
func (e *FieldError) Unwrap() error {
	if e.TooLarge {
		return ErrTooLarge
	}
	return ErrInvalid
}

// Problem returns the HTTP answer: 400 or 413.
func (e *FieldError) Problem() api.Problem {
	if e.TooLarge {
		return api.Problem{Status: 413, Code: api.CodeTooLarge, Title: "Too large", Detail: e.Error()}
	}
	return api.Problem{Status: 400, Code: api.CodeInvalidRequest, Title: "Invalid request", Detail: e.Error()}
}

func invalid(field, value, allowed string) error {
	return &FieldError{Field: field, Value: quote(value), Allowed: allowed}
}

func invalidInt(field string, value int64, allowed string) error {
	return &FieldError{Field: field, Value: strconv.FormatInt(value, 10), Allowed: allowed}
}

func tooLarge(field string, size, limit int) error {
	return &FieldError{
		Field:    field,
		Value:    strconv.Itoa(size) + " bytes",
		Allowed:  "at most " + strconv.Itoa(limit) + " bytes",
		TooLarge: true,
	}
}

// quote makes an untrusted value safe to show: quoted, ASCII, short.
func quote(v string) string {
	const most = 48
	cut := ""
	if len(v) > most {
		v, cut = v[:most], "..."
	}
	return strconv.QuoteToASCII(v) + cut
}

// NotFoundError says what is missing.
type NotFoundError struct {
	// Kind is "job" or "dead letter".
	Kind string
	// ID is what was asked for.
	ID string
}

func (e *NotFoundError) Error() string { return "no " + e.Kind + " " + quote(e.ID) }

// Unwrap returns ErrNotFound.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// Problem returns the HTTP answer: 404.
func (e *NotFoundError) Problem() api.Problem {
	return api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: e.Error()}
}

// DuplicateKeyError is the answer to a submission, or to a retry, whose key or deduplication lock a live job holds.
type DuplicateKeyError struct {
	// Key is empty if it is the lock.
	Key string
	// Holder is the id of the job that holds it.
	Holder string
	// State is the holder's state. CancelRequested: it was cancelled, and its worker has not let go of it yet.
	State           State
	CancelRequested bool
}

// duplicate is the answer to a call that a live job stands against.
func (r *record) duplicate(key string) error {
	return &DuplicateKeyError{Key: key, Holder: r.ID, State: r.State, CancelRequested: r.CancelRequested}
}

func (e *DuplicateKeyError) Error() string {
	what := "the deduplication lock"
	if e.Key != "" {
		what = "key " + quote(e.Key)
	}
	text := what + " is held by job " + e.Holder + ", which is " + e.State.String()
	if e.CancelRequested {
		text += ": it was cancelled, but its worker has not let go of it yet"
	}
	return text
}

// Unwrap returns ErrDuplicateKey.
func (e *DuplicateKeyError) Unwrap() error { return ErrDuplicateKey }

// Problem returns the HTTP answer: 409.
func (e *DuplicateKeyError) Problem() api.Problem {
	return api.Problem{Status: 409, Code: api.CodeDuplicateKey, Title: "Duplicate key", Detail: e.Error()}
}

// FencedError is the answer to a call with a stale lease token.
type FencedError struct {
	// ID is the job's.
	ID string
	// State is the job's state now.
	State State
	// Timeout is the job's if the attempt has reached it, else 0.
	Timeout time.Duration
}

func (e *FencedError) Error() string {
	if e.Timeout > 0 {
		return "the attempt at job " + e.ID + " has reached its timeout of " + e.Timeout.String()
	}
	return "the lease token of job " + e.ID + " is not the current one; the job is " + e.State.String()
}

// Unwrap returns ErrFenced.
func (e *FencedError) Unwrap() error { return ErrFenced }

// Problem returns the HTTP answer: 409.
func (e *FencedError) Problem() api.Problem {
	return api.Problem{Status: 409, Code: api.CodeFenced, Title: "Fenced", Detail: e.Error()}
}

// ForbiddenError is the answer to a worker's call about a job of a function that it may not work on.
type ForbiddenError struct {
	// ID is the job's.
	ID string
}

func (e *ForbiddenError) Error() string {
	return "these credentials do not allow work on the function of job " + e.ID
}

// Unwrap returns ErrForbidden.
func (e *ForbiddenError) Unwrap() error { return ErrForbidden }

// Problem returns the HTTP answer: 403.
func (e *ForbiddenError) Problem() api.Problem {
	return api.Problem{Status: 403, Code: api.CodeForbidden, Title: "Forbidden", Detail: e.Error()}
}

// StateError is the answer to a call that the job's state does not allow.
type StateError struct {
	// ID is the job's.
	ID string
	// State is the job's state now.
	State State
	// Reason completes the sentence "job <id> is <state>: ...".
	Reason string
}

func (e *StateError) Error() string {
	return "job " + e.ID + " is " + e.State.String() + ": " + e.Reason
}

// Unwrap returns ErrConflict.
func (e *StateError) Unwrap() error { return ErrConflict }

// Problem returns the HTTP answer: 409.
func (e *StateError) Problem() api.Problem {
	return api.Problem{Status: 409, Code: api.CodeConflict, Title: "Conflict", Detail: e.Error()}
}
