package ledger_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// divided are the engines that divide the suite in make test.
var divided = []string{"sqlite", "redis", "postgres", "etcd", "encrypted wal", "encrypted sqlite"}

// opened closes a store with the test.
func opened(t testing.TB, st store.Store, err error) store.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func TestOnMemory(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Engine{Name: "memory", Open: func(t testing.TB) []store.Store {
		return []store.Store{opened(t, mem.New(mem.Options{}), nil)}
	}})
}

func TestOnWAL(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Engine{Name: "wal", Open: func(t testing.TB) []store.Store {
		st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{})
		return []store.Store{opened(t, st, err)}
	}})
}

func TestOnSQLite(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Engine{Name: "sqlite", Divided: divided, Open: func(t testing.TB) []store.Store {
		st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
		return []store.Store{opened(t, st, err)}
	}})
}

// fresh gives each test a name space of its own on one server.
func fresh() func() string {
	var n atomic.Int64
	return func() string { return fmt.Sprint("ledger", n.Add(1)) }
}

func TestOnRedis(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t)
	name := fresh()
	ledgertest.Run(t, ledgertest.Engine{Name: "redis", Divided: divided, Open: func(t testing.TB) []store.Store {
		o := redis.Options{URL: srv.URL, Namespace: name()}
		a, errA := redis.Open(t.Context(), o)
		first := opened(t, a, errA)
		b, errB := redis.Open(t.Context(), o)
		return []store.Store{first, opened(t, b, errB)}
	}})
}

func TestOnPostgres(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	name := fresh()
	ledgertest.Run(t, ledgertest.Engine{Name: "postgres", Divided: divided, Open: func(t testing.TB) []store.Store {
		o := postgres.Options{DSN: srv.URL, Schema: name()}
		a, errA := postgres.Open(t.Context(), o)
		first := opened(t, a, errA)
		b, errB := postgres.Open(t.Context(), o)
		return []store.Store{first, opened(t, b, errB)}
	}})
}

func TestOnEtcd(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t)
	name := fresh()
	// A manager hears of the time when a message arrives, and a busy machine delays messages.
	ledgertest.Run(t, ledgertest.Engine{Name: "etcd", Divided: divided, Slack: 2 * time.Second, Open: func(t testing.TB) []store.Store {
		o := etcd.Options{DSN: srv.URL + "?prefix=/" + name(), Patience: time.Minute}
		a, errA := etcd.Open(t.Context(), o)
		first := opened(t, a, errA)
		b, errB := etcd.Open(t.Context(), o)
		return []store.Store{first, opened(t, b, errB)}
	}})
}
