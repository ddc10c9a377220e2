package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

type jobProblem struct{}

func (jobProblem) Error() string { return "a live job holds the key" }
func (jobProblem) Problem() api.Problem {
	return api.Problem{Status: 409, Code: api.CodeDuplicateKey, Title: "Duplicate key"}
}

// Every error that a handler may meet has its answer, also
// wrapped, and what may be tried again says when.
func TestEveryErrorHasItsProblem(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   api.Code
		retry  bool
	}{
		{ledger.ErrFenced, 409, api.CodeFenced, false},
		{ledger.ErrConflict, 409, api.CodeConflict, false},
		{ledger.ErrFingerprintMismatch, 422, api.CodeFingerprintMismatch, false},
		{&ledger.FullError{RetryAfter: 2500 * time.Millisecond}, 503, api.CodeLedgerFull, true},
		{&ledger.FullError{RetryAfter: time.Second, Share: true}, 503, api.CodeLedgerFull, true},
		{ledger.ErrTooLarge, 413, api.CodeTooLarge, false},
		{ledger.ErrNotFound, 404, api.CodeNotFound, false},
		{ledger.ErrCursor, 400, api.CodeInvalidRequest, false},
		{&store.UnreadableError{Collection: "jobs", Key: "j1", Reason: "it is damaged"}, 500, api.CodeRecordUnreadable, false},
		{store.ErrTooLarge, 413, api.CodeTooLarge, false},
		{store.ErrFull, 503, api.CodeStoreFull, true},
		{&store.LimitError{What: "bytes", Value: 2, Allowed: 1}, 413, api.CodeTooLarge, false},
		{store.ErrNoSpace, 503, api.CodeInsufficientStorage, true},
		{store.ErrConflict, 503, api.CodeOverloaded, true},
		{store.ErrUnavailable, 503, api.CodeUnavailable, true},
		{store.ErrFailed, 503, api.CodeUnavailable, true},
		{store.ErrClosed, 503, api.CodeUnavailable, true},
		{context.DeadlineExceeded, 503, api.CodeUnavailable, true},
		{context.Canceled, 503, api.CodeUnavailable, true},
		{api.ValidateKey(""), 400, api.CodeInvalidKey, false},
		{api.ValidateToken(""), 400, api.CodeInvalidRequest, false},
		{&api.RawError{Reason: "x"}, 400, api.CodeInvalidRequest, false},
		{jobProblem{}, 409, api.CodeDuplicateKey, false},
		{&httpd.Refusal{P: api.Problem{Status: 418, Code: "teapot", Title: "T"}}, 418, "teapot", false},
		{errors.New("secret detail"), 500, api.CodeInternal, false},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			p := ProblemOf(err)
			if p.Status != c.status || p.Code != c.code || (p.RetryAfterSeconds > 0) != c.retry || p.Title == "" {
				t.Errorf("%v: %+v", err, p)
			}
			if p.Code == api.CodeInternal && p.Detail != "" {
				t.Errorf("%v: an internal error is shown to strangers: %+v", err, p)
			}
		}
	}
}
