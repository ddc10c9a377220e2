package ledger

import (
	"errors"
	"time"
)

// Errors of the ledger; test with errors.Is. A call that returns one of them changed nothing. Calls also return
// *api.FieldError or *api.RawError for invalid requests, and the errors of package store; an entry that cannot be read
// gives a *store.UnreadableError.
var (
	// ErrFenced: the token is superseded: another attempt holds or has finished the entry.
	ErrFenced = errors.New("ledger: the reservation was taken over by another attempt")
	// ErrConflict: the attempt of this token already ended in another way.
	ErrConflict = errors.New("ledger: the attempt already ended with another outcome")
	// ErrFingerprintMismatch: the key was used for another request.
	ErrFingerprintMismatch = errors.New("ledger: the key was used for another request")
	// ErrOutcomeUnknown: the work of the key may have run, and its outcome is not known. It is not run again until the
	// entry expires or is resolved.
	ErrOutcomeUnknown = errors.New("ledger: the outcome of the first attempt is not known")
	// ErrFull: the window has no room for a new key, or the key's scope has its share of it. The error is a *FullError.
	ErrFull = errors.New("ledger: the window is full")
	// ErrKeyMoved: the key has no entry here, and another ledger owns it. The error is a *MovedError.
	ErrKeyMoved = errors.New("ledger: another shard owns the key")
	// ErrElsewhere: the entry belongs to a global key whose home is another data centre, which decides. The error is a
	// *HomeError.
	ErrElsewhere = errors.New("ledger: another data centre decides about the key")
	// ErrQuarantine: the ledger may have forgotten keys and takes no new ones
	// yet; the error is a *QuarantineError.
	ErrQuarantine = errors.New("ledger: it may have forgotten the key")
	// ErrTooLarge: the result is larger than Options.MaxResultBytes.
	ErrTooLarge = errors.New("ledger: the result is too large to be recorded")
	// ErrNotFound: there is no such entry.
	ErrNotFound = errors.New("ledger: no such entry")
	// ErrCursor: a listing's cursor was not made by this ledger.
	ErrCursor = errors.New("ledger: malformed cursor")
)

// MovedError is an ErrKeyMoved that says who owns the key.
type MovedError struct {
	// Owner is the name of the shard.
	Owner string
}

func (e *MovedError) Error() string { return "ledger: the shard " + e.Owner + " owns the key" }

// Is makes errors.Is find ErrKeyMoved.
func (e *MovedError) Is(target error) bool { return target == ErrKeyMoved }

// QuarantineError is an ErrQuarantine that says when it is over.
type QuarantineError struct {
	// RetryAfter is how much longer it lasts while the manager serves.
	RetryAfter time.Duration
}

func (e *QuarantineError) Error() string { return ErrQuarantine.Error() }

// Is makes errors.Is find ErrQuarantine.
func (e *QuarantineError) Is(target error) bool { return target == ErrQuarantine }

// HomeError is an ErrElsewhere that says who decides.
type HomeError struct {
	// Home is the name of the data centre.
	Home string
	// Refusal, which may be nil, is how the call is answered where nobody makes it at the home.
	Refusal error
}

func (e *HomeError) Error() string {
	return "ledger: the data centre " + e.Home + " decides about the key"
}

// Is makes errors.Is find ErrElsewhere.
func (e *HomeError) Is(target error) bool { return target == ErrElsewhere }

// Unwrap returns the refusal.
func (e *HomeError) Unwrap() error { return e.Refusal }

// ImportedError refuses to delete an outcome of another data centre, which would bring it back.
type ImportedError struct {
	// Origin is the data centre that recorded the outcome.
	Origin string
}

func (e *ImportedError) Error() string {
	return "the outcome is of the data centre " + e.Origin + ", and a comparison would bring it back: delete the entry at " + e.Origin + " first, and then here with origin=" + e.Origin
}

// FullError is an ErrFull that says when to try again.
type FullError struct {
	// RetryAfter is the time until the next entry expires, 1 s to 60 s.
	RetryAfter time.Duration
	// Share: there is room, but the scope already has its share of the window.
	Share bool
}

func (e *FullError) Error() string {
	if e.Share {
		return "ledger: the scope has its share of the window"
	}
	return ErrFull.Error()
}

// Is makes errors.Is find ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }
