// Package app builds a running manager from its settings: engine, ledger, queue, listeners,
// metrics and what runs in the background. It also ends all of it in order.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
	"github.com/oncegate/oncegate/manager/internal/tracing"
	"github.com/oncegate/oncegate/manager/internal/ui"
)

// Options configure Run.
type Options struct {
	Settings *settings.Settings
	// Version is what the manager says of itself.
	Version string
	// Log is where log lines go.
	Log io.Writer
	// Hangup asks for the token file and the certificate to be read again. What comes while the
	// manager starts is done once it serves.
	Hangup <-chan os.Signal
	// Store, if not nil, is used instead of the one that Settings name.
	Store store.Store
}

// Run runs a manager. It returns nil after ctx ended and everything was shut down in order; it
// closes the store in any case. The error is a settings.UsageError if a setting or a file that one
// names is wrong.
func Run(ctx context.Context, o Options) error {
	log := slog.New(slog.NewJSONHandler(o.Log, &slog.HandlerOptions{Level: o.Settings.LogLevel}))
	audit := slog.New(slog.NewJSONHandler(o.Log, nil)) // whatever the level
	a := &app{settings: o.Settings, version: o.Version, log: log, auditLog: audit, registry: prometheus.NewRegistry(), store: o.Store, hangup: o.Hangup}
	if len(o.Settings.Unknown) > 0 {
		log.Warn("no setting has the name of these variables; they have no effect", "variables", o.Settings.Unknown)
	}
	err := a.start(ctx)
	if err == nil {
		err = a.wait(ctx)
	} else if stoppedEarly(ctx, err) {
		a.log.Info("stopping", "while", "starting")
		a.began, err = true, nil
	}
	return errors.Join(err, a.close())
}

// stoppedEarly reports whether a start ended because it was stopped, not because it failed. What
// is wrong with the settings or the records is reported even then.
func stoppedEarly(ctx context.Context, err error) bool {
	// A store that was being connected to may only say that it was not reached.
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable))
}

// app is a running manager. What start opened, close closes.
type app struct {
	settings *settings.Settings
	version  string
	log      *slog.Logger
	auditLog *slog.Logger
	lost     lostJobs
	registry *prometheus.Registry
	hangup   <-chan os.Signal

	unreadable *unread.Tracker
	restored   restored
	wal        *walStore      // nil with another engine
	shipper    *ship.Shipper  // nil when nothing is shipped
	peers      *peers.Network // nil without an origin
	homes      *home.Homes    // nil without an origin
	puller     *peers.Puller  // nil without peers

	ring   *crypt.Keyring // nil without encryption
	sealed *sealed.Store  // nil without encryption, unless managers share the engine

	store     store.Store
	shard     *shard.Keeper
	moved     atomic.Pointer[ledger.Counts] // keys of other shards, as counted last
	downtimes prometheus.Counter
	ledger    *ledger.Ledger
	journal   *journal.Journal
	feed      *feed.Feed
	queue     *jobs.Queue
	schedules *schedules.Schedules
	logs      *storelogs.Engine // nil: noLogs says why
	noLogs    string
	auth      *httpd.Auth
	server    *server.Server
	serving   bool // the server has the listener
	admin     *http.Server
	ui        *ui.UI

	certificate *httpd.Certificate // nil without TLS
	// Of the listener for operators, nil without TLS.
	adminCertificate *httpd.Certificate
	adminTLS         *tls.Config
	tracing          *tracing.Provider // nil unless the environment asks for it

	began          bool // has served, or was stopped before it could
	stopBackground context.CancelFunc
	background     sync.WaitGroup
	ended          chan error // a listener stopped by itself
}

func (a *app) start(ctx context.Context) error {
	s := a.settings
	a.ended = make(chan error, 2)
	background, stop := context.WithCancel(context.Background())
	a.stopBackground = stop

	auth, certificate, tlsConfig, err := credentials(s)
	if err != nil {
		return err
	}
	// The SDK reads the environment itself.
	if a.tracing, err = tracing.Start(ctx, os.Getenv, a.version, a.log); err != nil {
		return settings.Usagef("%v", err)
	}
	a.auth, a.certificate = auth, certificate
	if a.adminCertificate, a.adminTLS, err = adminTLS(s); err != nil {
		return err
	}
	if s.Peers.Origin != "" {
		if a.peers, err = peers.NewNetwork(s.Peers); err != nil {
			return settings.Usagef("%v", err)
		}
	}
	// The listeners come next: a port that is taken is reported before a long
	// recovery, and requests that come early wait in the backlog.
	api, err := listen(ctx, "listen", s.Listen, s.SocketMode)
	if err != nil {
		return err
	}
	var admin net.Listener
	if s.Admin != "" {
		if admin, err = listen(ctx, "admin", s.Admin, s.SocketMode); err != nil {
			_ = api.Close()
			return err
		}
	}
	defer func() {
		if !a.serving {
			_ = api.Close()
			if admin != nil && a.admin == nil {
				_ = admin.Close()
			}
		}
	}()
	s.Ledger.Longest = new(ledger.Longest)
	if a.store == nil {
		opened, err := openers[s.Store](ctx, s, a.log, a.registry)
		if err != nil {
			return err
		}
		a.store = opened
		if shipped, ok := opened.(*walStore); ok {
			a.wal, a.shipper = shipped, shipped.shipper
		}
	}
	caps := a.store.Capabilities()
	var known []prometheus.Collector
	if caps.Replication != nil {
		known = append(known, newStandbysCollector(caps.Replication))
	}
	if caps.Behind != nil {
		known = append(known, clockCollector(caps.Behind))
	}
	if caps.Space != nil {
		known = append(known, newSpaceCollector(caps.Space))
	}
	if err := register(a.registry, known); err != nil {
		return err
	}
	if err := a.waitForStandbys(ctx, api, admin, tlsConfig); err != nil {
		return err
	}
	a.downtimes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "oncegate_downtimes_total", Help: "How often leases were extended, because no manager had served for a while.",
	})
	if err := a.openEncryption(ctx); err != nil {
		return err
	}
	leases := downtime.New(a.store, downtime.Options{
		Leases: []store.Leases{ledger.Leases(), jobs.Leases()}, OnExtended: a.extended, OnUnreached: a.unreached,
	})
	a.store = leases
	if err := a.openQuarantine(ctx); err != nil {
		return err
	}
	if err := a.checkBucket(ctx); err != nil {
		return err
	}
	if a.peers != nil {
		if err := peers.Doubt(ctx, a.peers, a.store, a.restored, a.longestTTL()); err != nil {
			return err
		}
	}
	if err := a.openShard(ctx); err != nil {
		return err
	}
	a.unreadable = unread.New()
	ledgerOpts, jobOpts := s.Ledger, s.Jobs
	ledgerOpts.Unreadable, jobOpts.Unreadable = a.unreadable, a.unreadable
	jobOpts.Lost, jobOpts.Died = a.jobLost, a.jobDied
	ledgerOpts.Owners = a.shard
	ledgerOpts.Quarantine, jobOpts.Quarantine = a.restored, a.restored.Left
	ledgerOpts.Clashed = a.clashed
	a.journal = journal.New(journal.DefaultKeys)
	ledgerOpts.Observer = a.journal
	if a.ledger, err = ledger.New(a.store, ledgerOpts); err != nil {
		return err
	}
	a.feed = feed.New(a.store, a.ledger, s.Feed)
	if err := a.openFeed(ctx); err != nil {
		return err
	}
	if a.queue, err = jobs.New(a.store, jobOpts); err != nil {
		return err
	}
	timed := schedules.Options{Unreadable: a.unreadable}
	var lists server.Lists
	if a.peers != nil {
		a.homes = home.New(a.peers, home.Options{})
		timed.Homes, lists = a.homes, a.homes
	}
	if a.schedules, err = schedules.New(a.store, a.queue, timed); err != nil {
		return err
	}
	if err := a.openLogs(ctx); err != nil {
		return err
	}
	if a.peers != nil && len(a.peers.Peers()) > 0 {
		a.puller = peers.New(peers.Options{
			Network: a.peers, Feed: a.feed, Store: a.store, Log: a.log, CheckEvery: s.CompareEvery, Lists: a.homes,
			Self: peers.Own{Keeper: a.shard, Quarantine: a.restored, Remembers: a.longestTTL, Log: a.log},
		})
	}
	a.startShipping(ctx)
	opts := server.Options{Options: s.Server, Ledger: a.shard, Unreadable: a.unreadable}
	opts.Version, opts.Logger, opts.Audit, opts.Auth, opts.Unready = a.version, a.log, a.auditLog, a.auth, a.unready(leases)
	opts.Tracer = a.tracing.Tracer()
	if a.server, err = server.New(opts, server.LedgerRoutes(a.ledger, a.journal, a.shard, a.reach()), server.JobRoutes(a.ledger, a.queue),
		server.ScheduleRoutes(a.ledger, a.queue, a.schedules), server.UnreadableRoutes(a.store, a.ledger, a.queue, a.schedules, a.unreadable, checkLogRecord), a.logRoutes(), server.OriginRoutes(a.ledger, a.feed, a.puller, lists), server.QuarantineRoutes(a.restored), server.DescriptionRoutes()); err != nil {
		return err
	}
	if err := a.register(); err != nil {
		return err
	}
	if admin != nil {
		if err := a.startAdmin(admin); err != nil {
			return err
		}
	}
	if err := leases.Start(ctx); err != nil {
		return err
	}
	a.background.Go(func() { leases.Run(background) })
	a.background.Go(func() { a.ledger.Run(background, a.failed("sweep of expired entries")) })
	a.background.Go(func() { a.feed.Run(background, a.failed("publishing the change feed")) })
	if a.puller != nil {
		a.background.Go(func() { a.puller.Run(background) })
	}
	a.background.Go(func() { a.ledger.WatchPressure(background, time.Minute, a.windowFull) })
	a.background.Go(func() {
		failed := a.failed("maintenance of the job queue")
		a.queue.Run(background, func(_ jobs.DutyReport, err error) {
			if err != nil {
				failed(err)
			}
		})
	})
	a.background.Go(func() { a.schedules.Run(background, a.failed("enqueueing the jobs of schedules")) })
	a.background.Go(func() { a.watchMoved(background) })
	a.background.Go(func() { a.shard.Run(background, a.logShard) })
	a.background.Go(func() { a.reload(background) })
	a.background.Go(func() { a.logUnreadable(background) })
	a.background.Go(func() { a.watchQuarantine(background) })
	a.background.Go(func() { a.encrypt(background, ctx) })

	a.serving = true
	a.background.Go(func() { a.listenerEnded("api", a.server.Serve(api, tlsConfig)) })
	a.log.Info("listening", "listener", "api", "addr", listenAddress(api))
	if a.auth == nil && reachable(api.Addr()) {
		a.log.Warn("everyone who reaches --listen may read and delete everything: it is not loopback, and neither --auth-token-file nor --client-ca is set",
			"addr", listenAddress(api))
	}
	switch {
	case admin == nil || !reachable(admin.Addr()):
	case a.auth == nil:
		a.log.Warn("everyone who reaches --admin may do everything by the page /ui/: it is not loopback, and neither --auth-token-file nor --client-ca is set",
			"addr", listenAddress(admin))
	case a.adminTLS == nil && s.TokenFile != "":
		a.log.Warn("tokens of operators cross the network in clear text when a person logs in at /ui/: --admin is not loopback, and --admin-tls-cert is not set",
			"addr", listenAddress(admin))
	}
	if err := a.writeAddresses(api, admin); err != nil {
		return err
	}
	a.logForeign()
	a.logWindow(ctx)
	a.log.Info("jobs", "max_bytes", s.Jobs.MaxBytes, "submitter_share", max(s.Jobs.OwnerShare, 0))
	a.server.SetReady("")
	a.began = true
	a.log.Info("ready", "version", a.version, "store", a.store.Capabilities().Name, "durable", a.store.Capabilities().Durable,
		"tls", tlsConfig != nil, "auth", a.auth != nil)
	return nil
}

// extended logs that leases and reservations got the time of a downtime back.
func (a *app) extended(r downtime.Report) {
	a.downtimes.Inc()
	args := []any{"took_ms", r.Took.Milliseconds()}
	if !r.From.IsZero() {
		args = append(args, "away_ms", r.To.Sub(r.From).Milliseconds())
	}
	for name, n := range r.Extended {
		args = append(args, name, n)
	}
	a.log.Warn("leases and reservations were extended by a downtime", args...)
}

// writeAddresses writes the file that --addr-file names.
func (a *app) writeAddresses(api, admin net.Listener) error {
	if a.settings.AddrFile == "" {
		return nil
	}
	text := "api " + listenAddress(api) + "\n"
	if admin != nil {
		text += "admin " + listenAddress(admin) + "\n"
	}
	if err := writeFileAtomically(a.settings.AddrFile, text); err != nil {
		return fmt.Errorf("--addr-file: %w", err)
	}
	return nil
}

func (a *app) listenerEnded(name string, err error) {
	if err != nil {
		a.ended <- fmt.Errorf("listener %s: %w", name, err)
	}
}

func (a *app) register() error {
	all := append(a.server.Collectors(),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		server.NewLedgerCollector(a.ledger), server.NewJobsCollector(a.queue, a.jobsDepth), server.NewSchedulesCollector(a.schedules), a.downtimes,
		newUnreadableCollector(a.unreadable), a.movedCollector(),
		newEncryptionCollector(a.sealed),
		a.quarantineGauge(),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "oncegate_build_info", Help: "1; the labels have the version and the store.",
			ConstLabels: prometheus.Labels{"version": a.version, "goversion": runtime.Version(), "store": a.settings.Store},
		}, func() float64 { return 1 }),
	)
	if a.logs != nil {
		all = append(all, server.NewLogsCollector(a.logs))
	}
	if a.certificate != nil {
		all = append(all, a.certificate.Collector("api"))
	}
	if a.adminCertificate != nil {
		all = append(all, a.adminCertificate.Collector("admin"))
	}
	if a.homes != nil {
		all = append(all, a.homes.Collectors()...)
	}
	if a.peers != nil {
		all = append(all, newPeersCollector(a.ledger, a.feed, a.puller))
	}
	return register(a.registry, all)
}

func register(registry prometheus.Registerer, all []prometheus.Collector) error {
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// cacheFor is for how long gates answer from their caches where other data centres may have another outcome.
const cacheFor = 5 * time.Second

// reach says which durabilities the ledger can give.
func (a *app) reach() home.Reach {
	caps := a.store.Capabilities()
	reach := home.Reach{Quorum: caps.Quorum, Engine: caps.Name}
	if a.peers != nil {
		reach.Homes = a.homes
		if len(a.peers.Peers()) > 0 {
			reach.CacheFor = cacheFor
		}
	}
	return reach
}

// logWindow logs what the window holds, before it is full, and whether it is smaller than what the ledger has already.
func (a *app) logWindow(ctx context.Context) {
	o, caps := a.ledger.Options(), a.store.Capabilities()
	all, scope := o.KeysPerSecond(caps.Sizes)
	fields := []any{"new_keys_per_second", int(all), "of_one_scope", int(scope), "committed_ttl_seconds", o.CommittedTTL.Seconds(),
		"max_entries", o.MaxEntries}
	if caps.Sizes {
		fields = append(fields, "max_bytes", o.MaxBytes, "bytes_of", map[bool]string{true: "disk", false: "memory"}[caps.Durable])
	}
	a.log.Info("window", fields...)
	s, err := a.ledger.Stats(ctx)
	if n := s.Total(); err == nil && (n > s.MaxEntries || s.Bytes > s.MaxBytes) {
		a.log.Warn("the window is smaller than what the ledger holds: see --max-entries and --max-bytes",
			"entries", n, "max_entries", s.MaxEntries, "bytes", s.Bytes, "max_bytes", s.MaxBytes)
	}
}

// windowFull logs that the window is full, at most once a minute.
func (a *app) windowFull(p ledger.Pressure) {
	a.log.Warn("the window is full: new keys are refused", "refused", p.Refused, "refused_over_share", p.OverShare, "answers_dropped", p.WithoutAnswer)
}

// failed returns what logs that something in the background failed and is tried again.
func (a *app) failed(what string) func(error) {
	return func(err error) { a.log.Warn(what+" failed; retrying", "error", err.Error()) }
}

// writeFileAtomically lets a reader see all of the content or no file.
func writeFileAtomically(name, content string) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
