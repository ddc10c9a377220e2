package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return "unknown"
}

// asynqQueue uses task ids as keys.
type asynqQueue struct {
	srv    *servers.Server
	client *asynq.Client
}

func openAsynq(ctx context.Context) (queue, error) {
	srv, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	return &asynqQueue{srv: srv, client: asynq.NewClient(asynq.RedisClientOpt{Network: "unix", Addr: srv.Socket, PoolSize: 64})}, nil
}

func (q *asynqQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.client.EnqueueContext(ctx, asynq.NewTask("noop", payload), asynq.TaskID(key))
	return err
}

func (q *asynqQueue) work(ctx context.Context, n int) error { return q.workAt(ctx, workConcurrency, n) }

func (q *asynqQueue) workAt(ctx context.Context, concurrency, n int) error {
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	server := asynq.NewServer(asynq.RedisClientOpt{Network: "unix", Addr: q.srv.Socket, PoolSize: 2 * concurrency},
		asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
	err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	defer server.Shutdown()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *asynqQueue) close() {
	_ = q.client.Close()
	q.srv.Close()
}

type noopArgs struct {
	Key  string `json:"key" river:"unique"`
	Text string `json:"text"`
}

func (noopArgs) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noopArgs]
	left atomic.Int64
	done chan struct{}
}

func (w *noopWorker) Work(context.Context, *river.Job[noopArgs]) error {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

type riverQueue struct {
	srv    *servers.Server
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func startPostgres(ctx context.Context) (*servers.Server, *pgxpool.Pool, error) {
	srv, err := servers.StartPostgres(ctx, "-c", "shared_buffers=256MB")
	if err != nil {
		return nil, nil, err
	}
	cfg, err := pgxpool.ParseConfig(srv.URL)
	if err == nil {
		cfg.MaxConns = 64
		var pool *pgxpool.Pool
		if pool, err = pgxpool.NewWithConfig(ctx, cfg); err == nil {
			return srv, pool, nil
		}
	}
	srv.Close()
	return nil, nil, err
}

func openRiver(ctx context.Context) (queue, error) {
	srv, pool, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	q := &riverQueue{srv: srv, pool: pool}
	if err := q.start(ctx); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// start creates the tables.
func (q *riverQueue) start(ctx context.Context) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(q.pool), &rivermigrate.Config{Logger: quiet()})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		q.client, err = river.NewClient(riverpgxv5.New(q.pool), &river.Config{Logger: quiet()})
	}
	return err
}

func (q *riverQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.client.Insert(ctx, noopArgs{Key: key, Text: string(payload[9 : len(payload)-2])}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
	return err
}

func (q *riverQueue) work(ctx context.Context, n int) error { return q.workAt(ctx, workConcurrency, n) }

func (q *riverQueue) workAt(ctx context.Context, concurrency, n int) error {
	w := &noopWorker{done: make(chan struct{})}
	w.left.Store(int64(n))
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{
		Logger: quiet(), Workers: workers, FetchCooldown: time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	// Stopping waits until completions are in the database.
	return errors.Join(client.Stop(context.WithoutCancel(ctx)), ctx.Err())
}

func (q *riverQueue) close() {
	q.pool.Close()
	q.srv.Close()
}

// naiveQueue is the pattern found in many home-made queues: peek at the head of
// a sorted set, WATCH it, move the job in MULTI/EXEC, start over on a conflict.
type naiveQueue struct {
	srv *servers.Server
	rdb *goredis.Client
}

func openNaive(ctx context.Context) (queue, error) {
	srv, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	return &naiveQueue{srv: srv, rdb: goredis.NewClient(&goredis.Options{Network: "unix", Addr: srv.Socket, PoolSize: 64})}, nil
}

func (q *naiveQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.rdb.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.HSet(ctx, "job:"+key, "payload", payload, "state", "queued")
		p.ZAdd(ctx, "queued", goredis.Z{Score: float64(time.Now().UnixNano()), Member: key})
		return nil
	})
	return err
}

func (q *naiveQueue) fill(ctx context.Context, n int) error {
	p := q.rdb.Pipeline()
	for i := range n {
		key := fmt.Sprintf("fill-%d", i)
		p.HSet(ctx, "job:"+key, "payload", payload, "state", "queued")
		p.ZAdd(ctx, "queued", goredis.Z{Score: float64(i), Member: key})
		if p.Len() >= 2000 {
			if _, err := p.Exec(ctx); err != nil {
				return err
			}
		}
	}
	_, err := p.Exec(ctx)
	return err
}

func (q *naiveQueue) claim(ctx context.Context, worker int) (bool, error) {
	for {
		found := false
		err := q.rdb.Watch(ctx, func(tx *goredis.Tx) error {
			keys, err := tx.ZRange(ctx, "queued", 0, 0).Result()
			if err != nil || len(keys) == 0 {
				return err
			}
			found = true
			if err := tx.HGet(ctx, "job:"+keys[0], "payload").Err(); err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
				p.ZRem(ctx, "queued", keys[0])
				p.ZAdd(ctx, "active", goredis.Z{Score: float64(time.Now().Add(time.Minute).UnixNano()), Member: keys[0]})
				p.HSet(ctx, "job:"+keys[0], "state", "active", "worker", worker)
				return nil
			})
			return err
		}, "queued")
		if !errors.Is(err, goredis.TxFailedErr) {
			return found, err
		}
	}
}

func (q *naiveQueue) work(context.Context, int) error { return errors.ErrUnsupported }

func (q *naiveQueue) close() {
	_ = q.rdb.Close()
	q.srv.Close()
}

// skipLockedQueue is one table and one UPDATE ... FOR UPDATE SKIP LOCKED.
type skipLockedQueue struct {
	srv  *servers.Server
	pool *pgxpool.Pool
}

func openSkipLocked(ctx context.Context) (queue, error) {
	srv, pool, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	q := &skipLockedQueue{srv: srv, pool: pool}
	if err := q.start(ctx); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// start creates the table.
func (q *skipLockedQueue) start(ctx context.Context) error {
	_, err := q.pool.Exec(ctx, `CREATE TABLE jobs (id bigserial PRIMARY KEY, key text UNIQUE NOT NULL, payload bytea NOT NULL,
		state smallint NOT NULL DEFAULT 0, worker int, lease timestamptz);
		CREATE INDEX queued ON jobs (id) WHERE state = 0`)
	return err
}

func (q *skipLockedQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.pool.Exec(ctx, `INSERT INTO jobs (key, payload) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, key, payload)
	return err
}

func (q *skipLockedQueue) fill(ctx context.Context, n int) error {
	_, err := q.pool.Exec(ctx, `INSERT INTO jobs (key, payload) SELECT gen_random_uuid()::text, $1 FROM generate_series(1, $2)`, payload, n)
	if err != nil {
		return err
	}
	_, err = q.pool.Exec(ctx, `ANALYZE jobs`)
	return err
}

func (q *skipLockedQueue) claim(ctx context.Context, worker int) (bool, error) {
	var id int64
	var p []byte
	err := q.pool.QueryRow(ctx, `UPDATE jobs SET state = 1, worker = $1, lease = now() + interval '60 s'
		WHERE id = (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, payload`, worker).Scan(&id, &p)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (q *skipLockedQueue) work(context.Context, int) error { return errors.ErrUnsupported }

func (q *skipLockedQueue) close() {
	q.pool.Close()
	q.srv.Close()
}
