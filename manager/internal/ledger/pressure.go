package ledger

import (
	"context"
	"time"
)

// account applies a transaction's effects on the window to the counters.
func (l *Ledger) account(tx *Tx) {
	fx := &tx.fx
	if fx.pending != 0 {
		l.usage.pending.Add(fx.pending)
	}
	for _, growth := range tx.growths {
		l.usage.addGrowth(growth)
	}
	for _, d := range tx.deltas {
		// On a shared engine other managers remove some of this manager's entries, and it removes some of theirs.
		if !l.shared || d.entries > 0 || d.released {
			l.usage.add(d)
		}
	}
	if fx.withoutAnswer != 0 {
		l.counters.withoutAnswer.Add(fx.withoutAnswer)
	}
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

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
