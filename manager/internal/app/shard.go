package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

// openShard finds out who the ledger is, before anything else happens to the data.
func (a *app) openShard(ctx context.Context) error {
	want := a.settings.Shard
	if want.Shards != nil && a.store.Capabilities().Shared {
		n, err := a.store.Len(ctx, ledger.Collection, "")
		if err != nil {
			return err
		}
		want.Used = n > 0
	}
	want.Restored = a.restoredName()
	keeper, change, err := shard.Open(ctx, a.store, want)
	var refused *shard.Error
	if errors.As(err, &refused) {
		return settings.Usagef("%v", refused)
	}
	if err != nil {
		return fmt.Errorf("the ledger's identity: %w", err)
	}
	a.shard = keeper
	a.moved.Store(new(ledger.Counts))
	if err := a.watchPast(ctx); err != nil {
		return fmt.Errorf("the ledger's identity: %w", err)
	}
	a.logShard(change)
	return nil
}

// logShard logs who the ledger is, and what a start or another manager changed about that.
func (a *app) logShard(c shard.Change) {
	i := c.After
	if c.Before.ID != "" && c.Named() {
		a.log.Warn("the ledger has another name", "ledger", i.ID, "from", c.Before.Name, "to", i.Name)
	}
	if c.Before.ID != "" && c.Listed() {
		a.log.Warn("the list of shards has changed: new keys that now belong to another shard are refused here from now on. "+
			"Before this, every gate must have the new list in manager.shards and the old one in manager.previous_shards, and the new shards must run; "+
			"until then gates answer 503 for such keys. Going back is another change of the list: see docs/scale.md",
			"ledger", i.ID, "shard", i.Name, "from", c.Before.Shards, "from_version", c.Before.Version, "to", i.Shards, "to_version", i.Version)
	}
	fields := []any{"ledger", i.ID, "shard", i.Name, "shards", i.Shards, "shards_version", i.Version}
	switch {
	case i.Name == "":
		a.log.Info("no --shard name: calls for any shard are accepted, which is right for a single manager", "ledger", i.ID)
	case i.Shards != nil && !i.Lists(i.Name):
		a.log.Warn("this shard is not in the list of shards: it answers for the keys that it has and takes no new ones", fields...)
	default:
		a.log.Info("the ledger is a shard", fields...)
	}
}

// A manager with a list counts what it has of keys that other shards own: often while there are any, for they are being
// waited for, and rarely when there are none. It spends no more than a fiftieth of its time on that.
const (
	movedEvery  = 15 * time.Second
	movedRarely = 10 * time.Minute
	movedShare  = 50
)

// watchMoved counts until ctx ends, and logs when nothing is left.
func (a *app) watchMoved(ctx context.Context) {
	for {
		version, began := a.shard.Identity().Version, time.Now()
		a.countMoved(ctx)
		wait := max(movedEvery, movedShare*time.Since(began))
		if a.moved.Load().Total() == 0 {
			wait = max(wait, movedRarely)
		}
		// Another manager of the store may change the list meanwhile.
		for until := time.Now().Add(wait); time.Now().Before(until) && a.shard.Identity().Version == version; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(movedEvery, wait)):
			}
		}
	}
}

// countMoved leaves errors of the store to the next time.
func (a *app) countMoved(ctx context.Context) {
	var m ledger.Counts
	if i := a.shard.Identity(); i.Shards != nil {
		ctx, cancel := context.WithTimeout(ctx, movedRarely)
		defer cancel()
		var err error
		if m, err = server.MovedEntries(ctx, a.ledger); err != nil {
			return
		}
		if had := a.moved.Load().Total(); had > 0 && m.Total() == 0 {
			if a.restored.Remaining() > 0 {
				return // the ledger may have forgotten some
			}
			a.log.Info("no keys of other shards are left here; once all managers log this, gates no longer need manager.previous_shards",
				"ledger", i.ID, "shard", i.Name, "shards_version", i.Version)
		}
	}
	a.moved.Store(&m)
}

// movedCollector returns a collector of what was counted last.
func (a *app) movedCollector() *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		for state, n := range a.moved.Load().ByState() {
			scrape.Set(m, "oncegate_ledger_moved_entries", *n, state.String())
		}
		return nil
	}, scrape.Describe("oncegate_ledger_moved_entries", "Entries by state of keys that other shards own, as of some seconds ago.", "state"))
}
