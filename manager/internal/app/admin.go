package app

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/ui"
)

func (a *app) startAdmin(ln net.Listener) (err error) {
	a.ui, err = ui.New(ui.Options{
		Version: a.version, Log: a.log, Audit: a.auditLog, Auth: a.auth, Problem: server.ProblemOf, Ledger: a.ledger, Journal: a.journal, Queue: a.queue, Schedules: a.schedules, NotReady: a.server.NotReady,
		Quarantine: a.quarantined,
		Origin:     a.origin(), System: a.system, Hosts: a.hosts(),
	})
	if err != nil {
		return err
	}
	a.admin = a.adminServer(a.server.AdminHandler(a.registry, a.ui, a.hosts()...))
	a.background.Go(func() {
		if err := serveAdmin(a.admin, a.server.AdminListener(ln, a.adminTLS == nil)); !errors.Is(err, http.ErrServerClosed) {
			a.listenerEnded("admin", err)
		}
	})
	a.log.Info("listening", "listener", "admin", "addr", listenAddress(ln))
	return nil
}

// adminServer is the server of the listener for operators. Profiles and the live parts of pages extend its write timeout
// for themselves.
func (a *app) adminServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		TLSConfig:         a.adminTLS,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
}

func serveAdmin(s *http.Server, ln net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(ln, "", "")
	}
	return s.Serve(ln)
}
