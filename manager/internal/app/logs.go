package app

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// openLogs opens the logs in the store.
func (a *app) openLogs(ctx context.Context) error {
	s, caps := a.settings, a.store.Capabilities()
	switch {
	case s.MaxLogs == 0:
		a.logs = logs.None{Why: "--max-logs is 0"}
	case caps.Shared && !caps.Durable:
		a.logs = logs.None{Why: "the server of the engine " + caps.Name + " may lose what it acknowledged, or does not show its settings. " +
			"Redis needs appendonly yes and appendfsync always, Postgres fsync on; the engines wal and sqlite need no server"}
	default:
		e, err := storelogs.Open(ctx, a.store, storelogs.Options{MaxLogs: s.MaxLogs, Logger: a.log, Unreadable: a.unreadable, Restored: a.restored})
		if err != nil {
			return err
		}
		a.logs = e
	}
	return nil
}

// closeLogs ends what the logs do in the background. The store must be open.
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
