package server

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Refusal is an error that is a problem already.
type Refusal struct{ P api.Problem }

func (e *Refusal) Error() string {
	if e.P.Detail != "" {
		return e.P.Detail
	}
	return e.P.Title
}

// Problem returns the problem.
func (e *Refusal) Problem() api.Problem { return e.P }

// Problemer is an error that knows how it is answered. Errors of the domain may
// implement it; ProblemOf finds it through wrapping.
type Problemer interface {
	error
	Problem() api.Problem
}

// Seconds that callers are asked to wait.
const (
	retrySoon  = 1 // load, conflicts, a pending attempt
	retryLater = 5 // storage, a store that is away
)

// ProblemOf tells how an error is answered.
func ProblemOf(err error) api.Problem {
	var p Problemer
	var state *ledger.StateError
	var unreadable *store.UnreadableError
	var full *ledger.FullError
	var moved *ledger.MovedError
	switch {
	case errors.As(err, &p):
		return p.Problem()
	case errors.As(err, &unreadable):
		return api.Problem{
			Status: 500, Code: api.CodeRecordUnreadable, Title: "Record unreadable",
			Detail: unreadable.Error() + "; nothing was changed, and an operator has to look at it: manager unreadable list",
		}
	case errors.Is(err, ledger.ErrFenced):
		return api.Problem{
			Status: 409, Code: api.CodeFenced, Title: "Fenced",
			Detail: "another attempt holds or has finished this key; the outcome was not recorded",
		}
	case errors.As(err, &state):
		return api.Problem{
			Status: 409, Code: api.CodeConflict, Title: "Conflict",
			Detail: "the entry is " + state.State.String() + ": only one that is unknown can be resolved",
		}
	case errors.Is(err, ledger.ErrConflict):
		return api.Problem{
			Status: 409, Code: api.CodeConflict, Title: "Conflict",
			Detail: "this attempt already ended with another outcome, which stays",
		}
	case errors.Is(err, ledger.ErrOutcomeUnknown):
		return api.Problem{
			Status: 409, Code: api.CodeOutcomeUnknown, Title: "Outcome unknown",
			Detail: "the first request with this idempotency key may have been executed, and its outcome is not known; it is not executed again: find out what it did before you ask again under another key",
		}
	case errors.Is(err, ledger.ErrFingerprintMismatch):
		return api.Problem{
			Status: 422, Code: api.CodeFingerprintMismatch, Title: "Idempotency key reused",
			Detail: "the idempotency key was used for another request",
		}
	case errors.As(err, &moved):
		return api.Problem{
			Status: 421, Code: api.CodeKeyMoved, Title: "Key moved",
			Detail: "the shard " + strconv.Quote(moved.Owner) + " owns this key, and nothing is left of it here; ask that shard",
		}
	case errors.As(err, &full):
		detail := "the window is full of entries that have not expired; nothing was changed"
		if full.Share {
			detail = "this scope holds its share of the window, which is filling up; nothing was changed"
		}
		return api.Problem{
			Status: 503, Code: api.CodeLedgerFull, Title: "Ledger full", Detail: detail,
			RetryAfterSeconds: int((full.RetryAfter + time.Second - 1) / time.Second),
		}
	case errors.Is(err, ledger.ErrTooLarge), errors.Is(err, store.ErrTooLarge):
		return api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: "the result is larger than this manager records; record it with body_omitted instead",
		}
	case errors.Is(err, ledger.ErrNotFound):
		return api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: "no such entry"}
	case errors.Is(err, ledger.ErrCursor):
		return api.Problem{
			Status: 400, Code: api.CodeInvalidRequest, Title: "Invalid request",
			Detail: "cursor: must be the cursor of the page before, with the same state",
		}
	case errors.Is(err, store.ErrNoSpace):
		return api.Problem{
			Status: 503, Code: api.CodeInsufficientStorage, Title: "Insufficient storage", RetryAfterSeconds: retryLater,
			Detail: "no space is left for writing; nothing was changed",
		}
	case errors.Is(err, store.ErrConflict):
		return api.Problem{
			Status: 503, Code: api.CodeOverloaded, Title: "Overloaded", RetryAfterSeconds: retrySoon,
			Detail: "too many concurrent changes; nothing was changed",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: retrySoon,
			Detail: "the store did not answer in time; the outcome is unknown, repeat the call with the same token",
		}
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrFailed), errors.Is(err, store.ErrClosed),
		errors.Is(err, context.Canceled):
		return api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: retryLater,
			Detail: "the store is not available; the outcome is unknown, repeat the call with the same token",
		}
	default:
		return api.Problem{Status: 500, Code: api.CodeInternal, Title: "Internal error"}
	}
}

// Error answers with the problem for err. Errors without one of their own are
// logged here, where they leave the program.
func (r *Request) Error(w *Response, err error) {
	p := r.problem(err, nil)
	w.Problem(&p)
}

// problem is how an error is answered, of the request or of an item of it that came with
// those headers.
func (r *Request) problem(err error, item []api.Header) api.Problem {
	p := ProblemOf(err)
	if errors.Is(err, context.Canceled) && r.Left() {
		// It may have closed one direction only, and still read this.
		p = clientLeft()
	}
	if p.Status == 500 && !r.server.opts.Unreadable.Met(err) { // which tells of each once
		args := []any{"method", r.Method, "path", r.Path, "error", err.Error()}
		for _, name := range [...]string{"x-request-id", "traceparent"} {
			if id := r.trace(name, item); id != "" {
				args = append(args, name, clip(id))
			}
		}
		r.server.log.Error("request failed", args...)
	}
	return p
}

// trace returns a header that ties a call to the request that caused it: the item's own, or
// that of the request which brought the item.
func (r *Request) trace(name string, item []api.Header) string {
	for i := range item {
		if item[i].Name == name {
			return item[i].Value
		}
	}
	return r.Header(name)
}

func clientLeft() api.Problem {
	return api.Problem{
		Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: retrySoon,
		Detail: "the client closed its side of the connection while the call was held, and was taken for gone; repeat the call with the same token",
	}
}
