package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// engineColumns are what compareEngines measures. A pair is a reserve of a new key and the commit of its answer.
var engineColumns = []struct {
	name           string
	callers, batch int // of pairs; 0: of jobs
	what           string
}{
	{"pairs singly, 64 callers", 64, 0, "pairs"},
	{"pairs, 16 at a time, 16 callers", 16, 16, "pairs"},
	{"pairs, 64 at a time, 16 callers", 16, 64, "pairs"},
	{"claims, 10 workers", 10, 0, "claims"},
	{"jobs worked, 64 at once", 64, 0, "worked"},
}

// contender is one row: a manager on an engine, or a bare client of the same server.
type contender struct {
	name    string
	manager int   // process id; 0: there is none
	engine  []int // process ids of the servers that keep the records
	peer    bool

	pairs func(ctx context.Context, d time.Duration, callers, batch int) (perSecond float64, err error)
	// fill submits jobs, to be claimed or to be worked. claim takes one of the former; work runs so many of the latter.
	fill  func(ctx context.Context, jobs int, claimed bool) error
	claim func(ctx context.Context, worker int) (bool, error)
	work  func(ctx context.Context, concurrency, jobs int) error

	cells []engineCell
}

// engineCell is the best rate of all rounds, and the CPU times of the cheapest one in microseconds for each operation.
type engineCell struct {
	rate                    float64
	client, manager, engine float64
}

func (c engineCell) total() float64 { return c.client + c.manager + c.engine }

// usage is the CPU time of this process, of a manager and of the servers with their children.
func (c *contender) usage() (u [3]time.Duration) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err == nil {
		u[0] = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	}
	if c.manager != 0 {
		u[1] = cpuOf(c.manager)
	}
	for _, pid := range c.engine {
		u[2] += cpuOfTree(pid)
	}
	return u
}

// cpuOfTree is the CPU time of a process and of its children, running and ended.
func cpuOfTree(pid int) time.Duration {
	var ticks int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		self := filepath.Base(filepath.Dir(file)) == strconv.Itoa(pid)
		if !self && fields[1] != strconv.Itoa(pid) {
			continue
		}
		for _, f := range fields[11:15] { // of itself, and of its ended children
			n, _ := strconv.Atoi(f)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// engines is what takes part in the comparison, and what has to be stopped.
type engines struct {
	settings
	dir   string
	rows  []*contender
	stops []func()
}

func (e *engines) stop() {
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
}

// compareEngines measures the ledger and the queue on every engine beside bare clients and queues on the same servers.
// All take turns in each round, so what else the machine does disturbs all alike.
func compareEngines(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "oncegate-engines")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e := engines{settings: s, dir: dir}
	defer e.stop()
	if err := e.prepare(ctx); err != nil {
		return err
	}
	for round := range s.rounds {
		for column := range engineColumns {
			for _, c := range e.rows {
				if err := c.measure(ctx, s, column); err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, engineColumns[column].name, err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, s.rounds)
	}
	return e.write(ctx)
}

func (c *contender) measure(ctx context.Context, s settings, column int) error {
	col := engineColumns[column]
	var run func() (operations float64, err error)
	switch {
	case col.what == "pairs" && c.pairs != nil:
		run = func() (float64, error) {
			start := time.Now()
			rate, err := c.pairs(ctx, s.duration, col.callers, col.batch)
			return rate * time.Since(start).Seconds(), err
		}
	case col.what == "claims" && c.claim != nil:
		run = func() (float64, error) { return claimFor(ctx, s.duration, col.callers, c.claim) }
	case col.what == "claims" && c.work != nil: // a queue without a call for a claim: taken and completed
		run = func() (float64, error) { return float64(s.jobs), c.work(ctx, col.callers, s.jobs) }
	case col.what == "worked" && c.work != nil:
		run = func() (float64, error) { return float64(s.jobs), c.work(ctx, col.callers, s.jobs) }
	default:
		return nil
	}
	if col.what != "pairs" {
		if err := c.fill(ctx, s.jobs, col.what == "claims" && c.claim != nil); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	before, start := c.usage(), time.Now()
	operations, err := run()
	if err != nil {
		return err
	}
	took, after := time.Since(start), c.usage()
	each := func(i int) float64 { return float64((after[i] - before[i]).Microseconds()) / max(operations, 1) }
	cell := &c.cells[column]
	now := engineCell{client: each(0), manager: each(1), engine: each(2)}
	if cell.rate == 0 || now.total() < cell.total() {
		cell.client, cell.manager, cell.engine = now.client, now.manager, now.engine
	}
	cell.rate = max(cell.rate, operations/took.Seconds())
	return nil
}

// claimFor lets workers claim one job after the other until none is left or the time is over.
func claimFor(ctx context.Context, d time.Duration, workers int, claim func(context.Context, int) (bool, error)) (float64, error) {
	var claimed atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	start := time.Now()
	for w := range workers {
		wg.Go(func() {
			for time.Since(start) < d {
				ok, err := claim(ctx, w)
				if err != nil {
					errs <- err
				}
				if err != nil || !ok {
					return
				}
				claimed.Add(1)
			}
		})
	}
	wg.Wait()
	close(errs)
	return float64(claimed.Load()), errors.Join(collect(errs)...)
}

func (e *engines) add(c *contender) {
	if strings.Contains(strings.ToLower(c.name), strings.ToLower(e.only)) {
		c.cells = make([]engineCell, len(engineColumns))
		e.rows = append(e.rows, c)
	}
}

// prepare starts the servers, and a manager on every engine.
func (e *engines) prepare(ctx context.Context) error {
	for _, engine := range []string{"memory", "wal", "sqlite"} {
		flags := []string{"--store", engine}
		if engine != "memory" {
			flags = append(flags, "--data-dir", filepath.Join(e.dir, engine))
		}
		if err := e.addManager(engine, nil, flags...); err != nil {
			return err
		}
	}
	if err := e.addManager("wal"+withFeed, nil, "--store", "wal", "--data-dir", filepath.Join(e.dir, "feed"), "--origin", "dc1"); err != nil {
		return err
	}
	pg, pool, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	e.stops = append(e.stops, pg.Close, pool.Close)
	if err := e.addOnPostgres(ctx, pg, pool, "postgres", "ledger"); err != nil {
		return err
	}
	if err := e.addOnPostgres(ctx, pg, pool, "postgres"+withFeed, "feed", "--origin", "dc1"); err != nil {
		return err
	}
	if err := e.addPostgresPeers(ctx, pg, pool); err != nil {
		return err
	}
	redis, err := servers.StartRedis(ctx)
	if err != nil {
		return err
	}
	e.stops = append(e.stops, redis.Close)
	if err := e.addManager("redis", []int{redis.PID()}, "--store", "redis", "--store-dsn", redis.URL); err != nil {
		return err
	}
	// asynq keeps its jobs in another server, so that neither scans the other's keys.
	q, err := openAsynq(ctx)
	if err != nil {
		return err
	}
	asynq := q.(*asynqQueue)
	e.stops = append(e.stops, asynq.close)
	e.add(&contender{name: "asynq on Redis", peer: true, engine: []int{asynq.srv.PID()}, work: asynq.workAt, fill: fillOf(asynq)})
	rdb := goredis.NewClient(&goredis.Options{Network: "unix", Addr: redis.Socket, PoolSize: 64})
	e.stops = append(e.stops, func() { _ = rdb.Close() })
	e.add(&contender{name: "bare Redis: SET NX, SET XX", peer: true, engine: []int{redis.PID()}, pairs: redisPairs(rdb)})

	members, err := servers.StartEtcdMembers(ctx, 3)
	if err != nil {
		return err
	}
	var urls []string
	var pids []int
	for _, m := range members {
		e.stops = append(e.stops, m.Close)
		urls, pids = append(urls, m.URL), append(pids, m.PID())
	}
	if err := e.addManager("etcd, 3 members", pids, "--store", "etcd", "--store-dsn", strings.Join(urls, ",")); err != nil {
		return err
	}
	bare, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: readyTimeout})
	if err != nil {
		return err
	}
	e.stops = append(e.stops, func() { _ = bare.Close() })
	e.add(&contender{name: "bare etcd client, 3 members", peer: true, engine: pids, pairs: etcdPairs(bare)})
	if len(e.rows) == 0 {
		return usageError(fmt.Sprintf("-only %q: no system has that in its name", e.only))
	}
	return nil
}

// withFeed is in the names of the managers of a data centre that has others.
const withFeed = ", --origin"

func (e *engines) addOnPostgres(ctx context.Context, pg *servers.Server, pool *pgxpool.Pool, name, database string, flags ...string) error {
	if _, err := pool.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return err
	}
	dsn := strings.Replace(pg.URL, "dbname=postgres", "dbname="+database, 1)
	return e.addManager(name, []int{pg.PID()}, append([]string{"--store", "postgres", "--store-dsn", dsn}, flags...)...)
}

func (e *engines) addManager(name string, engine []int, flags ...string) error {
	if !strings.Contains(strings.ToLower(name), strings.ToLower(e.only)) {
		return nil
	}
	p, err := startLogged("", e.manager, append([]string{"serve", "--listen", "127.0.0.1:0", "--max-entries", strconv.Itoa(roomyWindow), "--max-bytes", "1099511627776",
		"--scope-share", "0"}, flags...)...)
	if err != nil {
		return err
	}
	e.stops = append(e.stops, p.stop)
	c, err := client.New(client.Options{URL: "http://" + p.addr})
	if err != nil {
		return err
	}
	o := &oncegate{manager: p, client: c}
	row := &contender{name: name, manager: p.cmd.Process.Pid, engine: engine, work: o.workAt}
	row.pairs = func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		rate, _, err := leanClients(ctx, d, callers, p.addr, newLedgerCalls(batch))
		return rate * float64(max(batch, 1)) / 2, err
	}
	row.fill = func(ctx context.Context, jobs int, claimed bool) error {
		function, run := "noop", runName()
		if claimed {
			function = "claimed"
		}
		all := make([]client.Submission, jobs)
		for i := range all {
			all[i] = client.Submission{Function: function, Payload: payload, Key: run + strconv.Itoa(i)}
		}
		answers, err := c.SubmitBatch(ctx, all)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
		}
		return err
	}
	row.claim = func(ctx context.Context, worker int) (bool, error) {
		got, err := c.Claim(ctx, client.ClaimRequest{Worker: fmt.Sprint("w", worker), Functions: []string{"claimed"}, Lease: claimedLease})
		return len(got) == 1, err
	}
	e.add(row)
	return nil
}

// claimedLease is so long that no claimed job comes back during a run.
const claimedLease = time.Hour

func (e *engines) addPostgresPeers(ctx context.Context, srv *servers.Server, pool *pgxpool.Pool) error {
	river, locked := &riverQueue{srv: srv, pool: pool}, &skipLockedQueue{srv: srv, pool: pool}
	if err := river.start(ctx); err != nil {
		return err
	}
	if err := locked.start(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE pairs (key text PRIMARY KEY, token text NOT NULL, state smallint NOT NULL, expires timestamptz NOT NULL, result bytea)`); err != nil {
		return err
	}
	pid := []int{srv.PID()}
	e.add(&contender{name: "bare pgx on the same Postgres: INSERT, UPDATE", peer: true, engine: pid, pairs: postgresPairs(pool)})
	e.add(&contender{name: "River on the same Postgres", peer: true, engine: pid, work: river.workAt, fill: fillOf(river)})
	e.add(&contender{name: "bare SKIP LOCKED on the same Postgres", peer: true, engine: pid, claim: locked.claim,
		fill: func(ctx context.Context, jobs int, _ bool) error { return locked.fill(ctx, jobs) }})
	return nil
}

// write prints the table, stores it, and puts it into the document.
func (e *engines) write(ctx context.Context) error {
	var b strings.Builder
	b.WriteString("| operations/s (CPU us each: client+manager+engine) |")
	for _, column := range engineColumns {
		fmt.Fprintf(&b, " %s |", column.name)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(engineColumns)))
	for _, c := range e.rows {
		name := c.name
		if !c.peer {
			name = "**" + name + "**"
		}
		fmt.Fprintf(&b, "| %s |", name)
		for i := range engineColumns {
			cell := c.cells[i]
			if cell.rate == 0 {
				b.WriteString(" – |")
				continue
			}
			manager := "–"
			if c.manager != 0 {
				manager = fmt.Sprintf("%.0f", cell.manager)
			}
			engine := "–"
			if c.engine != nil {
				engine = fmt.Sprintf("%.0f", cell.engine)
			}
			fmt.Fprintf(&b, " %.0f (%.0f+%s+%s) |", cell.rate, cell.client, manager, engine)
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	machine, err := describeHost(e.out)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "%s: %d rounds in turns, %s for each cell of pairs and of claims at most, %d jobs for each of the others. %s, asynq %s, River %s; %s; %s; %s. %s\n",
		today(), e.rounds, e.duration, e.jobs, version(ctx, e.manager, "version"), moduleVersion("github.com/hibiken/asynq"),
		moduleVersion("github.com/riverqueue/river"), version(ctx, "redis-server", "--version"), version(ctx, "psql", "--version"), version(ctx, "etcd", "--version"), machine)
	fmt.Print("\n", b.String())
	if err := os.WriteFile(filepath.Join(e.out, "engines.md"), []byte(b.String()), 0o644); err != nil || e.doc == "" {
		return err
	}
	return refreshDoc(e.doc, "engines", b.String(), "")
}
