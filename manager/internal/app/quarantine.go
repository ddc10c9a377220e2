package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/ui"
)

// restored says what the store may have forgotten.
type restored interface {
	ledger.Quarantine
	storelogs.Restored
	peers.Quarantine
	// State is what is known of the quarantine.
	State() quarantine.State
	// Begin begins a quarantine.
	Begin(ctx context.Context, d, window time.Duration, why string) error
	// End ends a quarantine, whatever it is for, and returns the state before.
	End(ctx context.Context) (was quarantine.State, err error)
}

// openQuarantine reads for how long the ledger takes no new keys.
func (a *app) openQuarantine(ctx context.Context) error {
	if a.store.Capabilities().Shared {
		q, err := quarantine.OpenShared(ctx, a.store)
		if err != nil {
			return fmt.Errorf("the quarantine: %w", err)
		}
		a.restored = q
	} else {
		q, err := quarantine.Open(a.settings.DataDir) // the engine memory has none, and keeps nothing
		if err != nil {
			return err
		}
		a.restored = q
	}
	a.logQuarantine(a.restored.State())
	return nil
}

// logQuarantine logs that there is a quarantine, and why.
func (a *app) logQuarantine(s quarantine.State) {
	if s.Remaining == 0 {
		return
	}
	fields := []any{"remaining_seconds", s.Remaining.Seconds()}
	if !s.RestoredTo.IsZero() {
		fields = append(fields, "restored_to", s.RestoredTo.UTC().Format(time.RFC3339Nano))
	}
	if len(s.Why) > 0 {
		fields = append(fields, "why", s.Why)
	}
	a.log.Warn("quarantine: unknown keys and ids are refused until all that the store may have forgotten would have expired", fields...)
}

const quarantineOver = "the quarantine is over: new keys and ids are taken again"

// watchQuarantine counts the quarantine down.
func (a *app) watchQuarantine(ctx context.Context) {
	changed := func(before, after quarantine.State) {
		if before.Remaining > 0 && after.Remaining == 0 {
			a.log.Info(quarantineOver)
		} else {
			a.logQuarantine(after)
		}
		if !before.RestoredTo.Equal(after.RestoredTo) { // other data centres must not trust the numbers of the feed any more
			if err := a.openFeed(ctx); err != nil {
				a.log.Error("restarting the change feed failed; the next start of the manager does it", "error", err.Error())
			}
		}
	}
	switch q := a.restored.(type) {
	case *quarantine.Quarantine:
		q.Run(ctx, changed, func(err error) {
			a.log.Warn("saving the quarantine's remaining time failed; it lasts longer after a restart", "error", err.Error())
		})
	case *quarantine.Shared:
		q.Run(ctx, changed)
	}
}

// restoredName names the restore that the data come from, or the quarantine that began last; "" when there was none.
func (a *app) restoredName() string {
	at := a.restored.State().RestoredTo
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// longestTTL is the longest time for which the ledger remembers a key, as far as it has been asked to.
func (a *app) longestTTL() time.Duration {
	return max(a.settings.Ledger.WithDefaults().LongestTTL(), a.settings.Ledger.Longest.Get())
}

// longestWindow is the longest window of all named logs, 0 when there are none.
func (a *app) longestWindow() time.Duration {
	if a.logs == nil {
		return 0
	}
	return a.logs.LongestWindow()
}

// watchPast has the ledger act on what callers remember of it.
func (a *app) watchPast(ctx context.Context) error {
	past := shard.Past{Longest: a.longestTTL, Restored: a.restoredName}
	past.Begin = func(ctx context.Context, d time.Duration, why string) error {
		return a.forgot(ctx, d, a.longestWindow(), why)
	}
	if a.wal != nil {
		past.Position = a.wal.Log().Durable
	}
	return a.shard.Watch(ctx, past)
}

// forgot begins the quarantine of a ledger that forgot something. window is that of its named logs.
func (a *app) forgot(ctx context.Context, d, window time.Duration, why string) error {
	if err := a.restored.Begin(ctx, d, window, why); err != nil {
		a.auditLog.Error("ALARM: the ledger forgot something, and beginning the quarantine failed: the call that showed it is refused", "why", why, "error", err.Error())
		return err
	}
	a.auditLog.Error("ALARM: the ledger forgot something: a quarantine begins", "why", why, "seconds", d.Seconds(), "seconds_for_logs", max(d, window).Seconds())
	return nil
}

// quarantined is the quarantine for the page; nil when there is none.
func (a *app) quarantined() *ui.Quarantine {
	s := a.restored.State()
	if s.Remaining == 0 {
		return nil
	}
	return &ui.Quarantine{Left: s.Remaining, Why: s.Why}
}

// quarantineGauge exports for how much longer something is refused.
func (a *app) quarantineGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_quarantine_remaining_seconds",
		Help: "For how much longer unknown keys, or unknown ids of a log, are refused, because the store may have forgotten them.",
	}, func() float64 { return a.restored.State().Remaining.Seconds() })
}
