package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// shipHolder is the file by which a manager that restarts takes its shipping lease over.
const shipHolder = "ship.holder"

// lastShipment bounds how long a stop waits for what is new to be shipped. The rest is
// shipped after the next start.
const lastShipment = 5 * time.Second

// newShipper makes the shipper that the settings ask for; nil when they ask for none.
func newShipper(s *settings.Settings, log *slog.Logger, reg prometheus.Registerer) (*ship.Shipper, error) {
	if s.Ship.To == nil {
		return nil, nil
	}
	settled, asked := s.Ledger.WithDefaults().LongestTTL(), s.Ledger.Longest
	backlog := s.Ship.BacklogBytes
	if backlog == 0 {
		backlog = -1 // none: 0 would be the default
	}
	shipper, err := ship.New(ship.Options{
		Store: s.Ship.To, Interval: s.Ship.Interval, Retention: s.Ship.Retention, LeaseTTL: s.Ship.Lease, BacklogBytes: backlog,
		LongestTTL: func() time.Duration { return max(settled, asked.Get()) }, HolderFile: filepath.Join(s.DataDir, shipHolder), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return shipper, reg.Register(shipper.Metrics())
}

// bucketTries bounds how long a new ledger waits to see what its prefix has.
const bucketTries = 30 * time.Second

// checkBucket refuses to begin a ledger where the prefix has the copies of another one. Beginning would run its keys again,
// and a later restore would take the new ledger for the newest state.
func (a *app) checkBucket(ctx context.Context) error {
	if a.shipper == nil {
		return nil
	}
	known, err := shard.Known(ctx, a.store)
	if err != nil || known {
		return err // the shipper compares
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTries)
	defer cancel()
	bucket := a.settings.Ship.To
	id, err := ship.LedgerOf(ctx, bucket)
	if errors.Is(err, ship.ErrNothing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("a new ledger must first see that its prefix has no copies of another one: %w", err)
	}
	return settings.Usagef("--ship-to %q: must have no copies of another ledger, and has those of %s; --data-dir %q is empty: restore it from there with oncegate restore, or give this ledger its own prefix",
		bucket.String(), cmp.Or(id, "an unnamed one"), a.settings.DataDir)
}

// compareTries bounds how long a start waits to compare the ledger with its copies.
const compareTries = 10 * time.Second

// startShipping compares the log of the store with its copies, and ships it. The logs must be open. A manager that cannot
// reach its copies serves nevertheless, because an outage of object storage must not be one of the manager.
func (a *app) startShipping(ctx context.Context) {
	if a.shipper == nil {
		return
	}
	l := ship.Ledger{ID: a.shard.Identity().ID}
	if q, ok := a.restored.(*quarantine.Quarantine); ok {
		l.EpochFloor = func() uint64 { return q.State().EpochFloor }
	}
	l.WentBack = func(ctx context.Context, shipped uint64, past ship.Longest) error {
		return a.shard.WentBack(ctx, shipped, "the copy in object storage", func(ctx context.Context, why string) error {
			return a.forgot(ctx, max(past.TTL, a.longestTTL()), max(past.Window, a.longestWindow()), why)
		})
	}
	l.LongestWindow = a.longestWindow
	tries, cancel := context.WithTimeout(ctx, compareTries)
	defer cancel()
	if err := a.shipper.Compare(tries, l); err != nil {
		a.log.Warn("the ledger serves before it was compared with its copies: if its directory was put back, it runs keys again until then", "error", err.Error())
	}
	a.shipper.Start(l)
}

// shippedLog is the ledger's log, whose state is in the engine.
type shippedLog struct {
	*wal.Log
	store *mem.Store
}

func (l shippedLog) SnapshotSequence() uint64 { return l.store.StateSequence() }

func (l shippedLog) OpenSnapshot(ctx context.Context) (ship.Snapshot, error) {
	c, err := l.store.OpenCopy(ctx)
	if c == nil || err != nil {
		return nil, err // no typed nil
	}
	return c, nil
}

// walStore is the engine wal with what is known of its log.
type walStore struct {
	*mem.Store
	metrics *logMetrics
	shipper *ship.Shipper // nil when nothing is shipped
}

// refusePartial fails on a directory in which a restore was cut off: it would be an empty
// ledger.
func refusePartial(dir string) error {
	_, err := os.Lstat(filepath.Join(dir, ship.PartialDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return settings.Usagef("--data-dir %q: a restore was cut off here; restore again", dir)
}
