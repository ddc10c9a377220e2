package ledger

import (
	"sync"
	"time"
)

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
