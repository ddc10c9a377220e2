package schedules_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// opener opens a store for one case: the same data each time. shared says that several may be open at once, durable that the
// data outlive them.
type opener struct {
	open            func(t *testing.T) store.Store
	shared, durable bool
}

func onEngine(t *testing.T, newStore func(t *testing.T) opener) {
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, newStore(t))
			f(e)
		})
	}
}

func TestMemory(t *testing.T) {
	onEngine(t, func(*testing.T) opener { return memoryOpener() })
}

func TestWAL(t *testing.T) {
	onEngine(t, func(t *testing.T) opener {
		dir := t.TempDir()
		return opener{durable: true, open: func(t *testing.T) store.Store { return must(t)(mem.Open(context.Background(), dir, mem.Options{})) }}
	})
}

func TestSQLite(t *testing.T) {
	onEngine(t, func(t *testing.T) opener {
		path := filepath.Join(t.TempDir(), "schedules.db")
		return opener{durable: true, open: func(t *testing.T) store.Store {
			return must(t)(sqlite.Open(t.Context(), path, sqlite.Options{}))
		}}
	})
}

func TestRedis(t *testing.T) {
	srv := servers.Redis(t)
	var n atomic.Int64
	onEngine(t, func(*testing.T) opener {
		o := redis.Options{URL: srv.URL, Namespace: fmt.Sprint("schedules-", n.Add(1)), PoolSize: 16}
		return opener{durable: true, shared: true, open: func(t *testing.T) store.Store { return must(t)(redis.Open(t.Context(), o)) }}
	})
}

func TestPostgres(t *testing.T) {
	srv := servers.Postgres(t)
	var n atomic.Int64
	onEngine(t, func(*testing.T) opener {
		o := postgres.Options{DSN: srv.URL, Schema: fmt.Sprint("schedules_", n.Add(1)), MaxConns: 8}
		return opener{durable: true, shared: true, open: func(t *testing.T) store.Store { return must(t)(postgres.Open(t.Context(), o)) }}
	})
}

func TestEtcd(t *testing.T) {
	srv := servers.Etcd(t)
	var n atomic.Int64
	onEngine(t, func(*testing.T) opener {
		o := etcd.Options{DSN: srv.URL + fmt.Sprint("?prefix=/schedules", n.Add(1)), Patience: time.Minute}
		return opener{durable: true, shared: true, open: func(t *testing.T) store.Store { return must(t)(etcd.Open(t.Context(), o)) }}
	})
}

func must(t *testing.T) func(store.Store, error) store.Store {
	return func(s store.Store, err error) store.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// manager is a queue and its schedules on a store.
type manager struct {
	store      store.Store
	queue      *jobs.Queue
	schedules  *schedules.Schedules
	unreadable *unread.Tracker
}

func (m *manager) close() {
	m.queue.Close()
	_ = m.store.Close()
}

// env is the environment of a case: a manager whose clock the case sets.
type env struct {
	*testing.T
	opener
	*manager
	clock   *clock
	options jobs.Options
}

// begin is what the clock shows first: a Saturday, the day before the clocks are put forward in Vienna.
var begin = time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)

func newEnv(t *testing.T, o opener) *env {
	e := &env{T: t, opener: o, clock: new(clock)}
	e.clock.set(begin)
	e.manager = e.newManager(o.open(t))
	return e
}

// newManager is a manager of the same data under the case's clock.
func (e *env) newManager(s store.Store) *manager {
	e.Helper()
	m := &manager{store: clockedStore{s, e.clock}, unreadable: unread.New()}
	var err error
	if m.queue, err = jobs.New(m.store, e.options); err != nil {
		e.Fatal(err)
	}
	if m.schedules, err = schedules.New(m.store, m.queue, schedules.Options{Interval: time.Hour, Unreadable: m.unreadable}); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(m.close)
	return m
}

// another is one more manager of the data: on a store of its own where managers share the engine.
func (e *env) another() *manager {
	e.Helper()
	if e.shared {
		return e.newManager(e.open(e.T))
	}
	m := *e.manager
	var err error
	if m.schedules, err = schedules.New(m.store, m.queue, schedules.Options{}); err != nil {
		e.Fatal(err)
	}
	return &m
}

// clock shows the same time on all managers, until it is set.
type clock struct{ now atomic.Pointer[time.Time] }

func (c *clock) set(t time.Time)          { c.now.Store(&t) }
func (c *clock) advance(d time.Duration)  { c.set(c.now.Load().Add(d)) }
func (c *clock) tx(tx store.Tx) clockedTx { return clockedTx{tx, *c.now.Load()} }

type clockedStore struct {
	store.Store
	clock *clock
}

func (s clockedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(s.clock.tx(tx)) })
}

func (s clockedStore) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, func(tx store.Tx) error { return fn(s.clock.tx(tx)) })
}

type clockedTx struct {
	store.Tx
	now time.Time
}

// Now is that of an engine whose time stood still for an hour. No instant is due by it.
func (t clockedTx) Now() time.Time  { return t.now.Add(-time.Hour) }
func (t clockedTx) Wall() time.Time { return t.now }

func memoryOpener() opener {
	return opener{open: func(*testing.T) store.Store { return mem.New(mem.Options{}) }}
}
