package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// text and payload are what a job carries: 256 bytes of JSON.
var (
	text    = strings.Repeat("x", 256-11)
	payload = json.RawMessage(`{"text":"` + text + `"}`)
)

// countdown calls a function once when n jobs are done.
type countdown struct {
	left atomic.Int64
	zero func()
}

func newCountdown(n int, zero func()) *countdown {
	c := &countdown{zero: zero}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) done() {
	if c.left.Add(-1) == 0 {
		c.zero()
	}
}

// enqueueMany enqueues n jobs, 64 at a time.
func enqueueMany(ctx context.Context, q queue, n int) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	run, errs := runName(), make([]error, 64)
	for caller := range errs {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n) && errs[caller] == nil; i = next.Add(1) {
				errs[caller] = q.enqueue(ctx, keysOf(run, 0, int(i), 1)[0])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// asynqQueue uses task ids as keys.
type asynqQueue struct {
	socket string
	client *asynq.Client
}

func newAsynq(socket string) *asynqQueue {
	return &asynqQueue{socket, asynq.NewClient(asynq.RedisClientOpt{Network: "unix", Addr: socket, PoolSize: 64})}
}

func (q *asynqQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.client.EnqueueContext(ctx, asynq.NewTask("noop", payload), asynq.TaskID(key))
	return err
}

func (q *asynqQueue) fill(ctx context.Context, _ string, n int) error { return enqueueMany(ctx, q, n) }

func (q *asynqQueue) work(ctx context.Context, concurrency, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	left := newCountdown(n, func() { cancel(errNoMore) })
	server := asynq.NewServer(asynq.RedisClientOpt{Network: "unix", Addr: q.socket, PoolSize: 2 * concurrency},
		asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { left.done(); return nil })); err != nil {
		return err
	}
	defer server.Shutdown()
	return waitFor(ctx)
}

// waitFor waits until a context ends with errNoMore, or with an error.
func waitFor(ctx context.Context) error {
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errNoMore) {
		return err
	}
	return nil
}

type noopArgs struct {
	Key  string `json:"key" river:"unique"`
	Text string `json:"text"`
}

func (noopArgs) Kind() string { return "noop" }

type riverQueue struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newRiver(ctx context.Context, pool *pgxpool.Pool) (*riverQueue, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()})
	return &riverQueue{pool, client}, err
}

func (q *riverQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.client.Insert(ctx, noopArgs{Key: key, Text: text}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
	return err
}

func (q *riverQueue) fill(ctx context.Context, _ string, n int) error { return enqueueMany(ctx, q, n) }

func (q *riverQueue) work(ctx context.Context, concurrency, n int) error {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	left := newCountdown(n, func() { cancel(errNoMore) })
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[noopArgs]) error { left.done(); return nil }))
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
	// Stopping waits until completions are in the database.
	return errors.Join(waitFor(waiting), client.Stop(context.WithoutCancel(ctx)))
}

// watchQueue is the pattern found in many home-made queues: peek at the head of
// a sorted set, WATCH it, move the job in MULTI/EXEC, start over on a conflict.
type watchQueue struct{ rdb *goredis.Client }

func (q *watchQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.rdb.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.HSet(ctx, "job:"+key, "payload", []byte(payload), "state", "queued")
		p.ZAdd(ctx, "queued", goredis.Z{Score: float64(time.Now().UnixNano()), Member: key})
		return nil
	})
	return err
}

func (q *watchQueue) fill(ctx context.Context, _ string, n int) error { return enqueueMany(ctx, q, n) }

func (q *watchQueue) claim(ctx context.Context, worker int) (bool, error) {
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

// skipLockedQueue is one table and one UPDATE ... FOR UPDATE SKIP LOCKED.
type skipLockedQueue struct{ pool *pgxpool.Pool }

func newSkipLocked(ctx context.Context, pool *pgxpool.Pool) (*skipLockedQueue, error) {
	_, err := pool.Exec(ctx, `CREATE TABLE jobs (id bigserial PRIMARY KEY, key text UNIQUE NOT NULL, payload bytea NOT NULL,
		state smallint NOT NULL DEFAULT 0, worker int, lease timestamptz);
		CREATE INDEX queued ON jobs (id) WHERE state = 0`)
	return &skipLockedQueue{pool}, err
}

func (q *skipLockedQueue) enqueue(ctx context.Context, key string) error {
	_, err := q.pool.Exec(ctx, `INSERT INTO jobs (key, payload) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, key, payload)
	return err
}

func (q *skipLockedQueue) fill(ctx context.Context, _ string, n int) error {
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
