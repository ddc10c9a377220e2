package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pressure counts what a full window caused.
type pressure struct {
	evicted       atomic.Uint64
	withoutAnswer atomic.Uint64
	lastAge       atomic.Int64 // of the entry that was evicted last, in milliseconds

	mu   sync.Mutex
	ages ages // since the last report
}

// ages are the ages of evicted entries since their reservations, in milliseconds.
type ages struct {
	n                      uint64
	youngest, oldest, last int64
}

func (a *ages) add(b ages) {
	switch {
	case b.n == 0:
		return
	case a.n == 0:
		*a = b
		return
	}
	a.n += b.n
	a.youngest, a.oldest, a.last = min(a.youngest, b.youngest), max(a.oldest, b.oldest), b.last
}

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
		l.pressure.withoutAnswer.Add(fx.withoutAnswer)
	}
	if fx.ages.n != 0 {
		l.pressure.evicted.Add(fx.ages.n)
		l.pressure.lastAge.Store(fx.ages.last)
		l.pressure.mu.Lock()
		l.pressure.ages.add(fx.ages)
		l.pressure.mu.Unlock()
	}
}

// Pressure is what a full window caused since the previous report.
type Pressure struct {
	// Refused counts new keys that found no room, OverShare new keys whose scope had its share.
	Refused, OverShare uint64
	// Evicted counts entries that were forgotten before their time. Youngest and Oldest are the ages of such entries.
	Evicted          uint64
	Youngest, Oldest time.Duration
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
			Refused: now.Refused - seen.Refused, OverShare: now.OverShare - seen.OverShare,
			Evicted: now.Evicted - seen.Evicted, WithoutAnswer: now.WithoutAnswer - seen.WithoutAnswer,
		}
		if news == (Pressure{}) {
			continue
		}
		l.pressure.mu.Lock()
		a := l.pressure.ages
		l.pressure.ages = ages{}
		l.pressure.mu.Unlock()
		news.Youngest, news.Oldest = milliseconds(a.youngest), milliseconds(a.oldest)
		seen, last = now, time.Now()
		report(news)
	}
}

// pressureSinceStart returns the counters since the start.
func (l *Ledger) pressureSinceStart() Pressure {
	p := Pressure{Evicted: l.pressure.evicted.Load(), WithoutAnswer: l.pressure.withoutAnswer.Load()}
	for op := range l.counters.calls {
		p.Refused += l.counters.calls[op][OutcomeFull].Load()
		p.OverShare += l.counters.calls[op][OutcomeOverShare].Load()
	}
	return p
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
