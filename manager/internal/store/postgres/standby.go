package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
)

const (
	// standbyWait bounds how long a commit, or a proof, waits for a standby.
	standbyWait = 10 * time.Second
	// lookEvery is how often the server is asked about its standbys.
	lookEvery = time.Second
	// lookTimeout bounds one such question.
	lookTimeout = 5 * time.Second
)

// errUnproven is why a call fails whose transaction is on the server, and perhaps on no standby.
var errUnproven = fmt.Errorf("%w: postgres: no synchronous standby confirmed the transaction in time", store.ErrUnavailable)

// errOtherServer is why a call fails that one server executed, while another one answered when the standbys were asked.
// The other one's standbys say nothing about what the first one had.
var errOtherServer = fmt.Errorf("%w: another server replaced it", errUnproven)

// standbys makes sure that no call answers from what a failover could undo (see the package documentation).
type standbys struct {
	pool     *pgxpool.Pool
	required int
	log      *slog.Logger
	moved    func() // called when another server answers

	state atomic.Pointer[standbyState]

	proofs calls.Round[server]
	looks  calls.Round[*standbyState]

	life *batch.Life
}

// standbyState is what the server said of its standbys.
type standbyState struct {
	server    server // which server; empty if none answered
	names     string // synchronous_standby_names
	shown     bool   // the server shows this user its standbys
	connected int
	missing   string // why calls are refused
	// ok ends when calls begin to be refused, and the commits that wait for a standby end with it.
	ok  context.Context
	end context.CancelFunc
}

// startStandbys asks the server for the first time, and then again and again until life ends.
func startStandbys(ctx context.Context, life *batch.Life, pool *pgxpool.Pool, o Options, moved func()) (*standbys, error) {
	g := &standbys{pool: pool, required: o.RequireSyncStandbys, log: o.Logger, moved: moved, life: life}
	st, err := g.look(ctx)
	if err != nil {
		return nil, err
	}
	if g.required > 0 && !st.shown {
		return nil, errors.New("postgres store: the user may not see the server's standbys, which --store-require-sync-standbys needs: GRANT pg_read_all_stats TO that user")
	}
	life.Go(g.watch)
	return g, nil
}

func (g *standbys) watch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-g.life.Context().Done():
			return
		case <-tick.C:
		}
		_, _ = join(g.life.Context(), g, &g.looks, lookTimeout, g.look)
	}
}

// look asks the server about its standbys. When it cannot, calls are refused as if none were there, provided that any
// are required.
func (g *standbys) look(ctx context.Context) (*standbyState, error) {
	var st standbyState
	err := g.ask(ctx, &st)
	switch {
	case err != nil && g.required == 0:
		return nil, unavailable(err) // the calls report a server that does not answer
	case err != nil:
		st.missing = "the Postgres server does not say which standbys it has"
	case g.required == 0:
	case st.names == "":
		st.missing = "the Postgres server's synchronous_standby_names is empty"
	case st.connected < g.required:
		st.missing = fmt.Sprintf("%d synchronous standbys of the Postgres server are connected, %d are required", st.connected, g.required)
	}
	g.set(&st)
	if err != nil {
		return nil, unavailable(err)
	}
	return &st, nil
}

func (g *standbys) ask(ctx context.Context, st *standbyState) error {
	conn, err := g.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	st.server = serverOf(conn.Conn())
	return conn.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names'), pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
		(SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum'))`).
		Scan(&st.names, &st.shown, &st.connected)
}

// set is called by one look at a time.
func (g *standbys) set(st *standbyState) {
	before := g.state.Load()
	moved := before != nil && before.server != st.server
	if before == nil {
		before = new(standbyState)
		before.ok, before.end = context.WithCancel(context.Background())
	}
	st.ok, st.end = before.ok, before.end // transactions at work continue
	if st.missing == "" && before.missing != "" {
		st.ok, st.end = context.WithCancel(context.Background())
	}
	g.state.Store(st)
	if moved || st.missing != "" {
		g.pool.Reset() // old connections may lead to a server that is not the primary any more
	}
	if moved {
		g.moved()
		if st.server != "" {
			g.log.Warn("another Postgres server answers: connections are made again")
		}
	}
	switch {
	case st.missing != "" && before.missing == "":
		st.end()
		g.log.Error("calls are refused until the required standbys are connected", "reason", st.missing)
	case st.missing == "" && before.missing != "":
		g.log.Info("the required standbys are connected", "connected", st.connected)
	}
}

// active reports whether a server waits for standbys, or has to. It is true for a server other than the one that was
// asked last: nothing is known of it.
func (g *standbys) active(s server) bool {
	st := g.state.Load()
	return g.required > 0 || st.names != "" || st.server != s
}

// refused is the error of calls while required standbys are missing.
func (g *standbys) refused() error {
	if why := g.state.Load().missing; why != "" {
		return fmt.Errorf("%w: %s", store.ErrUnavailable, why)
	}
	return nil
}

// replication implements store.Capabilities.Replication.
func (g *standbys) replication() store.Replication {
	st := g.state.Load()
	r := store.Replication{Required: g.required, Connected: st.connected, Missing: st.missing}
	if !st.shown {
		r.Connected = -1
	}
	return r
}

// bounded returns a context for a commit: it ends when a required standby is lost, and after standbyWait.
func (g *standbys) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, standbyWait)
	stop := context.AfterFunc(g.state.Load().ok, cancel)
	return ctx, func() { stop(); cancel() }
}

// proveRead returns nil once a standby has all that was visible on the server when proveRead was called. It commits a
// message after that and waits for it, together with all calls that ask meanwhile.
func (g *standbys) proveRead(ctx context.Context, s server) error {
	by, err := join(ctx, g, &g.proofs, standbyWait, func(ctx context.Context) (server, error) {
		conn, err := g.pool.Acquire(ctx)
		if err != nil {
			return "", unavailable(err)
		}
		defer conn.Release()
		pg := conn.Conn().PgConn()
		forgetWarning(pg)
		if _, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'oncegate', '')`); err != nil {
			return "", unavailable(err)
		}
		return serverOf(conn.Conn()), warning(pg)
	})
	if err != nil {
		return err
	}
	if by != s {
		return errOtherServer
	}
	return g.proveWrite(ctx, s)
}

// proveWrite returns nil if the server still had the required standbys after a commit. Without that look, a change of
// synchronous_standby_names would end the server's wait like a confirmation.
func (g *standbys) proveWrite(ctx context.Context, s server) error {
	if g.required == 0 {
		return nil
	}
	st, err := join(ctx, g, &g.looks, lookTimeout, g.look)
	switch {
	case err != nil:
		return err
	case st.server != s:
		return errOtherServer
	case st.missing != "":
		return fmt.Errorf("%w: %s", store.ErrUnavailable, st.missing)
	}
	return nil
}

// join takes part in a round.
func join[T any](ctx context.Context, g *standbys, r *calls.Round[T], limit time.Duration, ask func(context.Context) (T, error)) (T, error) {
	return r.Join(ctx, g.life, limit, func(ctx context.Context) (T, error) {
		result, err := ask(ctx)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			err = errUnproven
		}
		return result, err
	})
}

// warned is where a connection keeps the last warning.
const warned = "oncegate warning"

// keepWarning keeps a warning that may say that a commit did not wait for its standby until the end: 01000 after
// pg_cancel_backend, 57P01 after pg_terminate_backend. The text depends on the server's language.
func keepWarning(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" && (n.Code == "01000" || n.Code == "57P01") {
		c.CustomData()[warned] = n.Message
	}
}

func forgetWarning(c *pgconn.PgConn) { delete(c.CustomData(), warned) }

// warning returns an error if the server warned since forgetWarning.
func warning(c *pgconn.PgConn) error {
	if text, ok := c.CustomData()[warned]; ok {
		return fmt.Errorf("%w: %s", errUnproven, text)
	}
	return nil
}
