package app

import (
	"context"
	"path/filepath"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
)

// logsDir is where the engine wal keeps logs, each in a directory of its own.
const logsDir = "logs"

// openLogs opens the logs of an engine that keeps some.
func (a *app) openLogs(ctx context.Context) error {
	s := a.settings
	if s.Store != "wal" || s.DataDir == "" || s.MaxLogs == 0 {
		a.logs = logs.None{Engine: s.Store}
		return nil
	}
	engine, err := walogs.Open(ctx, filepath.Join(s.DataDir, logsDir), walogs.Options{MaxLogs: s.MaxLogs, Logger: a.log})
	if err != nil {
		return err
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
