package app

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// openLogs opens the logs in the store.
func (a *app) openLogs(ctx context.Context) error {
	s, caps := a.settings, a.store.Capabilities()
	var err error
	switch {
	case s.MaxLogs == 0:
		a.noLogs = "--max-logs is 0"
	case caps.Shared && !caps.Durable:
		a.noLogs = "the server of the engine " + caps.Name + " may lose what it acknowledged, or does not show its settings. " +
			"Redis needs appendonly yes and appendfsync always, Postgres fsync on; the engines wal and sqlite need no server"
	default:
		a.logs, err = storelogs.Open(ctx, a.store, storelogs.Options{MaxLogs: s.MaxLogs, Logger: a.log, Unreadable: a.unreadable, Restored: a.restored})
	}
	return err
}

func (a *app) logRoutes() []httpd.Route {
	if a.logs == nil {
		return server.NoLogRoutes(a.noLogs)
	}
	return server.LogRoutes(a.logs)
}

// checkLogRecord reads a record of a log in the store, for the list of unreadable records.
func checkLogRecord(tx store.Tx, c store.Collection, key string) (known bool, err error) {
	if !storelogs.Owns(c) {
		return false, nil
	}
	return true, storelogs.CheckStored(tx, c, key)
}
