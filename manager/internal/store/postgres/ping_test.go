package postgres

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// cutter is a proxy that can stop to pass anything through the connections that it has, without closing them.
type cutter struct {
	net.Listener
	cut   atomic.Int64 // connections up to this number are silent
	last  atomic.Int64
	asked atomic.Int64 // queries that met silence
}

// newCutter returns a proxy in front of an empty database, and the DSN that leads through the proxy.
func newCutter(t *testing.T) (p *cutter, dsn string) {
	t.Helper()
	db := servers.SharedPostgres(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = &cutter{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := p.last.Add(1)
			wg.Go(func() { p.serve(c, db.Address, n) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return p, "postgres://oncegate@" + l.Addr().String() + "/" + db.Name + "?sslmode=disable"
}

func (p *cutter) serve(client net.Conn, socket string, n int64) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
	for b := make([]byte, 64<<10); ; {
		got, err := client.Read(b)
		if err != nil {
			return
		}
		if n > p.cut.Load() {
			_, _ = server.Write(b[:got])
		} else if b[0] == 'Q' {
			p.asked.Add(1)
		}
	}
}

// After a silent cut, one ping that gets no answer is enough to make all idle connections again.
func TestConnectionsAreMadeAgainAfterASilentCut(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	p, dsn := newCutter(t)
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	const conns = 6
	cfg.MaxConns = conns
	var pool *pgxpool.Pool
	checkIdle(cfg, 0, time.Second, func() { pool.Reset() })
	if pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	all := func() {
		t.Helper()
		for range conns {
			c, err := pool.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Release()
			if _, err := c.Exec(ctx, `SELECT 1`); err != nil {
				t.Fatal(err)
			}
		}
	}
	all()
	p.cut.Store(p.last.Load())
	all()
	if got := p.asked.Load(); got != 1 {
		t.Errorf("%d idle connections were found dead one after the other, want one", got)
	}
}

// When many pings meet the same cut, the pool is reset once: a later reset would close connections that were made since.
func TestPingsOfOneCutResetOnce(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	p, dsn := newCutter(t)
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conns := make([]*pgx.Conn, 6)
	for i := range conns {
		if conns[i], err = pgx.ConnectConfig(ctx, cfg.ConnConfig); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close(ctx)
		conns[i].PgConn().CustomData()[unproven] = true
	}
	p.cut.Store(p.last.Load())
	var resets atomic.Int64
	checkIdle(cfg, 0, 100*time.Millisecond, func() {
		resets.Add(1)
		for p.asked.Load() < int64(len(conns)) && ctx.Err() == nil { // all have begun
			time.Sleep(time.Millisecond)
		}
	})
	var pings sync.WaitGroup
	for _, c := range conns {
		pings.Go(func() {
			if ok, err := cfg.PrepareConn(ctx, c); ok || err != nil {
				t.Errorf("a dead connection: %v, %v", ok, err)
			}
		})
	}
	pings.Wait()
	if got := resets.Load(); got != 1 {
		t.Errorf("%d resets", got)
	}
}
