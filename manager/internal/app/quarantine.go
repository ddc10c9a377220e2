package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
)

// restored says what the store may have forgotten that was restored to an older point.
type restored interface {
	ledger.Quarantine
	storelogs.Restored
	// Remaining is for how much longer the ledger refuses keys, Longest for how much longer anything is refused.
	Remaining() time.Duration
	Longest() time.Duration
	// RestoredTo names the restore; zero when there was none.
	RestoredTo() time.Time
}

// openQuarantine reads for how long the ledger takes no new keys.
func (a *app) openQuarantine(ctx context.Context) error {
	switch dir := a.settings.DataDir; {
	case dir != "":
		q, err := quarantine.Open(dir)
		if err != nil {
			return err
		}
		a.restored = quarantine.Local{Quarantine: q}
		if left := q.Longest(); left > q.Remaining() {
			a.log.Warn("logs were restored to an older point: ids that they do not know are refused until what they forgot would have left their windows",
				"longest_seconds", left.Seconds(), "restored_to", q.RestoredTo().UTC().Format(time.RFC3339Nano))
		}
		if left := q.Remaining(); left > 0 {
			a.log.Warn("the ledger was restored to an older point: new keys are refused until what it forgot would have expired",
				"remaining_seconds", left.Seconds(), "restored_to", q.RestoredTo().UTC().Format(time.RFC3339Nano))
		}
	case a.store.Capabilities().Shared:
		q, err := quarantine.OpenShared(ctx, a.store)
		if err != nil {
			return fmt.Errorf("the quarantine: %w", err)
		}
		a.restored = q
		a.tellQuarantine(q.Remaining(), q.RestoredTo())
	}
	return nil
}

func (a *app) tellQuarantine(left time.Duration, began time.Time) {
	if left > 0 {
		a.log.Warn("an operator began a quarantine: keys and ids that the store does not know are refused until what it forgot would have expired",
			"remaining_seconds", left.Seconds(), "began", began.UTC().Format(time.RFC3339Nano))
	}
}

const quarantineOver = "the quarantine is over: new keys and ids are taken again"

// watchQuarantine counts the quarantine down.
func (a *app) watchQuarantine(ctx context.Context) {
	switch q := a.restored.(type) {
	case quarantine.Local:
		if q.Longest() == 0 {
			return
		}
		q.Run(ctx, func(err error) {
			a.log.Warn("the quarantine's remaining time was not saved; a restart counts more of it than it must", "error", err.Error())
		})
		if q.Longest() == 0 {
			a.log.Info(quarantineOver)
		}
	case *quarantine.Shared:
		q.Run(ctx, func(before, after quarantine.State) {
			if before.Remaining > 0 && after.Remaining == 0 {
				a.log.Info(quarantineOver)
			} else {
				a.tellQuarantine(after.Remaining, after.Began)
			}
			if before.Began != after.Began { // other data centres must not trust the numbers of the feed any more
				if err := a.openFeed(ctx); err != nil {
					a.log.Error("the feed for other data centres was not begun anew; a restart does it", "error", err.Error())
				}
			}
		})
	}
}

// quarantineLeft is for how much longer something is refused.
func (a *app) quarantineLeft() time.Duration {
	if a.restored == nil {
		return 0
	}
	return a.restored.Longest()
}

// quarantineGauge exports for how much longer something is refused.
func (a *app) quarantineGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_quarantine_remaining_seconds",
		Help: "For how much longer unknown keys, or unknown ids of a log, are refused after a restore.",
	}, func() float64 { return a.quarantineLeft().Seconds() })
}
