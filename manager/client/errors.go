package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Error is an answer that is not a success, from the manager or from a proxy on the way to it.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code names the problem. It is empty when the answer was not a problem document of the manager.
	Code api.Code
	// Detail says what is wrong.
	Detail string
	// RetryAfter is how long the manager asks the caller to wait; 0 if it does not.
	RetryAfter time.Duration
	// Replayed: the answer was recorded for an earlier attempt with the same key. Another attempt would get it again.
	Replayed bool
}

func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("manager: HTTP status %d: %s", e.Status, e.Detail)
	}
	return fmt.Sprintf("manager: %s: %s", e.Code, e.Detail)
}

// Temporary reports whether the same call may succeed later, without an operator: a recorded answer stays, and so does a
// record that the manager cannot read (api.CodeRecordUnreadable).
func (e *Error) Temporary() bool {
	if e.Replayed || e.Code == api.CodeRecordUnreadable {
		return false
	}
	switch e.Status {
	case 408, 425, 429, 500, 502, 503, 504:
		return true
	}
	return e.Code == api.CodePending
}

// HasCode reports whether err is an answer of the manager with this code.
func HasCode(err error, code api.Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Causes of the end of a handler's context, for context.Cause.
var (
	// ErrCancelled: the job was cancelled.
	ErrCancelled = errors.New("client: the job was cancelled")
	// ErrLeaseLost: another worker has the job, or will get it.
	ErrLeaseLost = errors.New("client: the job's lease is lost")
	// ErrTimeout: the attempt has reached the job's Timeout. The manager queues the job again, or fails it.
	ErrTimeout = errors.New("client: the attempt has reached the job's timeout")
	// ErrStopping: the worker is stopping and its StopTimeout is over.
	ErrStopping = errors.New("client: the worker is stopping")
)

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent makes a handler's error final: the job fails even if attempts remain. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type retryError struct {
	error
	after time.Duration
}

func (e retryError) Unwrap() error { return e.error }

// RetryAfter sets when the next attempt begins, instead of the manager's backoff: after d, 0 to 366 days.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return retryError{err, d}
}
