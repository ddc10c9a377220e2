package ledger

import (
	"context"
	"strings"
	"sync/atomic"
)

// Op is a kind of call, for counting.
type Op uint8

// The calls that are counted.
const (
	OpReserve Op = iota
	OpCommit
	OpReject
	OpRelease
	OpRenew
	OpUnknown
	OpResolve
	opCount
)

// Changes that no call makes.
const (
	OpLapse Op = opCount + iota
	OpDelete
)

var opNames = [...]string{"reserve", "commit", "reject", "release", "renew", "unknown", "resolve", "lapse", "delete"}

// String returns the name used in metrics.
func (o Op) String() string { return opNames[o] }

// Outcome is how a call ended, for counting.
type Outcome uint8

// The outcomes. Which of them an operation can have follows from the table in
// the package documentation.
const (
	// OutcomeDone: the call changed the ledger as asked: reserved, committed,
	// rejected, released, renewed, noted as unknown or resolved.
	OutcomeDone Outcome = iota
	// OutcomeRepeated: the same token had asked for the same before.
	OutcomeRepeated
	// OutcomeReplayed: a reserve was answered with a recorded result.
	OutcomeReplayed
	// OutcomePending: a reserve met another attempt.
	OutcomePending
	// OutcomeLate: a commit, reject, renewal or unknown was accepted after its
	// reservation was gone.
	OutcomeLate
	// OutcomeFenced: ErrFenced.
	OutcomeFenced
	// OutcomeUnknown: ErrOutcomeUnknown.
	OutcomeUnknown
	// OutcomeConflict: ErrConflict.
	OutcomeConflict
	// OutcomeNotFound: ErrNotFound.
	OutcomeNotFound
	// OutcomeMismatch: ErrFingerprintMismatch.
	OutcomeMismatch
	// OutcomeFull: ErrFull, the window has no room.
	OutcomeFull
	// OutcomeOverShare: ErrFull, the scope has its share.
	OutcomeOverShare
	// OutcomeMoved: ErrKeyMoved.
	OutcomeMoved
	// OutcomeElsewhere: ErrElsewhere. The call goes to the key's home.
	OutcomeElsewhere
	// OutcomeQuarantine: ErrQuarantine.
	OutcomeQuarantine
	// OutcomeTooLarge: ErrTooLarge.
	OutcomeTooLarge
	// OutcomeInvalid: the request was malformed.
	OutcomeInvalid
	// OutcomeError: the store failed or the call was cancelled.
	OutcomeError
	outcomeCount
)

// Outcomes is how many there are.
const Outcomes = int(outcomeCount)

var outcomeNames = [outcomeCount]string{
	"done", "repeated", "replayed", "pending", "late", "fenced", "unknown", "conflict", "not_found", "mismatch", "full", "over_share", "moved", "elsewhere", "quarantine", "too_large",
	"invalid", "error",
}

// String returns the name used in metrics.
func (o Outcome) String() string { return outcomeNames[o] }

// Event is a call that ended, or a change that no call made.
type Event struct {
	Op      Op
	Outcome Outcome
	// Key is that of the entry (see SplitEntryKey); "" if the observer is not to know of the call.
	Key string
	// Prints are those of a mismatch.
	Prints *Prints
}

// Prints are the fingerprints of a mismatch: the call's and the entry's.
type Prints struct{ Sent, Recorded string }

// differing returns fingerprints that may be kept longer than the call.
func differing(e *record, sent string) *Prints {
	return &Prints{strings.Clone(sent), string(e.fingerprint)}
}

// counters are what this process has seen since it started.
type counters struct {
	calls         [opCount][outcomeCount]atomic.Uint64
	expired       atomic.Uint64
	lapsed        atomic.Uint64
	deleted       atomic.Uint64
	withoutAnswer atomic.Uint64
	waitsRefused  atomic.Uint64
	waitsTimedOut atomic.Uint64
	sweepErrors   atomic.Uint64
	batches       atomic.Uint64
	batchItems    atomic.Uint64
	held          atomic.Uint64
	omitted       atomic.Uint64
}

func (c *counters) add(e Event) { c.calls[e.Op][e.Outcome].Add(1) }

// maxCaller bounds the name of a caller in bytes.
const maxCaller = 64

// callerKey is where a context has the name of the caller.
type callerKey struct{}

// caller is a context with the name of the caller.
type caller struct {
	context.Context
	name string
}

// Value returns the caller itself for callerKey.
func (c *caller) Value(key any) any {
	if key == (callerKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// WithCaller returns a context whose calls an observer notes as from that caller: up to 64 bytes, for example the
// address of a gate. The port of an address is left out.
func WithCaller(ctx context.Context, name string) context.Context {
	if i := strings.LastIndexByte(name, ':'); i > 0 && strings.Count(name, ":") == 1 || i > 0 && name[i-1] == ']' {
		name = name[:i]
	}
	return &caller{ctx, name[:min(len(name), maxCaller)]}
}

// CallerOf returns the name that WithCaller set, or "".
func CallerOf(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.name
	}
	return ""
}
