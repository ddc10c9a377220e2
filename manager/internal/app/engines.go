package app

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// openers of the engines that package settings has, by name.
var openers = map[string]func(context.Context, *settings.Settings, *slog.Logger, prometheus.Registerer) (store.Store, error){
	"wal":    openWAL,
	"memory": openMemory,
	"sqlite": openSQLite,
	"redis": func(ctx context.Context, s *settings.Settings, log *slog.Logger, _ prometheus.Registerer) (store.Store, error) {
		return redis.Open(ctx, redis.Options{URL: s.StoreDSN, Logger: log})
	},
	"postgres": func(ctx context.Context, s *settings.Settings, log *slog.Logger, _ prometheus.Registerer) (store.Store, error) {
		return postgres.Open(ctx, postgres.Options{DSN: s.StoreDSN, RequireSyncStandbys: s.RequireSyncStandbys, Logger: log, Seldom: seldom})
	},
	"etcd": func(ctx context.Context, s *settings.Settings, log *slog.Logger, _ prometheus.Registerer) (store.Store, error) {
		return etcd.Open(ctx, etcd.Options{DSN: s.StoreDSN, Logger: log})
	},
}

// CheckDir fails when the directory that the settings name has no store of their engine.
func CheckDir(s *settings.Settings) error {
	files := map[string]string{"wal": logFiles, "sqlite": sqliteFile}[s.Store]
	if found, err := filepath.Glob(filepath.Join(s.DataDir, files)); err != nil || len(found) == 0 {
		return settings.Usagef("--data-dir %q: must be the directory of a manager with --store %s", s.DataDir, s.Store)
	}
	return nil
}

// LockDir keeps managers from the directory that the settings name until the result is closed, for a command. It does not
// open the store there: that would change it, and without the manager's shipper it would delete what is still to be shipped.
func LockDir(s *settings.Settings) (io.Closer, error) {
	if err := CheckDir(s); err != nil {
		return nil, err
	}
	if s.Store == "sqlite" {
		return sqlite.Lock(filepath.Join(s.DataDir, sqliteFile))
	}
	return wal.Lock(s.DataDir)
}

// OpenUsed opens the store on a server that the settings name, for a command. It creates none: a usage error when no
// manager has used it.
func OpenUsed(ctx context.Context, s *settings.Settings) (store.Store, error) {
	log := slog.New(slog.DiscardHandler)
	var st store.Store
	var err error
	switch s.Store {
	case "redis":
		st, err = redis.Open(ctx, redis.Options{URL: s.StoreDSN, Logger: log, Used: true})
	case "postgres":
		st, err = postgres.Open(ctx, postgres.Options{DSN: s.StoreDSN, Logger: log, Seldom: seldom, Used: true})
	case "etcd":
		st, err = etcd.Open(ctx, etcd.Options{DSN: s.StoreDSN, Logger: log, Used: true})
	}
	if errors.Is(err, store.ErrUnused) {
		return nil, settings.Usagef("--store-dsn: %v", err)
	}
	return st, err
}

// seldom are the collections that many transactions read and few change.
var seldom = []store.Collection{quarantine.Collection, shard.Collection}

// What the engines with a directory keep there.
const (
	sqliteFile = "oncegate.db"
	logFiles   = "[0-9]*.wal"
)

// refuseOther fails when dir holds the records of another engine. Starting
// with them in place would mean an empty ledger: every key forgotten
// without a word.
func refuseOther(dir, other, files string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if match, err := filepath.Match(files, e.Name()); err != nil {
			return err
		} else if match {
			return settings.Usagef("--data-dir %q: holds %s of the engine %s; must be a directory of its own, or use --store %s", dir, e.Name(), other, other)
		}
	}
	return nil
}

func openSQLite(ctx context.Context, s *settings.Settings, _ *slog.Logger, _ prometheus.Registerer) (store.Store, error) {
	if err := refuseOther(s.DataDir, "wal", logFiles); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.DataDir, 0o700); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, filepath.Join(s.DataDir, sqliteFile), sqlite.Options{})
}

func openMemory(context.Context, *settings.Settings, *slog.Logger, prometheus.Registerer) (store.Store, error) {
	return mem.New(mem.Options{}), nil
}

func openWAL(ctx context.Context, s *settings.Settings, log *slog.Logger, reg prometheus.Registerer) (store.Store, error) {
	if err := refuseOther(s.DataDir, "sqlite", sqliteFile); err != nil {
		return nil, err
	}
	m := newLogMetrics()
	opts := mem.Options{CacheBytes: s.CacheBytes, OnFlush: func(r mem.FlushResult) {
		if r.Err != nil {
			m.stateErrors.Inc()
			log.Error("changes could not be moved from memory to the state on disk; retrying", "error", r.Err.Error())
			return
		}
		log.Debug("state written", "sequence", r.Sequence, "records", r.Records, "took_ms", r.Took.Milliseconds())
	}, OnStateError: func(err error) {
		m.stateErrors.Inc()
		log.Error("work on the state on disk failed; retrying", "error", err.Error())
	}}
	opts.Log.OnBatch = m.batch
	opts.Log.OnSpace = func(err error) {
		if err != nil {
			log.Error("the disk is full: calls that change something are refused once the reserved space is used up", "error", err.Error())
			return
		}
		log.Info("the disk has space again")
	}
	opts.Log.OnUndeleted = func(path string, err error) {
		log.Warn("a log file that is no longer needed cannot be deleted; retrying each time that the state is written", "file", path, "error", err.Error())
	}
	if err := refusePartial(s.DataDir); err != nil {
		return nil, err
	}
	shipper, err := newShipper(s, log, reg)
	if err != nil {
		return nil, err
	}
	if shipper != nil {
		opts.Keep = shipper.Keep
	}
	st, err := mem.Open(ctx, s.DataDir, opts)
	if err != nil {
		return nil, err
	}
	m.log, m.store = st.Log(), st
	if err := register(reg, m.collectors()...); err != nil {
		_ = st.Close()
		return nil, err
	}
	r := st.Log().Recovery()
	log.Info("log recovered", "state_bytes", st.StateBytes(), "records", r.Records, "log_bytes", r.LogBytes,
		"segments", r.Segments, "took_ms", r.Took.Milliseconds())
	if r.TornBytes > 0 {
		log.Warn("the log ended in a write that was cut off and never acknowledged; it was wiped",
			"file", r.TornFile, "offset", r.TornOffset, "bytes", r.TornBytes)
	}
	if shipper != nil {
		shipper.Add(shippedLog{st.Log(), st})
	}
	return &walStore{st, m, shipper}, nil
}
