package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// pingIdle is how long a connection may be idle without a ping before its next use.
	pingIdle = time.Second
	// pingWithin bounds that ping.
	pingWithin = 2 * time.Second
)

// unproven is where a connection records that it has been idle for long.
const unproven = "oncegate unproven"

// checkIdle makes a pool ping connections that were idle before it lends them. A network that is cut silently leaves
// connections that look well and never answer. The cut that one of them met has probably met all that are idle, so
// they are made again together, instead of one after each timeout. reset does that.
func checkIdle(cfg *pgxpool.Config, idle, within time.Duration, reset func()) {
	var mu sync.Mutex
	var done time.Time // the last reset
	failed := func(began time.Time) {
		mu.Lock()
		defer mu.Unlock()
		// A ping from before the last reset met the same cut. Connections that were made since are sound.
		if began.After(done) {
			reset()
			done = time.Now()
		}
	}
	// The pool's own ping would not report that it failed.
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		p.Conn.PgConn().CustomData()[unproven] = p.IdleDuration > idle
		return false
	}
	cfg.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
		if old, _ := c.PgConn().CustomData()[unproven].(bool); !old {
			return true, nil
		}
		began := time.Now()
		ping, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		if err := c.Ping(ping); err == nil {
			return true, nil
		}
		if ctx.Err() == nil {
			failed(began)
		}
		return false, ctx.Err()
	}
}
