package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

const (
	formatVersion = "1"
	// maxRuns bounds how often an Update runs its function before ErrConflict.
	maxRuns = 200
)

// Options configure Open.
type Options struct {
	// URL of the server: redis://[user:password@]host:port[/db], or rediss:// for TLS. See ParseURL of go-redis for
	// further parameters.
	URL string
	// Namespace separates several ledgers on one server: 1 to 64 characters of [a-zA-Z0-9_-]; "oncegate" when empty.
	Namespace string
	// PoolSize bounds the connections; 32 when 0.
	PoolSize int
	// Logger receives warnings about the server's settings; slog.Default()
	// when nil.
	Logger *slog.Logger
	// CheckInterval is how often the server's settings are checked while the store is open; 10 s when 0. It must not be
	// negative.
	CheckInterval time.Duration
	// Used makes Open fail with store.ErrUnused, and write nothing, when the namespace is empty.
	Used bool
}

// Store implements store.Store.
type Store struct {
	rdb    *goredis.Client
	ns     string
	caps   store.Capabilities
	hub    notify.Hub
	guard  guard
	proofs calls.Round[proof]

	claims remote.Claims

	calls calls.Calls
	life  *batch.Life // of its goroutines
	remote.Lasting
}

// Open connects, checks the server's settings and the format of the stored data, and subscribes to wake-ups. It returns
// no *Store, because the compiler would compile 1,500 generic functions of go-redis again for each caller of it.
func Open(ctx context.Context, o Options) (store.Store, error) {
	ro, err := goredis.ParseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("redis store: URL %q: %w", redact(o.URL), err)
	}
	o.Namespace = cmp.Or(o.Namespace, "oncegate")
	if err := checkNamespace(o.Namespace); err != nil {
		return nil, err
	}
	if o.CheckInterval < 0 {
		return nil, fmt.Errorf("redis store: check interval %s: must not be negative", o.CheckInterval)
	}
	o.CheckInterval = cmp.Or(o.CheckInterval, defaultCheckInterval)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	// A command whose answer was lost must not be sent again: its EXEC may have happened, and the WATCH is lost with
	// the connection.
	ro.MaxRetries = -1
	ro.PoolSize = cmp.Or(o.PoolSize, 32)
	ro.ContextTimeoutEnabled = true
	ro.OnConnect = admit
	s := &Store{rdb: goredis.NewClient(ro), ns: "{" + o.Namespace + "}:", life: batch.NewLife(ctx)}
	if err := s.start(ctx, o); err != nil {
		s.life.End()
		_ = s.rdb.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context, o Options) error {
	if err := s.rdb.Ping(ctx).Err(); err != nil {
		return unavailable(err)
	}
	set, err := readSettings(ctx, s.rdb)
	if err != nil {
		return unavailable(err)
	}
	if err := set.unsafe(); err != nil {
		return err
	}
	if set.replicas() > 0 && set.era == "" {
		return errors.New("redis store: the server does not show its replication (INFO replication), which min-replicas-to-write needs: ACL SETUSER ... +info for this user")
	}
	set.warn(o.Logger)
	s.caps = store.Capabilities{Name: "redis", Durable: set.durable(), Shared: true, TimePrecision: time.Microsecond}
	if !o.Used {
		if err := s.rdb.SetNX(ctx, s.ns+"format", formatVersion, 0).Err(); err != nil {
			return unavailable(err)
		}
	}
	v, err := s.rdb.Get(ctx, s.ns+"format").Result()
	if errors.Is(err, goredis.Nil) {
		return store.ErrUnused
	}
	if err != nil {
		return unavailable(err)
	}
	if v != formatVersion {
		return fmt.Errorf("redis store: namespace %s holds format %q, this program reads %s", s.ns, v, formatVersion)
	}
	s.guard.set.Store(&set)
	s.life.Go(func() { s.guard.run(s.life.Context(), s.rdb, o, set) })
	return s.subscribe(ctx)
}

// enter begins a call, unless the server's settings are unsafe.
func (s *Store) enter() error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	if err := s.guard.err(); err != nil {
		s.calls.Leave()
		return err
	}
	return nil
}

func checkNamespace(ns string) error {
	if len(ns) > 64 {
		return fmt.Errorf("redis store: namespace %q: at most 64 characters", ns)
	}
	for _, c := range ns {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return fmt.Errorf("redis store: namespace %q: only letters, digits, _ and - are allowed", ns)
		}
	}
	return nil
}

// redact removes the credentials from a URL that is shown in an error.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return "(not a URL)"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + "://" + rest
}

// unavailable converts an error of the client library to one of the store.
func unavailable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, goredis.ErrClosed):
		return store.ErrClosed
	}
	if evicts(err) {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	var ne net.Error
	msg := err.Error()
	if !errors.As(err, &ne) && strings.HasPrefix(msg, "OOM ") {
		return fmt.Errorf("%w: %s", store.ErrNoSpace, msg)
	}
	return fmt.Errorf("%w: redis: %s", store.ErrUnavailable, msg)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	return s.watched(ctx, fn, false, (*tx).commit)
}

// watched runs a function with its reads watched, and ends it with end.
func (s *Store) watched(ctx context.Context, fn func(store.Tx) error, readOnly bool, end func(*tx) error) error {
	changed := func(err error) bool { return errors.Is(err, goredis.TxFailedErr) }
	return remote.Retry(ctx, maxRuns, 50*time.Microsecond, 6400*time.Microsecond, changed, func(run int) error {
		var t *tx
		err := s.rdb.Watch(ctx, func(rtx *goredis.Tx) error {
			t = s.newTx(ctx, rtx, run, true, readOnly)
			defer t.end()
			if err := fn(t); err != nil {
				return t.refused(err)
			}
			if t.Err != nil { // the function ignored an engine error
				return t.Err
			}
			return end(t)
		})
		return s.proven(ctx, t, err)
	})
}

// View implements store.Store. A function that reads one record needs no transaction. If it reads a second one, it runs
// again with its reads watched.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	t := s.newTx(ctx, s.rdb, 0, false, true)
	err := fn(t)
	if !t.needWatch {
		if err == nil {
			err = t.Err
		}
		return s.proven(ctx, t, err)
	}
	return s.watched(ctx, fn, true, (*tx).validate)
}

// Len implements store.Store.
func (s *Store) Len(ctx context.Context, c store.Collection, index string) (int, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	if err := store.CheckLen(c, index); err != nil {
		return 0, err
	}
	if index == "" {
		n, err := s.rdb.HGet(ctx, s.ns+"n", string(c)).Int()
		if errors.Is(err, goredis.Nil) {
			return 0, nil
		}
		return n, remote.Unreached(unavailable(err))
	}
	n, err := s.rdb.ZCard(ctx, s.indexKey(c, index)).Result()
	return int(n), remote.Unreached(unavailable(err))
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities { return s.caps }

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.life.End()
	return s.rdb.Close()
}

func (s *Store) recordKey(c store.Collection, key string) string {
	return s.ns + "r:" + string(c) + ":" + key
}

func (s *Store) indexKey(c store.Collection, index string) string {
	return s.ns + "x:" + string(c) + ":" + index
}
