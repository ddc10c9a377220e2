package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// answer256 is what is recorded for a key.
var answer256 = strings.Repeat("x", 256)

// keyStore is a ledger, or what is used as one: it reserves keys, or commits an answer for each, all in one request. The
// calls of a caller do not overlap.
type keyStore func(ctx context.Context, caller int, keys []string, commit bool) error

// pairs reserves and commits new keys, so many together.
func (step keyStore) pairs(d time.Duration, callers, batch int) *load {
	return &load{run: func(ctx context.Context) (int, error) {
		run := runName()
		n, err := timedCalls(ctx, d, callers, func(ctx context.Context, caller, n int) error {
			keys := keysOf(run, caller, n, batch)
			if err := step(ctx, caller, keys, false); err != nil {
				return err
			}
			return step(ctx, caller, keys, true)
		})
		return n * batch, err
	}}
}

var errUnexpected = errors.New("a key is not as expected")

func etcdPairs(c *clientv3.Client) keyStore {
	return func(ctx context.Context, _ int, keys []string, commit bool) error {
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
			err = errUnexpected
		}
		return err
	}
}

func postgresPairs(pool *pgxpool.Pool) keyStore {
	return func(ctx context.Context, _ int, keys []string, commit bool) error {
		stmt, args := `INSERT INTO pairs SELECT k, 'token', 0, now() + interval '60 s' FROM unnest($1::text[]) k ON CONFLICT (key) DO NOTHING`, []any{keys}
		if commit {
			stmt, args = `UPDATE pairs SET state = 1, result = $2 WHERE key = ANY($1) AND token = 'token' AND state = 0`, append(args, []byte(answer256))
		}
		tag, err := pool.Exec(ctx, stmt, args...)
		if err == nil && tag.RowsAffected() != int64(len(keys)) {
			err = errUnexpected
		}
		return err
	}
}

func redisPairs(rdb *goredis.Client) keyStore {
	return func(ctx context.Context, _ int, keys []string, commit bool) error {
		_, err := rdb.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, k := range keys {
				if commit {
					p.SetXX(ctx, "bare:"+k, answer256, time.Hour)
				} else {
					p.SetNX(ctx, "bare:"+k, "token", time.Hour)
				}
			}
			return nil
		})
		return err
	}
}
