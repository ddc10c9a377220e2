// Package managertest runs a manager inside a test: its ledger and its job queue on the engine
// that keeps all in memory, its logs in a directory of the test's, over HTTP on a loopback port of
// its own.
//
//	m := managertest.Start(t, managertest.Options{})
//	c, err := client.New(client.Options{URL: m.URL})
//
// The manager behaves as the program does, except that its records end with the test. It asks
// for no credentials. Package servers below starts real Redis, PostgreSQL and etcd servers for tests;
// package simulated runs a manager without a connection, on a disk and a clock that a test moves.
package managertest

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/ui"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// Options configure Start. The zero value of every field means its default.
type Options struct {
	// Clock is what the manager takes for the time; default time.Now.
	Clock func() time.Time
	// BackoffBase and BackoffMax are the least and the greatest delay of a job's retry, unless
	// the worker names one: 1 ms to 366 days, defaults 1 s and 1 h.
	BackoffBase, BackoffMax time.Duration
}

// Manager is a manager that runs in the test's process. It ends with the test.
type Manager struct {
	// URL is what clients take as the manager's address.
	URL string

	t         testing.TB
	port      *ports.Port
	store     *mem.Store
	ledger    *ledger.Ledger
	journal   *journal.Journal
	queue     *jobs.Queue
	schedules *schedules.Schedules
	logs      *storelogs.Engine
	pages     *ui.UI
	server    *server.Server // nil while the manager is stopped
	served    chan error
}

// Start starts a manager and returns once it accepts calls. It fails the test if it cannot.
func Start(t testing.TB, o Options) *Manager {
	t.Helper()
	m := &Manager{t: t, store: mem.New(mem.Options{Clock: o.Clock})}
	var err error
	m.journal = journal.New(journal.DefaultKeys)
	if m.ledger, err = ledger.New(m.store, ledger.Options{Observer: m.journal}); err != nil {
		t.Fatal(err)
	}
	if m.queue, err = jobs.New(m.store, jobs.Options{BackoffBase: o.BackoffBase, BackoffMax: o.BackoffMax}); err != nil {
		t.Fatal(err)
	}
	if m.schedules, err = schedules.New(m.store, m.queue, schedules.Options{Interval: time.Second}); err != nil {
		t.Fatal(err)
	}
	if m.logs, err = storelogs.Open(t.Context(), m.store, storelogs.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	m.pages, err = ui.New(ui.Options{Version: "test", Log: slog.New(slog.DiscardHandler), Problem: server.ProblemOf, Ledger: m.ledger, Journal: m.journal, Queue: m.queue, Schedules: m.schedules})
	if err != nil {
		t.Fatal(err)
	}
	if m.port, err = ports.Hold(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.port.Release)
	m.URL = "http://" + m.port.Address
	ctx, cancel := context.WithCancel(context.Background())
	var duties sync.WaitGroup
	duties.Go(func() { m.ledger.Run(ctx, nil) })
	duties.Go(func() { m.queue.Run(ctx, nil) })
	duties.Go(func() { m.schedules.Run(ctx, func(error) {}) })
	t.Cleanup(func() {
		m.pages.Close()
		m.ledger.Drain() // calls that wait would hold up the shutdown
		m.queue.Drain()
		m.logs.Drain()
		m.shutdown(time.Minute)
		cancel()
		duties.Wait()
		m.queue.Close()
		_ = m.logs.Close()
		_ = m.store.Close()
	})
	m.listen()
	return m
}

// Pages returns the manager's web page, which serves the paths below /ui/. It asks for no token, and answers 503 once the
// test is over.
//
//	mux.Handle("/ops/ui/", http.StripPrefix("/ops", m.Pages()))
func (m *Manager) Pages() http.Handler { return m.pages }

func (m *Manager) listen() {
	m.t.Helper()
	ln, err := net.Listen("tcp", m.port.Address)
	if err != nil {
		m.t.Fatal(err)
	}
	m.server, err = server.New(server.Options{Options: httpd.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)}},
		server.LedgerRoutes(m.ledger, m.journal, nil, home.Reach{}), server.JobRoutes(m.ledger, m.queue), server.ScheduleRoutes(m.ledger, m.queue, m.schedules), server.LogRoutes(m.logs), server.DescriptionRoutes())
	if err != nil {
		_ = ln.Close()
		m.t.Fatal(err)
	}
	m.server.SetReady("")
	m.served = make(chan error, 1)
	srv, served := m.server, m.served
	go func() { served <- srv.Serve(ln, nil) }()
}

func (m *Manager) shutdown(patience time.Duration) {
	if m.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = m.server.Shutdown(ctx) // what is left is cut off
	<-m.served
	m.server = nil
}

// Stop cuts all connections and accepts no more, as if the manager had been killed. Its records
// stay. A second call does nothing.
func (m *Manager) Stop() {
	if m.server != nil {
		m.server.Abort()
	}
	m.shutdown(time.Millisecond)
}

// Resume lets a manager that was stopped serve again, at the same URL and with its records. It
// fails the test if it cannot.
func (m *Manager) Resume() {
	m.t.Helper()
	if m.server == nil {
		m.listen()
	}
}
