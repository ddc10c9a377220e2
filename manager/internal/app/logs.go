package app

import (
	"context"
	"path/filepath"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

// logsDir is where the engine wal keeps logs, each in a directory of its own.
const logsDir = ship.NamedDir

// openLogs opens the logs of an engine that keeps some.
func (a *app) openLogs(ctx context.Context) error {
	s := a.settings
	if s.Store != "wal" || s.DataDir == "" || s.MaxLogs == 0 {
		a.logs = logs.None{Engine: s.Store}
		return nil
	}
	opts := walogs.Options{MaxLogs: s.MaxLogs, Logger: a.log}
	if a.shipper != nil {
		opts.Follower = a.shipper
	}
	if a.quarantine != nil {
		opts.Quarantine = a.quarantine.Log
	}
	engine, err := walogs.Open(ctx, filepath.Join(s.DataDir, logsDir), opts)
	if err != nil {
		return err
	}
	if a.shipper != nil {
		a.shipper.FollowNamed()
	}
	a.logs = engine
	return nil
}

// closeLogs makes what was accepted durable. Its error is that of logs that had not failed before.
func (a *app) closeLogs() {
	if a.logs == nil {
		return
	}
	if err := a.logs.Close(); err != nil {
		a.log.Error("closing the logs", "error", err.Error())
	}
}
