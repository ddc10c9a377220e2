package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
	"github.com/oncegate/oncegate/manager/internal/store/internal/front"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
)

const (
	// maxRuns bounds how often an Update runs its function before ErrConflict.
	maxRuns = 50
	// optimisticRuns is how many of those runs take no locks.
	optimisticRuns = 3
)

// Options configure Open.
type Options struct {
	// DSN is a libpq connection string or postgres:// URL.
	DSN string
	// Schema holds the engine's tables; "oncegate" when empty.
	Schema string
	// MaxConns bounds the connections of the pool; 24 when 0. One more is
	// used for notifications.
	MaxConns int
	// RequireSyncStandbys is how many synchronous standbys the server must have connected; below that, all calls fail with
	// store.ErrUnavailable. At 0 the server's settings decide alone. Above 0, the user needs the role pg_read_all_stats.
	RequireSyncStandbys int
	// Seldom lists collections whose records many transactions read and few change. Runs that lock do not lock these
	// records, so transactions on different keys do not wait for each other. The commit checks that they are unchanged.
	Seldom []store.Collection
	// Used makes Open create nothing: store.ErrUnused without a schema, and an error for one that no manager has made ready.
	Used bool
	// Logger receives warnings about the server's settings; slog.Default()
	// when nil.
	Logger *slog.Logger
}

// Store implements store.Store.
type Store struct {
	pool    *pgxpool.Pool
	schema  string
	seldom  []store.Collection
	sql     statements
	caps    store.Capabilities
	topics  *notifier
	stand   *standbys
	lens    remote.Lengths
	fronts  front.Fronts[int32]
	indexes indexes

	reads   share[*reading]
	commits share[*changes]
	life    *batch.Life // of the shared statements and of what runs in the background

	calls calls.Calls
	remote.Lasting
}

// Open connects, creates the schema if it is not there, and starts to listen for wake-ups.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Schema = cmp.Or(o.Schema, "oncegate")
	if err := store.CheckName(o.Schema); err != nil {
		return nil, fmt.Errorf("postgres store: schema: %w", err)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	cfg, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres store: DSN: %w", err) // pgx leaves the password out of its error
	}
	cfg.MaxConns = int32(cmp.Or(o.MaxConns, 24))
	switch cfg.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		// They send parameters as text, and a wire is binary. Any pooler that lends whole sessions takes this one.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	cfg.ConnConfig.OnNotice = keepWarning
	cfg.ConnConfig.ValidateConnect = identify(cfg.ConnConfig.ValidateConnect)
	s := &Store{schema: o.Schema, seldom: o.Seldom, sql: newStatements(o.Schema), life: batch.NewLife(ctx)}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		s.indexes.connected(serverOf(conn))
		return prepare(ctx, conn)
	}
	checkIdle(cfg, pingIdle, pingWithin, func() { s.pool.Reset() })
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, unavailable(err)
	}
	s.reads.run = s.readTogether
	s.commits.run, s.commits.fits = s.commitTogether, apart
	s.reads.begin(s.life)
	s.commits.begin(s.life)
	if err := s.start(ctx, o); err != nil {
		s.life.End()
		s.pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context, o Options) error {
	fsync, err := s.prepareSchema(ctx, o)
	if err != nil {
		return err
	}
	if fsync != "on" {
		o.Logger.Warn("postgres may lose acknowledged transactions in a crash: it runs with fsync off")
	}
	if s.topics, err = startNotifier(ctx, s.life, s.pool, "oncegate_"+o.Schema); err != nil {
		return err
	}
	if s.stand, err = startStandbys(ctx, s.life, s.pool, o, s.topics.reconnect); err != nil {
		return err
	}
	s.caps = store.Capabilities{Name: "postgres", Durable: fsync == "on", Shared: true, TimePrecision: time.Microsecond,
		Replication: s.stand.replication, Quorum: o.RequireSyncStandbys > 0}
	return nil
}

// prepareSchema creates the schema if it is not there and returns the server's setting of fsync. Its connection, which
// may be the pool's only one, is free again when it returns.
func (s *Store) prepareSchema(ctx context.Context, o Options) (fsync string, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return "", unavailable(err)
	}
	defer conn.Release()
	if err := checkPooler(ctx, conn.Conn()); err != nil {
		return "", err
	}
	if err := createSchema(ctx, conn.Conn(), o.Schema, o.Used); err != nil {
		return "", fmt.Errorf("postgres store: schema %s: %w", o.Schema, unavailable(err))
	}
	if err := s.indexes.load(ctx, conn.Conn(), &s.sql); err != nil {
		return "", unavailable(err)
	}
	err = unavailable(conn.QueryRow(ctx, `SHOW fsync`).Scan(&fsync))
	return fsync, err
}

// unavailable converts an error of the driver to one of the store.
func unavailable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrUnavailable) ||
		errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrUnused) {
		return err
	}
	if pe := rolledBack(err); pe != nil && pe.Code == diskFull {
		return fmt.Errorf("%w: postgres: %s", store.ErrNoSpace, pe.Message)
	}
	return fmt.Errorf("%w: postgres: %w", store.ErrUnavailable, err)
}

// unreached is unavailable for an error of what sent no writes.
func unreached(err error) error { return remote.Unreached(unavailable(err)) }

// Codes of the server's errors.
const (
	diskFull    = "53100"
	lockTimeout = "55P03"
)

// rolledBack returns the server's error if it says that nothing was written. A server that says FATAL or PANIC may have
// stored the commit before.
func rolledBack(err error) *pgconn.PgError {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.SeverityUnlocalized == "ERROR" {
		return pe
	}
	return nil
}

// conflict reports whether other transactions caused the rollback, so that the function may run again.
func conflict(err error) bool {
	if errors.Is(err, errChanged) {
		return true
	}
	pe := rolledBack(err)
	if pe == nil {
		return false
	}
	switch pe.Code {
	case "40001", // serialization_failure, also raised by apply
		"40P01", // deadlock_detected
		lockTimeout,
		"53200": // out_of_memory: other transactions' advisory locks fill the table
		return true
	case "23505": // unique_violation: another transaction inserted the record
		return pe.ConstraintName == "records_pkey"
	}
	return false
}

// readOnly reports whether the server refused to write because it is a standby.
func readOnly(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "25006"
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.transact(ctx, fn, func(run int) (mode, bool) {
		// After repeated conflicts optimism gains nothing.
		if run >= optimisticRuns {
			return pessimistic, false
		}
		return optimistic, run == 0
	})
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.transact(ctx, fn, func(int) (mode, bool) { return snapshot, false })
}

func (s *Store) transact(ctx context.Context, fn func(store.Tx) error, how func(run int) (m mode, assume bool)) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	return remote.Retry(ctx, maxRuns, time.Millisecond, 64*time.Millisecond, conflict, func(run int) error {
		m, assume := how(run)
		return s.runOnce(ctx, fn, m, assume, run == 0)
	})
}

func (s *Store) runOnce(ctx context.Context, fn func(store.Tx) error, m mode, assume, shares bool) error {
	if err := s.stand.refused(); err != nil {
		return err
	}
	t, err := s.attempt(ctx, fn, m, assume, shares)
	if t.Err != nil || err != nil && conflict(err) {
		return err
	}
	// The function's error is an answer as well: it comes from what the function read.
	var unproven error
	switch {
	case !s.stand.active(t.server):
	case err == nil && len(t.Writes()) > 0:
		unproven = s.stand.proveWrite(ctx, t.server)
	case t.Reads() > 0:
		unproven = s.stand.proveRead(ctx, t.server)
	}
	if unproven != nil {
		return unproven
	}
	if err == nil {
		s.topics.send(t.Topics())
	}
	return err
}

// attempt runs the function and commits. A transaction that met a conflict before does not share its commit: a conflict
// makes all that share it commit once more.
func (s *Store) attempt(ctx context.Context, fn func(store.Tx) error, m mode, assume, shares bool) (*tx, error) {
	t := s.newTx(ctx, m, assume)
	t.shares = shares
	defer func() { t.release() }()
	err := fn(t)
	if err == nil {
		err = t.commit() // t.Err when the function ignored an engine error
	} else if verr := t.validate(); verr != nil && conflict(verr) {
		err = verr // the function's error came from a state that never existed
	}
	if err != nil {
		t.rollback()
	}
	if readOnly(err) && t.conn != nil {
		// This server became a standby. A new connection finds the primary, if the DSN names both.
		_ = t.conn.Close(context.WithoutCancel(ctx))
	}
	return t, err
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.topics.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities { return s.caps }

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.life.End()
	s.pool.Close()
	return nil
}

// Len implements store.Store.
func (s *Store) Len(ctx context.Context, c store.Collection, index string) (int, error) {
	if err := s.calls.Enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	return s.lens.Len(ctx, c, index, func() (n int, err error) {
		var row pgx.Row
		if index == "" {
			row = s.pool.QueryRow(ctx, s.sql.lenAll, string(c))
		} else {
			id, _ := s.indexes.id(indexName{string(c), index})
			row = s.pool.QueryRow(ctx, s.sql.lenIndex, id)
		}
		err = unreached(row.Scan(&n))
		return n, err
	})
}
