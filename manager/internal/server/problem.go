package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// ProblemOf returns the answer to an error.
func ProblemOf(err error) api.Problem {
	var p httpd.Problemer
	var state *ledger.StateError
	var imported *ledger.ImportedError
	var unreadable *store.UnreadableError
	var full *ledger.FullError
	var limit *store.LimitError
	var moved *ledger.MovedError
	var quarantine *ledger.QuarantineError
	var away *ledger.HomeError
	switch {
	case errors.As(err, &p):
		return p.Problem()
	case errors.As(err, &unreadable):
		return api.Problem{
			Status: 500, Code: api.CodeRecordUnreadable, Title: "Record unreadable",
			Detail: unreadable.Error() + "; nothing was changed, and an operator has to look at it: oncegate unreadable list",
		}
	case errors.Is(err, submit.ErrPending):
		return api.Problem{
			Status: 409, Code: api.CodePending, Title: "Request pending", RetryAfterSeconds: httpd.RetrySoon,
			Detail: "the first attempt with this idempotency key is still running",
		}
	case errors.Is(err, submit.ErrNotRecorded):
		return api.Problem{
			Status: 410, Code: api.CodeAnswerNotRecorded, Title: "Answer not recorded",
			Detail: "the submission was accepted, but its answer was too large to keep",
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
	case errors.As(err, &imported):
		return api.Problem{Status: 409, Code: api.CodeConflict, Title: "Conflict", Detail: imported.Error()}
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
	case errors.As(err, &away):
		return api.Problem{
			Status: 421, Code: api.CodeWrongHome, Title: "Wrong home",
			Detail: "the data centre " + strconv.Quote(away.Home) + " decides about this key; nothing was changed",
		}
	case errors.As(err, &quarantine):
		return api.Problem{
			Status: 503, Code: api.CodeQuarantine, Title: "Quarantine",
			Detail:            "this ledger may have forgotten this key; it takes no new keys until what it forgot would have expired; nothing was changed",
			RetryAfterSeconds: int((quarantine.RetryAfter + time.Second - 1) / time.Second),
		}
	case errors.As(err, &full):
		detail := "the ledger remembers as many idempotency keys as it may (its window), and none of them has expired; nothing was changed"
		if full.Share {
			detail = "the ledger's window is filling up, and the idempotency keys of this scope hold their share of it; nothing was changed"
		}
		return api.Problem{
			Status: 503, Code: api.CodeLedgerFull, Title: "Ledger full", Detail: detail,
			RetryAfterSeconds: int((full.RetryAfter + time.Second - 1) / time.Second),
		}
	case errors.As(err, &limit):
		return api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: fmt.Sprintf("the store takes no such transaction: %s: %d, at most %d; nothing was changed", limit.What, limit.Value, limit.Allowed),
		}
	case errors.Is(err, ledger.ErrTooLarge), errors.Is(err, store.ErrTooLarge):
		return api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: "the result is larger than this manager records; record it with body_omitted instead",
		}
	case errors.Is(err, ledger.ErrNotFound):
		return api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: "the ledger does not remember such an entry (any more)"}
	case errors.Is(err, ledger.ErrCursor):
		return api.Problem{
			Status: 400, Code: api.CodeInvalidRequest, Title: "Invalid request",
			Detail: "cursor: must be the cursor of the page before, with the same state",
		}
	case errors.Is(err, store.ErrFull):
		return api.Problem{
			Status: 503, Code: api.CodeStoreFull, Title: "Store full", RetryAfterSeconds: httpd.RetryLater,
			Detail: "the store has used up its quota, and an operator must make space; nothing was changed",
		}
	case errors.Is(err, store.ErrNoSpace):
		return api.Problem{
			Status: 503, Code: api.CodeInsufficientStorage, Title: "Insufficient storage", RetryAfterSeconds: httpd.RetryLater,
			Detail: "no space is left for writing; nothing was changed",
		}
	case errors.Is(err, store.ErrConflict):
		return api.Problem{
			Status: 503, Code: api.CodeOverloaded, Title: "Overloaded", RetryAfterSeconds: httpd.RetrySoon,
			Detail: "too many concurrent changes; nothing was changed",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: httpd.RetrySoon,
			Detail: "the store did not answer in time; the outcome is unknown, repeat the call with the same token",
		}
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrFailed), errors.Is(err, store.ErrClosed),
		errors.Is(err, context.Canceled):
		return api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: httpd.RetryLater,
			Detail: "the store is not available; the outcome is unknown, repeat the call with the same token",
		}
	default:
		return api.Problem{Status: 500, Code: api.CodeInternal, Title: "Internal error"}
	}
}
