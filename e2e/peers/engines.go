package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// A pair is a reserve of a new key and the commit of its answer.
var engineColumns = []column{
	{"pairs singly, 64 callers", "pairs", 64, 1},
	{"pairs, 16 at a time, 16 callers", "pairs", 16, 16},
	{"pairs, 64 at a time, 16 callers", "pairs", 16, 64},
	{"claims, 10 workers", "claims", 10, 1},
	{"jobs worked, 64 at once", "worked", 64, 1},
}

// compareEngines compares ledger and queue on every engine with bare clients and queues on the same servers.
func compareEngines(ctx context.Context, s settings) error {
	t, err := s.newTable("engines", "operations/s", "client", "manager", "engine")
	if err != nil {
		return err
	}
	defer t.stop()
	t.columns = engineColumns
	t.notes = strings.Join([]string{moduleVersion("asynq", "github.com/hibiken/asynq"), moduleVersion("River", "github.com/riverqueue/river"),
		version(ctx, "redis-server", "--version"), version(ctx, "psql", "--version"), version(ctx, "etcd", "--version")}, "; ")
	if err := t.addEngines(ctx); err != nil {
		return err
	}
	return t.measure(ctx)
}

func (t *table) addRow(name string, manager *servers.Server, engine []int, on system) {
	r := &row{name: name, own: manager != nil, cpu: []cpuTime{ownCPU, nil, nil}}
	if manager != nil {
		r.cpu[1] = cpuOf(manager.PID())
	}
	if engine != nil {
		r.cpu[2] = cpuOf(engine...)
	}
	r.load = func(c column) *load { return t.load(c, on) }
	t.add(r)
}

// addEngines starts the servers, and a manager on every engine.
func (t *table) addEngines(ctx context.Context) error {
	for _, m := range []struct {
		name, engine string
		flags        []string
	}{{"memory", "memory", nil}, {"wal", "wal", nil}, {"sqlite", "sqlite", nil}, {"wal" + withFeed, "wal", []string{"--origin", "dc1"}}} {
		flags := append([]string{"--store", m.engine}, m.flags...)
		if m.engine != "memory" {
			flags = append(flags, "--data-dir", filepath.Join(t.dir, m.name))
		}
		if err := t.addManager(ctx, m.name, nil, flags...); err != nil {
			return err
		}
	}
	return errors.Join(t.addPostgres(ctx), t.addRedis(ctx), t.addEtcd(ctx))
}

func (t *table) addPostgres(ctx context.Context) error {
	pg, err := servers.StartPostgres(ctx, "-c", "shared_buffers=256MB")
	if err != nil {
		return err
	}
	t.onStop(pg.Close)
	config, err := pgxpool.ParseConfig(pg.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	pid := []int{pg.PID()}
	for _, m := range []struct {
		name, database string
		flags          []string
	}{{"postgres", "ledger", nil}, {"postgres" + withFeed, "feed", []string{"--origin", "dc1"}}} {
		if _, err := pool.Exec(ctx, "CREATE DATABASE "+m.database); err != nil {
			return err
		}
		dsn := strings.Replace(pg.URL, "dbname=postgres", "dbname="+m.database, 1)
		if err := t.addManager(ctx, m.name, pid, append(m.flags, "--store", "postgres", "--store-dsn", dsn)...); err != nil {
			return err
		}
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE pairs (key text PRIMARY KEY, token text NOT NULL, state smallint NOT NULL, expires timestamptz NOT NULL, result bytea)`); err != nil {
		return err
	}
	river, err := newRiver(ctx, pool)
	if err != nil {
		return err
	}
	locked, err := newSkipLocked(ctx, pool)
	if err != nil {
		return err
	}
	t.addRow("bare pgx on the same Postgres: INSERT, UPDATE", nil, pid, system{keys: postgresPairs(pool)})
	t.addRow("River on the same Postgres", nil, pid, system{queue: river})
	t.addRow("bare SKIP LOCKED on the same Postgres", nil, pid, system{queue: locked})
	return nil
}

func (t *table) addRedis(ctx context.Context) error {
	srv, err := servers.StartRedis(ctx)
	if err != nil {
		return err
	}
	t.onStop(srv.Close)
	rdb := goredis.NewClient(&goredis.Options{Network: "unix", Addr: srv.Socket, PoolSize: 64})
	if err := t.addManager(ctx, "redis", []int{srv.PID()}, "--store", "redis", "--store-dsn", srv.URL); err != nil {
		return err
	}
	t.addRow("bare Redis: SET NX, SET XX", nil, []int{srv.PID()}, system{keys: redisPairs(rdb)})
	// Queues keep their jobs in another server, so that neither scans the other's keys.
	if srv, err = servers.StartRedis(ctx); err != nil {
		return err
	}
	t.onStop(srv.Close)
	t.addRow("asynq on Redis", nil, []int{srv.PID()}, system{queue: newAsynq(srv.Socket)})
	return nil
}

func (t *table) addEtcd(ctx context.Context) error {
	urls, pids, err := t.startEtcd(ctx)
	if err != nil {
		return err
	}
	if err := t.addManager(ctx, "etcd, 3 members", pids, "--store", "etcd", "--store-dsn", strings.Join(urls, ",")); err != nil {
		return err
	}
	bare, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: time.Minute})
	if err != nil {
		return err
	}
	t.addRow("bare etcd client, 3 members", nil, pids, system{keys: etcdPairs(bare)})
	return nil
}

// withFeed is in the names of the managers of a data centre that has others.
const withFeed = ", --origin"

func (t *table) addManager(ctx context.Context, name string, engine []int, flags ...string) error {
	if !t.wants(name) {
		return nil
	}
	p, err := t.startManager(ctx, flags...)
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{URL: "http://" + p.URL})
	if err != nil {
		return err
	}
	t.addRow(name, p, engine, system{keys: managerKeys(ctx, p.URL), queue: managerQueue(c)})
	return nil
}

// managerQueue is the queue of a manager.
func managerQueue(c *client.Client) *queue {
	return &queue{
		enqueue: func(ctx context.Context, what, key string) error {
			_, err := c.SubmitIdempotent(ctx, client.Submission{Function: what, Payload: payload, Key: key})
			return err
		},
		claim: func(ctx context.Context, worker int) (bool, error) {
			// The lease is so long that no claimed job comes back during a run.
			got, err := c.Claim(ctx, client.ClaimRequest{Worker: fmt.Sprint("w", worker), Functions: []string{"claims"}, Lease: time.Hour})
			return len(got) == 1, err
		},
		work: func(ctx context.Context, concurrency, n int) error {
			return untilDone(ctx, n, func(ctx context.Context, done func()) error {
				w, err := c.NewWorker(client.WorkerOptions{Concurrency: concurrency, Handlers: map[string]client.Handler{
					"worked": func(context.Context, *client.Job) (any, error) { done(); return nil, nil },
				}})
				if err != nil {
					return err
				}
				return w.Run(ctx)
			})
		},
	}
}
