package app

import (
	"context"
	"math"
	"path/filepath"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// logsDir is where the engine wal keeps logs, each in a directory of its own.
const logsDir = ship.NamedDir

// openLogs opens the logs: in files of their own where the engine is a write-ahead log, else in the store.
func (a *app) openLogs(ctx context.Context) (err error) {
	s, caps := a.settings, a.store.Capabilities()
	switch {
	case s.MaxLogs == 0:
		a.logs = logs.None{Why: "--max-logs is 0"}
	case s.Store == "wal" && s.DataDir != "":
		opts := walogs.Options{MaxLogs: s.MaxLogs, Logger: a.log, Ring: a.ring}
		if a.shipper != nil {
			opts.Follower = a.shipper
		}
		if r, ok := a.restored.(quarantine.Local); ok {
			opts.EpochFloor, opts.Quarantine = r.Quarantine.EpochFloor, r.Quarantine.Log
		}
		if a.logs, err = openEngine(walogs.Open(ctx, filepath.Join(s.DataDir, logsDir), opts)); err == nil && a.shipper != nil {
			err = a.followLogs(ctx)
		}
	case caps.Shared && !caps.Durable:
		a.logs = logs.None{Why: "the server of the engine " + caps.Name + " may lose what it acknowledged, or does not show its settings. " +
			"Redis needs appendonly yes and appendfsync always, Postgres fsync on; the engines wal and sqlite need no server"}
	default:
		opts := storelogs.Options{MaxLogs: s.MaxLogs, Logger: a.log, Unreadable: a.unreadable, Restored: a.restored}
		a.logs, err = openEngine(storelogs.Open(ctx, a.store, opts))
	}
	return err
}

// followLogs ships the logs that are open. Shipping takes a log that it does not know for a deleted one,
// so it gets the names of those that cannot be read too.
func (a *app) followLogs(ctx context.Context) error {
	infos, err := a.logs.List(ctx, "", math.MaxInt)
	if err != nil {
		return err
	}
	var failed []string
	for _, i := range infos {
		if i.Failed != "" {
			failed = append(failed, i.Name)
			a.log.Error("a failed log is not shipped; its copies stay as they are", "log", i.Name, "error", i.Failed)
		}
	}
	a.shipper.FollowNamed(failed...)
	return nil
}

// openEngine keeps an engine that could not be opened from being closed.
func openEngine[E logs.Engine](e E, err error) (logs.Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}

// closeLogs makes what was accepted durable. Its error is that of logs that had not failed before.
func (a *app) closeLogs() {
	if a.logs == nil {
		return
	}
	if err := a.logs.Close(); err != nil {
		a.log.Error("closing the logs failed", "error", err.Error())
	}
}

// checkLogRecord reads a record of a log in the store, for the list of unreadable records.
func checkLogRecord(tx store.Tx, c store.Collection, key string) (known bool, err error) {
	if !storelogs.Owns(c) {
		return false, nil
	}
	return true, storelogs.CheckStored(tx, c, key)
}
