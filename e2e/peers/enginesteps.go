package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func fillOf(q queue) func(context.Context, int, bool) error {
	return func(ctx context.Context, jobs int, _ bool) error {
		run := runName()
		return fillWith(jobs, func(i int) error { return q.enqueue(ctx, run+strconv.Itoa(i)) })
	}
}

// fillWith makes n calls, 64 at a time.
func fillWith(n int, call func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := call(int(i)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return errors.Join(collect(errs)...)
}

// pairsOf is pairs for a client that makes a step of a pair for a batch of keys in one request.
func pairsOf(step func(ctx context.Context, keys []string, commit bool) error) func(context.Context, time.Duration, int, int) (float64, error) {
	return func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		size, run := max(batch, 1), runName()
		rate, err := timedCalls(ctx, d, callers, func(ctx context.Context, caller, n int) error {
			keys := make([]string, size)
			for i := range keys {
				keys[i] = fmt.Sprintf("%s%d-%d-%d", run, caller, n, i)
			}
			if err := step(ctx, keys, false); err != nil {
				return err
			}
			return step(ctx, keys, true)
		})
		return rate * float64(size), err
	}
}

// answer256 is what the bare clients record for a key.
var answer256 = strings.Repeat("x", 256)

func etcdPairs(c *clientv3.Client) func(context.Context, time.Duration, int, int) (float64, error) {
	return pairsOf(func(ctx context.Context, keys []string, commit bool) error {
		var conditions []clientv3.Cmp
		var puts []clientv3.Op
		for _, k := range keys {
			if commit {
				conditions, puts = append(conditions, clientv3.Compare(clientv3.Value(k), "=", "token")), append(puts, clientv3.OpPut(k, answer256))
			} else {
				conditions, puts = append(conditions, clientv3.Compare(clientv3.CreateRevision(k), "=", 0)), append(puts, clientv3.OpPut(k, "token"))
			}
		}
		r, err := c.Txn(ctx).If(conditions...).Then(puts...).Commit()
		if err == nil && !r.Succeeded {
			err = errors.New("etcd: the key is not as expected")
		}
		return err
	})
}

func postgresPairs(pool *pgxpool.Pool) func(context.Context, time.Duration, int, int) (float64, error) {
	return pairsOf(func(ctx context.Context, keys []string, commit bool) error {
		stmt, args := `INSERT INTO pairs SELECT k, 'token', 0, now() + interval '60 s' FROM unnest($1::text[]) k ON CONFLICT (key) DO NOTHING`, []any{keys}
		if commit {
			stmt, args = `UPDATE pairs SET state = 1, result = $2 WHERE key = ANY($1) AND token = 'token' AND state = 0`, append(args, []byte(answer256))
		}
		tag, err := pool.Exec(ctx, stmt, args...)
		if err == nil && tag.RowsAffected() != int64(len(keys)) {
			err = errors.New("postgres: the keys are not as expected")
		}
		return err
	})
}

func redisPairs(rdb *goredis.Client) func(context.Context, time.Duration, int, int) (float64, error) {
	return pairsOf(func(ctx context.Context, keys []string, commit bool) error {
		_, err := rdb.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, k := range keys {
				if commit {
					p.SetXX(ctx, "bare:"+k, answer256, 5*time.Minute)
				} else {
					p.SetNX(ctx, "bare:"+k, "token", 5*time.Minute)
				}
			}
			return nil
		})
		return err
	})
}
