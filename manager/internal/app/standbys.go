package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// standbysLook is how often a start looks whether the required standbys have come.
const standbysLook = 100 * time.Millisecond

// waitForStandbys returns once the store has the standbys that it requires, or with an error of ctx. Until then
// requests are refused, because a start reads and writes the store.
func (a *app) waitForStandbys(ctx context.Context, api, admin net.Listener, cfg *tls.Config) error {
	replication := a.store.Capabilities().Replication
	if replication == nil || replication().Missing == "" {
		return nil
	}
	opts := a.settings.Server
	opts.Version, opts.Logger = a.version, a.log
	refusing, err := httpd.New(opts)
	if err != nil {
		return err
	}
	refusing.Refuse(replication().Missing)
	a.log.Warn("requests are refused until the store has the standbys that it needs", "reason", replication().Missing)
	var served []chan error
	serve := func(ln net.Listener, by func(net.Listener) error) {
		l, done := &lentListener{Listener: ln}, make(chan error, 1)
		served = append(served, done)
		go func() { done <- by(l) }()
	}
	serve(api, func(ln net.Listener) error { return refusing.Serve(ln, cfg) })
	health := a.adminServer(refusing.AdminHandler(a.registry, nil))
	if admin != nil {
		serve(admin, func(ln net.Listener) error { return serveAdmin(health, ln) })
	}
	if err := a.writeAddresses(api, admin); err != nil {
		a.log.Error(err.Error()) // the start fails for it later
	}
	tick := time.NewTicker(standbysLook)
	defer tick.Stop()
	for replication().Missing != "" && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.settings.ShutdownTimeout)
	defer cancel()
	_ = refusing.Shutdown(end)
	refusing.Abort()
	_ = health.Shutdown(end)
	_ = health.Close()
	for _, done := range served {
		<-done
	}
	for _, ln := range []net.Listener{api, admin} {
		if ln != nil {
			if err := ln.(deadliner).SetDeadline(time.Time{}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// lentListener is a listener that another server gets after this one: Close only ends its Accept.
type lentListener struct {
	net.Listener
	closed atomic.Bool
}

type deadliner interface{ SetDeadline(time.Time) error }

// Accept implements net.Listener.
func (l *lentListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.closed.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, net.ErrClosed
	}
	return c, err
}

// Close implements net.Listener.
func (l *lentListener) Close() error {
	l.closed.Store(true)
	return l.Listener.(deadliner).SetDeadline(time.Unix(1, 0))
}

// newStandbysCollector returns a collector of the store's standbys.
func newStandbysCollector(replication func() store.Replication) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		r := replication()
		scrape.Set(m, "oncegate_store_sync_standbys", r.Connected)
		scrape.Set(m, "oncegate_store_sync_standbys_required", r.Required)
		return nil
	},
		scrape.Describe("oncegate_store_sync_standbys", "Synchronous standbys of the store's server that are connected, -1 if it does not say."),
		scrape.Describe("oncegate_store_sync_standbys_required", "Synchronous standbys below which calls are refused (--store-require-sync-standbys)."))
}
