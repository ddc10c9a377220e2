package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
)

const (
	// maxRuns bounds how often an Update runs its function before ErrConflict.
	maxRuns = 50
	// optimisticRuns is how many of those runs take no locks.
	optimisticRuns = 3
	// lenFresh times the duration of a count is how long its result is reused, at most lenMost.
	lenFresh = 50
	lenMost  = 3 * time.Second
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
	// Logger receives warnings about the server's settings; slog.Default()
	// when nil.
	Logger *slog.Logger
}

// Store implements store.Store.
type Store struct {
	pool   *pgxpool.Pool
	schema string
	sql    statements
	caps   store.Capabilities
	notes  *notifier
	lens   lengths
	never  chan struct{}

	calls calls.Calls
}

// Open connects, creates or migrates the schema, and starts to listen for wake-ups.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Schema == "" {
		o.Schema = "oncegate"
	}
	if err := store.CheckName(o.Schema); err != nil {
		return nil, fmt.Errorf("postgres store: schema: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	cfg, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres store: DSN: %w", err) // pgx leaves the password out of its error
	}
	cfg.MaxConns = int32(o.MaxConns)
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 24
	}
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "5s"
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "60s"
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed"
	// Every statement is a few look-ups in a primary key. Any other plan is wrong, and the planner chooses other plans
	// for tables whose statistics are out of date.
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	for _, path := range []string{"seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin", "material", "memoize"} {
		cfg.ConnConfig.RuntimeParams["enable_"+path] = "off"
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		// The default of one second is long for transactions of a millisecond. Only superusers, and users they allow,
		// may change it.
		if _, err := conn.Exec(ctx, `SET deadlock_timeout = '50ms'`); err != nil && conn.IsClosed() {
			return err
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, unavailable(err)
	}
	s := &Store{
		pool:   pool,
		schema: o.Schema,
		sql:    newStatements(o.Schema),
		never:  make(chan struct{}),
	}
	if err := s.start(ctx, o); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context, o Options) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer conn.Release()
	if err := migrate(ctx, conn.Conn(), o.Schema); err != nil {
		return fmt.Errorf("postgres store: schema %s: %w", o.Schema, unavailable(err))
	}
	var fsync string
	if err := conn.QueryRow(ctx, `SHOW fsync`).Scan(&fsync); err != nil {
		return unavailable(err)
	}
	if fsync != "on" {
		o.Logger.Warn("postgres may lose acknowledged transactions in a crash: it runs with fsync off")
	}
	s.caps = store.Capabilities{Name: "postgres", Durable: fsync == "on", Shared: true, TimePrecision: time.Microsecond}
	s.notes, err = startNotifier(ctx, s.pool, "oncegate_"+o.Schema)
	return err
}

// unavailable converts an error of the driver to one of the store.
func unavailable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "53100": // disk_full
			return fmt.Errorf("%w: postgres: %s", store.ErrNoSpace, pe.Message)
		}
	}
	return fmt.Errorf("%w: postgres: %w", store.ErrUnavailable, err)
}

// conflict reports whether other transactions caused the rollback, so that the function may run again.
func conflict(err error) bool {
	if errors.Is(err, errChanged) {
		return true
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	switch pe.Code {
	case "40001", // serialization_failure, also raised by apply
		"40P01", // deadlock_detected
		"55P03", // lock_not_available: lock_timeout
		"53200": // out_of_memory: other transactions' advisory locks fill the table
		return true
	case "23505": // unique_violation: another transaction inserted the record
		return pe.ConstraintName == "records_pkey"
	}
	return false
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
	for run := range maxRuns {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, assume := how(run)
		err := s.runOnce(ctx, fn, m, assume)
		if err == nil || !conflict(err) {
			return err
		}
		if err := pause(ctx, run); err != nil {
			return err
		}
	}
	return store.ErrConflict
}

func (s *Store) runOnce(ctx context.Context, fn func(store.Tx) error, m mode, assume bool) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer conn.Release()
	t := s.newTx(ctx, conn.Conn(), m, assume)
	err = fn(t)
	if err == nil {
		err = t.commit() // t.Err when the function ignored an engine error
	} else if verr := t.validate(); verr != nil && conflict(verr) {
		err = verr // the function's error came from a state that never existed
	}
	if err != nil {
		t.rollback()
		return err
	}
	s.notes.send(t.Topics())
	return nil
}

// pause waits for a random time that grows with the number of failed runs.
func pause(ctx context.Context, run int) error {
	timer := time.NewTimer(rand.N(time.Millisecond << min(run, 6)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.notes.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities { return s.caps }

// Failed implements store.Store. It is never closed: while the server cannot be reached, calls fail with
// ErrUnavailable.
func (s *Store) Failed() <-chan struct{} { return s.never }

// Err implements store.Store.
func (s *Store) Err() error { return nil }

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.notes.close()
	s.pool.Close()
	return nil
}

// lengths caches counts, because counting many rows is expensive.
type lengths struct {
	mu sync.Mutex
	m  map[[2]string]length
}

type length struct {
	n     int
	until time.Time
}

// Len implements store.Store. The answer may be up to lenFresh counts old and never more than three seconds, so small
// collections are counted almost exactly.
func (s *Store) Len(ctx context.Context, c store.Collection, index string) (int, error) {
	if err := s.calls.Enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	if err := store.CheckName(string(c)); err != nil {
		return 0, err
	}
	if index != "" {
		if err := store.CheckName(index); err != nil {
			return 0, err
		}
	}
	// The lock is held while counting, so that concurrent callers share one count.
	s.lens.mu.Lock()
	defer s.lens.mu.Unlock()
	id := [2]string{string(c), index}
	if l, ok := s.lens.m[id]; ok && time.Now().Before(l.until) {
		return l.n, nil
	}
	asked := time.Now()
	var row pgx.Row
	if index == "" {
		row = s.pool.QueryRow(ctx, s.sql.lenAll, string(c))
	} else {
		row = s.pool.QueryRow(ctx, s.sql.lenIndex, string(c), index)
	}
	var n int
	if err := row.Scan(&n); err != nil {
		return 0, unavailable(err)
	}
	if s.lens.m == nil {
		s.lens.m = make(map[[2]string]length)
	}
	s.lens.m[id] = length{n: n, until: asked.Add(min(lenFresh*time.Since(asked), lenMost))}
	return n, nil
}
