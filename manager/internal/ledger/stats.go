package ledger

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

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
			s.Bytes = at.Bytes
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

// Pressure is what a full window caused since the previous report.
type Pressure struct {
	// Refused counts new keys that found no room, OverShare new keys whose scope had its share.
	Refused, OverShare uint64
	// WithoutAnswer counts outcomes that were recorded without their answer.
	WithoutAnswer uint64
}

// WatchPressure calls report while the window is full: within a second when that begins, and then at most once every
// interval, until ctx ends.
func (l *Ledger) WatchPressure(ctx context.Context, every time.Duration, report func(Pressure)) {
	t := time.NewTicker(min(every, time.Second))
	defer t.Stop()
	var seen Pressure
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if !last.IsZero() && time.Since(last) < every {
			continue
		}
		now := l.pressureSinceStart()
		news := Pressure{
			Refused: now.Refused - seen.Refused, OverShare: now.OverShare - seen.OverShare, WithoutAnswer: now.WithoutAnswer - seen.WithoutAnswer,
		}
		if news == (Pressure{}) {
			continue
		}
		seen, last = now, time.Now()
		report(news)
	}
}

// pressureSinceStart returns the counters since the start.
func (l *Ledger) pressureSinceStart() Pressure {
	p := Pressure{WithoutAnswer: l.counters.withoutAnswer.Load()}
	for op := range l.counters.calls {
		p.Refused += l.counters.calls[op][OutcomeFull].Load()
		p.OverShare += l.counters.calls[op][OutcomeOverShare].Load()
	}
	return p
}

// FunnelMinutes is how many minutes Funnel covers, without the current one.
const FunnelMinutes = 60

// Minute is how the reserves of a minute ended.
type Minute struct {
	Start time.Time
	// New: the key was reserved. Hit: the recorded answer was returned. Wait: another attempt was pending, and the
	// caller was asked to come again.
	New, Hit, Wait uint64
	// Unknown: 409, the outcome is unknown. Omitted: 410, the work ran and its answer is not recorded. Mismatch: 422.
	// Refused: 503, because of a full window, a restore or a failure.
	Unknown, Omitted, Mismatch, Refused uint64
	// Held counts the reserves that waited, however they ended.
	Held uint64
}

// funnel has the counters at the ends of the last minutes.
type funnel struct {
	mu      sync.Mutex
	samples []Minute // Start is when the sample was taken
}

// total is what the counters say now.
func (l *Ledger) total(at time.Time) Minute {
	c := &l.counters
	n := func(o Outcome) uint64 { return c.calls[OpReserve][o].Load() }
	m := Minute{
		Start: at, New: n(OutcomeDone), Hit: n(OutcomeReplayed), Wait: n(OutcomePending),
		Unknown: n(OutcomeUnknown), Mismatch: n(OutcomeMismatch), Omitted: c.omitted.Load(), Held: c.held.Load(),
		Refused: n(OutcomeFull) + n(OutcomeOverShare) + n(OutcomeQuarantine) + n(OutcomeError),
	}
	m.Hit -= min(m.Hit, m.Omitted) // which count as replayed, too
	return m
}

// since is what happened between two samples. A difference of two readings that raced a call is never negative.
func (m Minute) since(before Minute) Minute {
	sub := func(a, b uint64) uint64 { return a - min(a, b) }
	return Minute{
		before.Start, sub(m.New, before.New), sub(m.Hit, before.Hit), sub(m.Wait, before.Wait), sub(m.Unknown, before.Unknown),
		sub(m.Omitted, before.Omitted), sub(m.Mismatch, before.Mismatch), sub(m.Refused, before.Refused), sub(m.Held, before.Held),
	}
}

// sampleFunnel notes the counters at the end of a minute. Run calls it.
func (l *Ledger) sampleFunnel(now time.Time) {
	f := &l.funnel
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples = append(f.samples, l.total(now))
	if extra := len(f.samples) - FunnelMinutes - 1; extra > 0 {
		f.samples = append(f.samples[:0], f.samples[extra:]...)
	}
}

// Funnel returns how the reserves of the last hour ended, minute by minute, the oldest first. The last one is not over.
// It begins with the first full minute of Run.
func (l *Ledger) Funnel() []Minute {
	now := l.total(time.Now())
	f := &l.funnel
	f.mu.Lock()
	defer f.mu.Unlock()
	minutes := make([]Minute, 0, len(f.samples)+1)
	for i := range f.samples {
		next := now
		if i+1 < len(f.samples) {
			next = f.samples[i+1]
		}
		minutes = append(minutes, next.since(f.samples[i]))
	}
	return minutes
}

// untilMinute is how long it takes until the next minute begins.
func untilMinute(now time.Time) time.Duration {
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}
