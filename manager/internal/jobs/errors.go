package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Errors for errors.Is. A *FieldError wraps the first two, and an *Error each of the others. ErrOverloaded and ErrClosed are
// such errors themselves.
var (
	// ErrInvalid: a field of the request is missing, malformed or out of bounds.
	ErrInvalid = errors.New("jobs: invalid request")
	// ErrTooLarge: a payload or result is over its limit.
	ErrTooLarge = errors.New("jobs: too large")
	// ErrNotFound: there is no such job, dead letter, batch or schedule.
	ErrNotFound = errors.New("jobs: not found")
	// ErrDuplicateKey: a live job holds the key or the deduplication lock.
	ErrDuplicateKey = errors.New("jobs: duplicate key")
	// ErrFenced: the lease token is not the job's current one, because the lease ran out and was revoked, or the job
	// was finished or handed back under another token. Or the attempt has reached its timeout.
	ErrFenced = errors.New("jobs: fenced")
	// ErrConflict: the job's state does not allow the call.
	ErrConflict = errors.New("jobs: the job's state does not allow this")
	// ErrForbidden: the caller may not work on jobs of this function.
	ErrForbidden = errors.New("jobs: forbidden")
	// ErrQuarantine: the queue was restored to an older point, and may have forgotten the job with the proposed id.
	ErrQuarantine = errors.New("jobs: the id may be that of a forgotten job")
	// ErrFull: the jobs, or those of one submitter, take as many bytes as they may.
	ErrFull = errors.New("jobs: the queue is full")
	// ErrOverloaded: as many calls wait as Options.MaxWaiters allows.
	ErrOverloaded = unavailable(api.CodeOverloaded, "too many calls wait")
	// ErrClosed is returned by calls after Close.
	ErrClosed = unavailable(api.CodeUnavailable, "the queue is closed")
)

// Error is the queue's answer to a call that it does not carry out.
type Error struct {
	// Kind is which of the errors above it is; nil for ErrOverloaded and ErrClosed.
	Kind error
	// P is the HTTP answer. Its detail is the error's text.
	P api.Problem
	// ID is what was asked for, usually a job; with ErrDuplicateKey, the job that holds the key or the lock.
	ID string
	// State is the state of the job ID now, for ErrDuplicateKey, ErrFenced and ErrConflict. CancelRequested: the holder was
	// cancelled, and its worker has not let go of it yet.
	State           State
	CancelRequested bool
	// Key is the key that is held, empty if it is the lock.
	Key string
	// Owner is the Submission.Owner whose jobs take their share, empty if all jobs together take as much as they may:
	// Allowed bytes.
	Owner   string
	Allowed int64
	// Timeout is the job's if the attempt has reached it, else 0.
	Timeout time.Duration

	text string // instead of the detail
}

func (e *Error) Error() string { return cmp.Or(e.text, e.P.Detail) }

// Unwrap returns Kind.
func (e *Error) Unwrap() error { return e.Kind }

// Problem returns the HTTP answer.
func (e *Error) Problem() api.Problem { return e.P }

func refuse(kind error, status int, code api.Code, title, detail string) *Error {
	return &Error{Kind: kind, P: api.Problem{Status: status, Code: code, Title: title, Detail: detail}}
}

// unavailable is a temporary error.
func unavailable(code api.Code, detail string) error {
	e := refuse(nil, 503, code, "Unavailable", detail)
	e.P.RetryAfterSeconds, e.text = 1, "jobs: "+detail
	return e
}

// quarantined refuses an id that may be that of a job which a restore forgot, for the time left.
func quarantined(left time.Duration) error {
	e := refuse(ErrQuarantine, 503, api.CodeQuarantine, "Quarantine", "this queue may have forgotten the job with this id; nothing was changed")
	e.P.RetryAfterSeconds, e.text = int((left+time.Second-1)/time.Second), ErrQuarantine.Error()
	return e
}

// full refuses a submission for which there is no room, because the jobs of owner, or all if it is empty, take that many
// bytes of those allowed.
func full(owner string, bytes, allowed int64) error {
	whose := "all jobs"
	if owner != "" {
		whose = "this submitter's waiting and running jobs"
	}
	e := refuse(ErrFull, 503, api.CodeQueueFull, "Queue full",
		fmt.Sprintf("%s take %d bytes; allowed: at most %d with the new job; nothing was changed", whose, bytes, allowed))
	e.P.RetryAfterSeconds, e.Owner, e.Allowed = 5, owner, allowed
	return e
}

// NotFound is the error of a call that names what does not exist; kind is for example "job".
func NotFound(kind, id string) error {
	e := refuse(ErrNotFound, 404, api.CodeNotFound, "Not found", "no "+kind+" "+quote(id))
	e.ID = id
	return e
}

// duplicate refuses a submission or a retry whose key, or deduplication lock if key is empty, a live job holds.
func (j *Job) duplicate(key string) error {
	what := "the deduplication lock"
	if key != "" {
		what = "key " + quote(key)
	}
	text := what + " is held by job " + j.ID + ", which is " + j.State.String()
	if j.CancelRequested {
		text += ": it was cancelled, but its worker has not let go of it yet"
	}
	e := refuse(ErrDuplicateKey, 409, api.CodeDuplicateKey, "Duplicate key", text)
	e.ID, e.State, e.CancelRequested, e.Key = j.ID, j.State, j.CancelRequested, key
	return e
}

// fenced refuses a stale lease token or, if timeout is not 0, an attempt that has reached its timeout.
func (j *Job) fenced(timeout time.Duration) error {
	text := "the lease token of job " + j.ID + " is not the current one; the job is " + j.State.String()
	if timeout > 0 {
		text = "the attempt at job " + j.ID + " has reached its timeout of " + timeout.String()
	}
	e := refuse(ErrFenced, 409, api.CodeFenced, "Fenced", text)
	e.ID, e.State, e.Timeout = j.ID, j.State, timeout
	return e
}

// conflict refuses a call that the job's state does not allow.
func (j *Job) conflict(reason string) error {
	e := refuse(ErrConflict, 409, api.CodeConflict, "Conflict", "job "+j.ID+" is "+j.State.String()+": "+reason)
	e.ID, e.State = j.ID, j.State
	return e
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
