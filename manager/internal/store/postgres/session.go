package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// session are the settings that the engine needs in each of its sessions. They are not parameters of the connection,
// because a pooler refuses those that it does not know.
//
// A synchronous_commit of remote_apply waits for more than on does, so it stays; every other level is raised to on.
//
// Every statement is a few look-ups in a primary key. Any other plan is wrong, and the planner chooses other plans for
// tables whose statistics are out of date.
const session = `SELECT
	set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('lock_timeout', '5s', false), set_config('idle_in_transaction_session_timeout', '60s', false),
	set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false),
	set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false), set_config('enable_sort', 'off', false),
	set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
	set_config('enable_material', 'off', false), set_config('enable_memoize', 'off', false)`

// prepare makes a new connection fit.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	takeWires(conn)
	if _, err := conn.Exec(ctx, session); err != nil {
		return err
	}
	// The default of one second is long for transactions of a millisecond. Only superusers, and users they allow, may
	// change it.
	if _, err := conn.Exec(ctx, `SET deadlock_timeout = '50ms'`); err != nil && conn.IsClosed() {
		return err
	}
	return nil
}

var errPooler = errors.New("postgres store: the pooler in front of the server lends a connection for single transactions, must be for whole sessions " +
	"(PgBouncer: pool_mode = session): the engine needs the settings, the prepared statements and the LISTEN of a session")

// pooledRounds is how often checkPooler looks: other clients of a busy pooler may take the connection that gives it away.
const pooledRounds = 5

// checkPooler returns an error when a pooler gives a connection of the server to another client while its session
// continues. In a session of the server's own, its process stays the same and serves nobody else.
func checkPooler(ctx context.Context, conn *pgx.Conn) error {
	pid := func(c *pgx.Conn) (pid uint32, err error) {
		err = c.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
		return pid, err
	}
	first, err := pid(conn)
	if err != nil {
		return unavailable(err)
	}
	if first == conn.PgConn().PID() {
		return nil // nothing is in between
	}
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return unavailable(err)
	}
	defer other.Close(context.WithoutCancel(ctx))
	for range pooledRounds {
		if _, err := other.Exec(ctx, `BEGIN`); err != nil {
			return fmt.Errorf("%w: %w", errPooler, err) // statement pooling takes no transactions
		}
		theirs, err := pid(other)
		if err != nil {
			return unavailable(err)
		}
		again, err := pid(conn)
		if err != nil {
			return unavailable(err)
		}
		if theirs == first || again != first {
			return errPooler
		}
		if _, err := other.Exec(ctx, `ROLLBACK`); err != nil {
			return unavailable(err)
		}
	}
	return nil
}
