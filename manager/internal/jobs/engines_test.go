package jobs_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs/jobstest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// divided are the engines that divide the suite in make test.
var divided = []string{"sqlite", "redis", "postgres", "etcd", "encrypted memory", "encrypted sqlite"}

// closed makes sure that a store of a test is closed with it, also when the test
// has closed it already.
func closed(t testing.TB, s store.Store) store.Store {
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// reopener returns a Reopen for an instance: it closes what is open and opens it
// again.
func reopener(s store.Store, open func(testing.TB) store.Store) func(testing.TB) store.Store {
	return func(t testing.TB) store.Store {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		s = open(t)
		return s
	}
}

func TestSQLite(t *testing.T) {
	// One writer and no manager beside it: a smaller crowd shows as much.
	suite(t, jobstest.Engine{Name: "sqlite", Divided: divided, Jobs: 600, Workers: 12, Runs: 25, Slow: true, Open: func(t testing.TB) *jobstest.Instance {
		path := filepath.Join(t.TempDir(), "jobs.db")
		open := func(t testing.TB) store.Store {
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatalf("open %s: %v", path, err)
			}
			return closed(t, s)
		}
		s := open(t)
		return &jobstest.Instance{Store: s, Reopen: reopener(s, open)}
	}})
}

func TestRedis(t *testing.T) {
	srv := servers.Redis(t)
	var n atomic.Int64
	suite(t, jobstest.Engine{Name: "redis", Divided: divided, Open: func(t testing.TB) *jobstest.Instance {
		options := redis.Options{URL: srv.URL, Namespace: fmt.Sprint("jobs-", n.Add(1)), PoolSize: 16}
		return shared(t, func(t testing.TB) store.Store {
			s, err := redis.Open(t.Context(), options)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return closed(t, s)
		})
	}})
}

func TestPostgres(t *testing.T) {
	srv := servers.Postgres(t)
	var n atomic.Int64
	// Each run has a schema of its own to make.
	suite(t, jobstest.Engine{Name: "postgres", Divided: divided, Runs: 40, Open: func(t testing.TB) *jobstest.Instance {
		options := postgres.Options{DSN: srv.URL, Schema: fmt.Sprint("jobs_", n.Add(1)), MaxConns: 16}
		return shared(t, func(t testing.TB) store.Store {
			s, err := postgres.Open(t.Context(), options)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return closed(t, s)
		})
	}})
}

func TestEtcd(t *testing.T) {
	srv := servers.Etcd(t)
	var n atomic.Int64
	suite(t, jobstest.Engine{Name: "etcd", Divided: divided, Jobs: 400, Workers: 12, Runs: 25, Slow: true, Open: func(t testing.TB) *jobstest.Instance {
		options := etcd.Options{DSN: srv.URL + fmt.Sprint("?prefix=/jobs", n.Add(1)), Patience: time.Minute}
		return shared(t, func(t testing.TB) store.Store {
			s, err := etcd.Open(t.Context(), options)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return closed(t, s)
		})
	}})
}

// shared is an instance that several managers open.
func shared(t testing.TB, open func(testing.TB) store.Store) *jobstest.Instance {
	s := open(t)
	return &jobstest.Instance{Store: s, Peer: open, Reopen: reopener(s, open)}
}
