package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/filelock"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

const (
	formatVersion = 1
	// maxBatch bounds the updates that share one commit.
	maxBatch = 128
	readers  = 4
)

// Options configure Open.
type Options struct {
	// Clock is the engine's time; time.Now when nil.
	Clock func() time.Time
}

// Store implements store.Store.
type Store struct {
	db    *sql.DB
	w     *writer
	hub   notify.Hub
	clock func() time.Time
	lock  *filelock.Lock

	updates batch.Batcher[request]
	life    *batch.Life
	calls   calls.Calls

	failOnce sync.Once
	failed   chan struct{}
	failErr  error

	countMu sync.Mutex
	counts  map[countID]int
}

// countID identifies a count: of the entries of an index, of all records, or of the bytes of their keys and values.
type countID struct {
	c     store.Collection
	index string // empty: all records
	bytes bool   // instead of records
}

// Open opens or creates the file.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if path == "" {
		return nil, errors.New("sqlite store: empty file name")
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	dsn := (&url.URL{Scheme: "file", Path: abs}).String() +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_pragma=foreign_keys(0)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("sqlite store: %s: %w", path, err)
	}
	db.SetMaxOpenConns(readers + 1)
	db.SetMaxIdleConns(readers + 1)
	s := &Store{
		db: db, clock: o.Clock, lock: lock,
		failed: make(chan struct{}),
		counts: make(map[countID]int),
	}
	if err := s.start(ctx); err != nil {
		_ = db.Close()
		_ = lock.Close()
		return nil, fmt.Errorf("sqlite store: %s: %w", path, err)
	}
	return s, nil
}

// Lock keeps others from opening the file until the result is closed, and changes nothing of it.
func Lock(path string) (io.Closer, error) { return lockFile(path + ".lock") }

func lockFile(name string) (*filelock.Lock, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("sqlite store: %w", err)
	}
	lock, err := filelock.Try(f, true)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("sqlite store: %s: %w", name, err)
	}
	return lock, nil
}

func (s *Store) start(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	if err = prepareFile(ctx, conn); err == nil {
		err = s.loadCounts(ctx, conn)
	}
	var q prepared
	if err == nil {
		q, err = prepare(ctx, conn)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	s.w = &writer{s: s, turn: make(chan struct{}, 1), conn: conn, q: q, pending: make(map[countID]int)}
	s.life = batch.NewLife(ctx)
	s.updates.Life, s.updates.Count, s.updates.Run = s.life, maxBatch, s.w.commit
	return nil
}

// prepareFile makes the tables of an empty file, and refuses a file of another format.
func prepareFile(ctx context.Context, conn *sql.Conn) error {
	var version int
	if err := conn.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	switch version {
	case formatVersion:
		return nil
	case 0:
	default:
		return fmt.Errorf("the file has format version %d, this program reads %d", version, formatVersion)
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf(`
		BEGIN IMMEDIATE;
		CREATE TABLE records (coll TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, entries BLOB NOT NULL, PRIMARY KEY (coll, key)) WITHOUT ROWID;
		CREATE TABLE entries (coll TEXT NOT NULL, idx TEXT NOT NULL, sort_key BLOB NOT NULL, key BLOB NOT NULL, PRIMARY KEY (coll, idx, sort_key, key)) WITHOUT ROWID;
		PRAGMA user_version = %d;
		COMMIT`, formatVersion))
	return err
}

// loadCounts counts records and index entries. It reads each table once, which is most of the time of a start.
func (s *Store) loadCounts(ctx context.Context, conn *sql.Conn) error {
	for _, q := range []string{
		`SELECT coll, '', count(*), sum(length(key) + length(value)) FROM records GROUP BY coll`,
		`SELECT coll, idx, count(*), 0 FROM entries GROUP BY coll, idx`,
	} {
		var id countID
		var n, bytes int
		rows, err := conn.QueryContext(ctx, q)
		if err := each(rows, err, []any{&id.c, &id.index, &n, &bytes}, func() {
			s.counts[id] = n
			if id.index == "" {
				s.counts[countID{c: id.c, bytes: true}] = bytes
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// fail stops the engine for good.
func (s *Store) fail(err error) {
	s.failOnce.Do(func() {
		s.failErr = fmt.Errorf("%w: sqlite: %w", store.ErrFailed, err)
		close(s.failed)
	})
}

func (s *Store) enter() error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.calls.Enter()
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	c := &batch.Call[request]{Arg: request{ctx: ctx, fn: fn, ran: make(chan struct{})}}
	r := &c.Arg
	if err := s.updates.Do(ctx, c); err != nil {
		if r.decide() {
			return err // it never runs
		}
		// The function must not run any more once its caller has returned. Whether its commit succeeds is decided later
		// and unknown here.
		<-r.ran
		switch {
		case r.panicked != nil:
		case r.applied:
			return fmt.Errorf("%w: %w", store.ErrUnconfirmed, err)
		default:
			return err
		}
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return mapError(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return mapError(err)
	}
	// The snapshot must end even if ctx has ended.
	defer conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	t := newTx(ctx, conn, s.clock(), s.size, true)
	if err := fn(t); err != nil {
		return err
	}
	return t.Err
}

// Len implements store.Store.
func (s *Store) Len(_ context.Context, c store.Collection, index string) (int, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	if err := store.CheckLen(c, index); err != nil {
		return 0, err
	}
	s.countMu.Lock()
	defer s.countMu.Unlock()
	return s.counts[countID{c: c, index: index}], nil
}

// size counts what is committed.
func (s *Store) size(c store.Collection) (records int, bytes int64) {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	return s.counts[countID{c: c}], int64(s.counts[countID{c: c, bytes: true}])
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{Name: "sqlite", Durable: true, Sizes: true, TimePrecision: time.Nanosecond, Scrub: s.Scrub}
}

// Failed implements store.Store.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err implements store.Store.
func (s *Store) Err() error {
	select {
	case <-s.failed:
		return s.failErr
	default:
		return nil
	}
}

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.life.End()
	return errors.Join(s.w.close(), s.db.Close(), s.lock.Close())
}

// mapError converts an error of the driver to one of the store.
func mapError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var se *sqlite.Error
	if errors.As(err, &se) {
		switch se.Code() & 0xff {
		case sqlite3.SQLITE_FULL:
			return fmt.Errorf("%w: %s", store.ErrNoSpace, se.Error())
		case sqlite3.SQLITE_INTERRUPT:
			return context.Canceled
		}
	}
	return fmt.Errorf("%w: sqlite: %w", store.ErrUnavailable, err)
}
