package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// engineColumn is a load on ledger or queue.
type engineColumn struct {
	name, what     string // what: pairs, duplicates, enqueued, claims or worked
	callers, batch int    // batch: pairs that are made together
}

// A pair is a reserve of a new key and the commit of its answer.
var engineColumns = []engineColumn{
	{"pairs singly, 64 callers", "pairs", 64, 1},
	{"pairs, 16 at a time, 16 callers", "pairs", 16, 16},
	{"pairs, 64 at a time, 16 callers", "pairs", 16, 64},
	{"claims, 10 workers", "claims", 10, 1},
	{"jobs worked, 64 at once", "worked", 64, 1},
}

var jobColumns = []engineColumn{
	{"enqueued, 1 caller", "enqueued", 1, 1},
	{"enqueued, 10 callers", "enqueued", 10, 1},
	{"enqueued, 64 callers", "enqueued", 64, 1},
	{"claims, 1 worker", "claims", 1, 1},
	{"claims, 10 workers", "claims", 10, 1},
	{"jobs worked, 64 at once", "worked", 64, 1},
}

func ledgerColumns(s settings) (all []engineColumn) {
	for _, callers := range s.callers {
		for _, batch := range s.batches {
			all = append(all, engineColumn{fmt.Sprintf("pairs, callers %d, %d at a time", callers, batch), "pairs", callers, batch})
		}
		all = append(all, engineColumn{fmt.Sprintf("duplicates, callers %d", callers), "duplicates", callers, 1})
	}
	return all
}

// queue is a job queue, or what is used as one.
type queue interface {
	// enqueue submits one durable job with its own key.
	enqueue(ctx context.Context, key string) error
	// fill submits many jobs, to be claimed or to be worked.
	fill(ctx context.Context, what string, n int) error
}

// claimer is a queue that hands out jobs one at a time.
type claimer interface {
	// claim takes one job durably; false when there is none.
	claim(ctx context.Context, worker int) (bool, error)
}

// worker is a queue that runs jobs.
type worker interface {
	// work runs no-op handlers until n jobs are complete.
	work(ctx context.Context, concurrency, n int) error
}

// loadOf is what a system does in a column.
func loadOf(s settings, c engineColumn, keys *keyStore, q queue) *load {
	claims, _ := q.(claimer)
	works, _ := q.(worker)
	fill := func(ctx context.Context) error { return q.fill(ctx, c.what, s.jobs) }
	switch {
	case c.what == "pairs" && keys != nil:
		return keys.pairs(s.duration, c.callers, c.batch)
	case c.what == "duplicates" && keys != nil:
		return keys.duplicates(s.duration, c.callers)
	case c.what == "enqueued" && q != nil:
		return &load{run: func(ctx context.Context) (int, error) {
			run := runName()
			return timedCalls(ctx, s.duration, c.callers, func(ctx context.Context, caller, n int) error {
				return q.enqueue(ctx, keysOf(run, caller, n, 1)[0])
			})
		}}
	case c.what == "claims" && claims != nil:
		return &load{prepare: fill, run: func(ctx context.Context) (int, error) {
			return timedCalls(ctx, s.duration, c.callers, func(ctx context.Context, worker, _ int) error {
				ok, err := claims.claim(ctx, worker)
				if err == nil && !ok {
					err = errNoMore
				}
				return err
			})
		}}
	case (c.what == "claims" || c.what == "worked") && works != nil: // a queue without a call for a claim completes what it claims
		return &load{prepare: fill,
			run: func(ctx context.Context) (int, error) { return s.jobs, works.work(ctx, c.callers, s.jobs) }}
	}
	return nil
}

// engines is the comparison of ledger and queue on every engine with bare clients and queues on the same servers.
type engines struct {
	table
	loads []engineColumn
	dir   string
}

func compareEngines(ctx context.Context, s settings, name string, columns []engineColumn) error {
	dir, err := os.MkdirTemp("", "oncegate-engines")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e := engines{loads: columns, dir: dir, table: table{settings: s, name: name, unit: "operations/s", programs: []string{"client", "manager", "engine"},
		notes: strings.Join([]string{moduleVersion("asynq", "github.com/hibiken/asynq"), moduleVersion("River", "github.com/riverqueue/river"),
			version(ctx, "redis-server", "--version"), version(ctx, "psql", "--version"), version(ctx, "etcd", "--version")}, "; ")}}
	for _, c := range columns {
		e.columns = append(e.columns, c.name)
	}
	defer e.stop()
	if err := e.prepare(ctx); err != nil {
		return err
	}
	return e.measure(ctx)
}

func (e *engines) addRow(name string, manager *servers.Server, engine []int, keys *keyStore, q queue) {
	r := &row{name: name, own: manager != nil, cpu: []cpuTime{ownCPU, nil, nil}}
	if manager != nil {
		r.cpu[1] = cpuOf(manager.PID())
	}
	if engine != nil {
		r.cpu[2] = cpuOf(engine...)
	}
	r.load = func(i int) *load { return loadOf(e.settings, e.loads[i], keys, q) }
	e.add(r)
}

// prepare starts the servers, and a manager on every engine.
func (e *engines) prepare(ctx context.Context) error {
	for _, m := range []struct {
		name, engine string
		flags        []string
	}{{"memory", "memory", nil}, {"wal", "wal", nil}, {"sqlite", "sqlite", nil}, {"wal" + withFeed, "wal", []string{"--origin", "dc1"}}} {
		flags := append([]string{"--store", m.engine}, m.flags...)
		if m.engine != "memory" {
			flags = append(flags, "--data-dir", filepath.Join(e.dir, m.name))
		}
		if err := e.addManager(ctx, m.name, nil, flags...); err != nil {
			return err
		}
	}
	return errors.Join(e.preparePostgres(ctx), e.prepareRedis(ctx), e.prepareEtcd(ctx))
}

func (e *engines) preparePostgres(ctx context.Context) error {
	pg, err := servers.StartPostgres(ctx, "-c", "shared_buffers=256MB")
	if err != nil {
		return err
	}
	e.onStop(pg.Close)
	config, err := pgxpool.ParseConfig(pg.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	e.onStop(pool.Close)
	pid := []int{pg.PID()}
	for _, m := range []struct {
		name, database string
		flags          []string
	}{{"postgres", "ledger", nil}, {"postgres" + withFeed, "feed", []string{"--origin", "dc1"}}} {
		if _, err := pool.Exec(ctx, "CREATE DATABASE "+m.database); err != nil {
			return err
		}
		dsn := strings.Replace(pg.URL, "dbname=postgres", "dbname="+m.database, 1)
		if err := e.addManager(ctx, m.name, pid, append(m.flags, "--store", "postgres", "--store-dsn", dsn)...); err != nil {
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
	e.addRow("bare pgx on the same Postgres: INSERT, UPDATE", nil, pid, postgresPairs(pool), nil)
	e.addRow("River on the same Postgres", nil, pid, nil, river)
	e.addRow("bare SKIP LOCKED on the same Postgres", nil, pid, nil, locked)
	return nil
}

func (e *engines) prepareRedis(ctx context.Context) error {
	connect := func() (*servers.Server, *goredis.Client, error) {
		srv, err := servers.StartRedis(ctx)
		if err != nil {
			return nil, nil, err
		}
		rdb := goredis.NewClient(&goredis.Options{Network: "unix", Addr: srv.Socket, PoolSize: 64})
		e.onStop(func() { _ = rdb.Close(); srv.Close() })
		return srv, rdb, nil
	}
	srv, rdb, err := connect()
	if err != nil {
		return err
	}
	if err := e.addManager(ctx, "redis", []int{srv.PID()}, "--store", "redis", "--store-dsn", srv.URL); err != nil {
		return err
	}
	e.addRow("bare Redis: SET NX, SET XX", nil, []int{srv.PID()}, redisPairs(rdb), nil)
	// Queues keep their jobs in another server, so that neither scans the other's keys.
	srv, rdb, err = connect()
	if err != nil {
		return err
	}
	q := newAsynq(srv.Socket)
	e.onStop(func() { _ = q.client.Close() })
	e.addRow("asynq on Redis", nil, []int{srv.PID()}, nil, q)
	e.addRow("bare WATCH, MULTI on Redis", nil, []int{srv.PID()}, nil, &watchQueue{rdb})
	return nil
}

func (e *engines) prepareEtcd(ctx context.Context) error {
	members, err := servers.StartEtcdMembers(ctx, 3)
	if err != nil {
		return err
	}
	var urls []string
	var pids []int
	for _, m := range members {
		e.onStop(m.Close)
		urls, pids = append(urls, m.URL), append(pids, m.PID())
	}
	if err := e.addManager(ctx, "etcd, 3 members", pids, "--store", "etcd", "--store-dsn", strings.Join(urls, ",")); err != nil {
		return err
	}
	bare, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: time.Minute})
	if err != nil {
		return err
	}
	e.onStop(func() { _ = bare.Close() })
	e.addRow("bare etcd client, 3 members", nil, pids, etcdPairs(bare), nil)
	return nil
}

// withFeed is in the names of the managers of a data centre that has others.
const withFeed = ", --origin"

// startManager starts one until the end, whose window is so large that it refuses no new key during the longest run.
func (t *table) startManager(ctx context.Context, flags ...string) (*servers.Server, error) {
	p, err := startLogged(ctx, t.manager(), append([]string{"serve", "--listen", "127.0.0.1:0", "--max-entries", "20000000", "--max-bytes", "1099511627776",
		"--scope-share", "0"}, flags...)...)
	if err == nil {
		t.onStop(p.Close)
	}
	return p, err
}

func (e *engines) addManager(ctx context.Context, name string, engine []int, flags ...string) error {
	if !e.wants(name) {
		return nil
	}
	p, err := e.startManager(ctx, flags...)
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{URL: "http://" + p.URL})
	if err != nil {
		return err
	}
	e.addRow(name, p, engine, managerKeys(ctx, &e.table, p.URL), &managerQueue{c})
	return nil
}

// managerQueue is the queue of a manager.
type managerQueue struct{ client *client.Client }

func (q *managerQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.client.SubmitIdempotent(ctx, client.Submission{Function: "enqueued", Payload: payload, Key: key})
	return err
}

func (q *managerQueue) fill(ctx context.Context, what string, n int) error {
	run, all := runName(), make([]client.Submission, n)
	for i := range all {
		all[i] = client.Submission{Function: what, Payload: payload, Key: run + strconv.Itoa(i)}
	}
	answers, err := q.client.SubmitBatch(ctx, all)
	for _, a := range answers {
		err = errors.Join(err, a.Err)
	}
	return err
}

func (q *managerQueue) claim(ctx context.Context, worker int) (bool, error) {
	// The lease is so long that no claimed job comes back during a run.
	got, err := q.client.Claim(ctx, client.ClaimRequest{Worker: fmt.Sprint("w", worker), Functions: []string{"claims"}, Lease: time.Hour})
	return len(got) == 1, err
}

func (q *managerQueue) work(ctx context.Context, concurrency, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := newCountdown(n, cancel)
	w, err := q.client.NewWorker(client.WorkerOptions{Concurrency: concurrency, Handlers: map[string]client.Handler{
		"worked": func(context.Context, *client.Job) (any, error) { left.done(); return nil, nil },
	}})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
