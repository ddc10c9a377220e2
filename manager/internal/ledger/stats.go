package ledger

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
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

// Counts are numbers of entries by state.
type Counts struct{ Pending, Committed, Rejected, Unknown int }

// Total is the sum.
func (c *Counts) Total() int { return c.Pending + c.Committed + c.Rejected + c.Unknown }

// ByState returns where the number of each state is.
func (c *Counts) ByState() map[api.State]*int {
	return map[api.State]*int{
		api.StatePending: &c.Pending, api.StateCommitted: &c.Committed, api.StateRejected: &c.Rejected, api.StateUnknown: &c.Unknown,
	}
}

// Stats is a snapshot for operators. Counters start at zero with the process.
type Stats struct {
	// Counts are those of all entries; on shared engines a few seconds old. An expired entry counts until the sweeper has
	// removed it. A reservation that ran out counts as pending until the sweeper has stored it as unknown.
	Counts
	// Bytes is how much of Options.MaxBytes the entries use on an engine inside this process, -1 on others.
	Bytes int64
	// MaxEntries and MaxBytes are the window's limits; MaxBytes is -1 where Bytes is.
	MaxEntries int
	MaxBytes   int64
	// MaxResultBytes is Options.MaxResultBytes.
	MaxResultBytes int
	// Quarantine is for how much longer keys without an entry are refused; 0: they are not, or the store does not say.
	Quarantine time.Duration
	// Waiters is the number of calls that wait right now.
	Waiters int
	// Calls counts calls by operation and outcome.
	Calls [opCount][outcomeCount]uint64
	// Expired and Deleted count entries that were removed after their TTL, and by an administrator.
	Expired, Deleted uint64
	// Lapsed counts reservations that ran out without an outcome and were stored as unknown.
	Lapsed uint64
	// WithoutAnswer counts outcomes that were recorded without their answer for lack of room.
	WithoutAnswer uint64
	// WaitsRefused counts reserves that were answered pending because too many waited. WaitsTimedOut counts those whose
	// wait ended without a result.
	WaitsRefused, WaitsTimedOut uint64
	// SweepErrors counts sweeps that an error of the store ended.
	SweepErrors uint64
	// Batches counts batches, BatchItems their items.
	Batches, BatchItems uint64
	// Replication describes the standbys of the store's server; nil on engines that know of none.
	Replication *store.Replication
}

// fencedOutcomes are the calls that report how work ended. If one of them is refused as fenced, two attempts may have run.
// A release records no work, and the attempt of a fenced renewal reports its outcome later.
var fencedOutcomes = [...]Op{OpCommit, OpReject, OpUnknown}

// FencedOutcomes is the number of outcomes that were refused because another attempt had the key.
func (s *Stats) FencedOutcomes() uint64 {
	var n uint64
	for _, op := range fencedOutcomes {
		n += s.Calls[op][OutcomeFenced]
	}
	return n
}

// EachFenced calls f with each operation that needs the token of its attempt, and how many of its calls were refused
// because another attempt had the key.
func (s *Stats) EachFenced(f func(op string, n uint64)) {
	for _, op := range append(fencedOutcomes[:], OpRelease, OpRenew) {
		f(opNames[op], s.Calls[op][OutcomeFenced])
	}
}

// Each calls f with every operation, outcome and count.
func (s *Stats) Each(f func(op, outcome string, n uint64)) {
	for op := range s.Calls {
		for outcome, n := range s.Calls[op] {
			f(opNames[op], outcomeNames[outcome], n)
		}
	}
}

// Stats returns a snapshot. It asks the store for the entries by state.
func (l *Ledger) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Bytes: -1, MaxEntries: l.opts.MaxEntries, MaxBytes: -1, MaxResultBytes: l.opts.MaxResultBytes, Waiters: int(l.waits.total.Load())}
	if l.sizes {
		s.MaxBytes = l.opts.MaxBytes
		err := l.store.View(ctx, func(tx store.Tx) error {
			at, err := sizeOf(tx, Collection)
			s.Bytes = at.bytes
			return err
		})
		if err != nil {
			return Stats{}, err
		}
	}
	if q := l.opts.Quarantine; q != nil {
		err := l.store.View(ctx, func(tx store.Tx) (err error) {
			s.Quarantine, err = q.Left(tx)
			return err
		})
		// A Postgres without its standbys refuses this and still answers the rest, which operators need then.
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			return Stats{}, err
		}
	}
	for state, n := range s.ByState() {
		count, err := l.store.Len(ctx, Collection, indexOf(state))
		if err != nil {
			return Stats{}, err
		}
		*n = count
	}
	if replication := l.store.Capabilities().Replication; replication != nil {
		r := replication()
		s.Replication = &r
	}
	c := &l.counters
	for op := range c.calls {
		for outcome := range c.calls[op] {
			s.Calls[op][outcome] = c.calls[op][outcome].Load()
		}
	}
	s.Lapsed = c.lapsed.Load()
	s.Expired, s.Deleted = c.expired.Load(), c.deleted.Load()
	s.WaitsRefused, s.WaitsTimedOut = c.waitsRefused.Load(), c.waitsTimedOut.Load()
	s.WithoutAnswer = c.withoutAnswer.Load()
	s.SweepErrors = c.sweepErrors.Load()
	s.Batches, s.BatchItems = c.batches.Load(), c.batchItems.Load()
	return s, nil
}
