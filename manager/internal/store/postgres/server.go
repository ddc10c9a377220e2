package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// server names a primary: the moment when its process started, in microseconds. It is the same in all connections to
// that process, and different for each other server, also for a standby that takes over.
type server string

// identity is where a connection keeps its server.
const identity = "oncegate server"

var errStandby = errors.New("postgres store: the server is a standby, must be the primary")

// identify wraps the check that the DSN asks for. pgx calls it for each server that the DSN names until one passes.
//
// A connection to a standby would live on when that server is promoted, with what was read before. It is refused, and
// a primary becomes a standby only by a restart, which ends its connections. So one question when the connection begins
// is enough.
func identify(asked pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) error {
		if asked != nil {
			if err := asked(ctx, c); err != nil {
				return err
			}
		}
		res, err := c.Exec(ctx, `SELECT pg_is_in_recovery(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint`).ReadAll()
		if err != nil {
			return err
		}
		row := res[0].Rows[0]
		if string(row[0]) == "t" {
			return errStandby
		}
		c.CustomData()[identity] = server(row[1])
		return nil
	}
}

func serverOf(c *pgx.Conn) server {
	s, _ := c.PgConn().CustomData()[identity].(server)
	return s
}
