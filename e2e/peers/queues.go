package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// text and payload are what a job carries: 256 bytes of JSON.
var (
	text    = strings.Repeat("x", 256-11)
	payload = json.RawMessage(`{"text":"` + text + `"}`)
)

// untilDone runs something that calls done for each job, and ends its context with the n-th.
func untilDone(ctx context.Context, n int, run func(ctx context.Context, done func()) error) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(n))
	err := run(running, func() {
		if left.Add(-1) == 0 {
			cancel()
		}
	})
	return errors.Join(err, ctx.Err())
}

// fill enqueues n jobs, 64 at a time.
func (q *queue) fill(ctx context.Context, what string, n int) error {
	var next atomic.Int64
	run := runName()
	_, err := timedCalls(ctx, time.Hour, 64, func(ctx context.Context, _, _ int) error {
		i := int(next.Add(1))
		if i > n {
			return errNoMore
		}
		return q.enqueue(ctx, what, keysOf(run, 0, i, 1)[0])
	})
	return err
}

// newAsynq uses task ids as keys.
func newAsynq(socket string) *queue {
	redis := asynq.RedisClientOpt{Network: "unix", Addr: socket, PoolSize: 64}
	client := asynq.NewClient(redis)
	return &queue{
		enqueue: func(ctx context.Context, _, key string) error {
			_, err := client.EnqueueContext(ctx, asynq.NewTask("noop", payload), asynq.TaskID(key))
			return err
		},
		work: func(ctx context.Context, concurrency, n int) error {
			redis.PoolSize = 2 * concurrency
			return untilDone(ctx, n, func(ctx context.Context, done func()) error {
				server := asynq.NewServer(redis, asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
				if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { done(); return nil })); err != nil {
					return err
				}
				defer server.Shutdown()
				<-ctx.Done()
				return nil
			})
		},
	}
}

type noopArgs struct {
	Key  string `json:"key" river:"unique"`
	Text string `json:"text"`
}

func (noopArgs) Kind() string { return "noop" }

func newRiver(ctx context.Context, pool *pgxpool.Pool) (*queue, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	return &queue{
		enqueue: func(ctx context.Context, _, key string) error {
			_, err := client.Insert(ctx, noopArgs{Key: key, Text: text}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
			return err
		},
		work: func(ctx context.Context, concurrency, n int) error {
			return untilDone(ctx, n, func(running context.Context, done func()) error {
				workers := river.NewWorkers()
				river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[noopArgs]) error { done(); return nil }))
				client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
					Logger: slog.New(slog.DiscardHandler), Workers: workers, FetchCooldown: time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
					Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
				})
				if err != nil {
					return err
				}
				if err := client.Start(ctx); err != nil {
					return err
				}
				<-running.Done()
				return client.Stop(context.WithoutCancel(ctx)) // waits until completions are in the database
			})
		},
	}, err
}

// newSkipLocked is one table and one UPDATE ... FOR UPDATE SKIP LOCKED.
func newSkipLocked(ctx context.Context, pool *pgxpool.Pool) (*queue, error) {
	_, err := pool.Exec(ctx, `CREATE TABLE jobs (id bigserial PRIMARY KEY, key text UNIQUE NOT NULL, payload bytea NOT NULL,
		state smallint NOT NULL DEFAULT 0, worker int, lease timestamptz);
		CREATE INDEX queued ON jobs (id) WHERE state = 0`)
	return &queue{
		enqueue: func(ctx context.Context, _, key string) error {
			_, err := pool.Exec(ctx, `INSERT INTO jobs (key, payload) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, key, payload)
			return err
		},
		claim: func(ctx context.Context, worker int) (bool, error) {
			var id int64
			var p []byte
			err := pool.QueryRow(ctx, `UPDATE jobs SET state = 1, worker = $1, lease = now() + interval '60 s'
				WHERE id = (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, payload`, worker).Scan(&id, &p)
			if errors.Is(err, pgx.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
	}, err
}
