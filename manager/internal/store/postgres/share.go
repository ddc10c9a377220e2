package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
)

const (
	// shareWithin bounds a shared statement. It counts when calls without a deadline wait for a server that went silent.
	shareWithin = 15 * time.Second
	// shareLanes is how many statements of a kind run at the same time: while the server's disk makes one durable, its
	// processor works on the other.
	shareLanes = 2
	// shareMost bounds the transactions that share a statement, and with it the server's table of advisory locks.
	shareMost = 64
	// shareRecords bounds the records of one that shares. A batch of many keys has little to gain: its statements are cheap
	// for each key already, and on connections of their own more batches are at work at the same time.
	shareRecords = 8
	// shareBytes bounds what a transaction may write to share its commit: its values are copied.
	shareBytes = 64 << 10
	// shareLockWait bounds how long a lane waits for a lock that another transaction holds. After that each transaction goes alone,
	// and only those that need that lock wait longer.
	shareLockWait = "200ms"
)

// share lets concurrent calls share statements. A request that finds a free lane starts immediately; those that come
// while all lanes are busy go together in the next statement. It ends when nobody waits for the answer.
type share[T any] struct {
	batch.Batcher[T]
	// run answers all requests of a batch.
	run func(ctx context.Context, requests []T) error
	// fits reports whether a request may join others; one that may not goes alone. Nil: any may.
	fits func(requests []T, request T) bool
}

// begin must be called before the first request.
func (g *share[T]) begin(life *batch.Life) {
	g.Life, g.Lanes, g.Count, g.Within, g.EndLeft, g.Run = life, shareLanes, shareMost, shareWithin, true, g.together
}

// errAlone says that a request has not been run and that its caller has to run it alone.
var errAlone = errors.New("postgres store: does not share")

// errSilent is why a shared statement ended that nobody else ended.
var errSilent = errors.New("the server did not answer in time")

// do returns what run returned for the batch of the request. When ctx ends first, it returns the context's error, and
// run may still be at work with the request.
func (g *share[T]) do(ctx context.Context, request T) error {
	return g.Do(ctx, &batch.Call[T]{Arg: request})
}

func (g *share[T]) together(ctx context.Context, calls []*batch.Call[T]) error {
	var requests []T
	for _, c := range calls {
		if g.fits != nil && !g.fits(requests, c.Arg) {
			c.Finish(errAlone)
		} else {
			requests = append(requests, c.Arg)
		}
	}
	if len(requests) == 0 {
		return nil
	}
	err := g.run(ctx, requests)
	if errors.Is(err, context.DeadlineExceeded) { // not that of a caller
		err = fmt.Errorf("%w: postgres: %w", store.ErrUnavailable, errSilent)
	}
	return err
}

// reading asks for records. Their answers are in the same order.
type reading struct {
	colls   []string
	keys    [][]byte
	answers []answer
	server  server // that answered
}

func readingOf(records []*overlay.Record) *reading {
	r := &reading{colls: make([]string, len(records)), keys: make([][]byte, len(records))}
	for i, rec := range records {
		r.colls[i], r.keys[i] = string(rec.Collection), []byte(rec.Key)
	}
	return r
}

// queue adds the statement that reads the records.
func (r *reading) queue(b *pgx.Batch, q *statements) {
	if len(r.keys) == 1 {
		b.Queue(q.get, r.colls[0], r.keys[0])
	} else {
		b.Queue(q.getMany, r.colls, r.keys)
	}
}

// answer is a row of the server about a record.
type answer struct {
	clock          pgtype.Timestamptz
	value, entries []byte
	version        pgtype.Uint32 // invalid: there is no record
}

// readTogether reads the records of all requests in one statement.
func (s *Store) readTogether(ctx context.Context, batch []*reading) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unreached(err)
	}
	defer conn.Release()
	return s.readOn(ctx, conn.Conn(), batch)
}

func (s *Store) readOn(ctx context.Context, conn *pgx.Conn, batch []*reading) error {
	colls, keys := batch[0].colls, batch[0].keys
	if len(batch) > 1 {
		colls, keys = nil, nil
		for _, r := range batch {
			colls, keys = append(colls, r.colls...), append(keys, r.keys...)
		}
	}
	var stmt string
	var args []any
	if len(keys) == 1 {
		stmt, args = s.sql.get, []any{colls[0], keys[0]}
	} else {
		stmt, args = s.sql.getMany, []any{wireStrings(pgtype.TextOID, colls, same), wireBytes(keys, same)}
	}
	rows, err := conn.Query(ctx, stmt, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	on := serverOf(conn)
	for _, r := range batch {
		r.server = on
		r.answers = make([]answer, len(r.keys))
		for i := range r.answers {
			a := &r.answers[i]
			if !rows.Next() {
				return errors.Join(rows.Err(), errors.New("postgres store: the server returned too few rows"))
			}
			if err := rows.Scan(&a.clock, &a.value, &a.entries, &a.version); err != nil {
				return err
			}
		}
	}
	rows.Next() // the end, or what went wrong after the last row
	return rows.Err()
}

// commitTogether applies the changes of several transactions in one. They have no record in common that one of them
// writes, so each meets what it would meet alone.
func (s *Store) commitTogether(ctx context.Context, batch []*changes) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unreached(err)
	}
	defer conn.Release()
	on := serverOf(conn.Conn())
	for _, c := range batch {
		if c.server != "" && c.server != on {
			return errAlone // and runs again
		}
	}
	all := batch[0]
	if len(batch) > 1 {
		all = merge(batch)
	}
	defer s.added(all) // their callers may have left
	err = s.confirmed(ctx, conn.Conn(), func(ctx context.Context) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT set_config('lock_timeout', '` + shareLockWait + `', true)`)
		all.queue(b, &s.sql)
		return conn.SendBatch(ctx, b).Close()
	})
	if readOnly(err) {
		_ = conn.Conn().Close(context.WithoutCancel(ctx))
	}
	// Nothing was written, and the fault may be that of a single transaction.
	if pe := rolledBack(err); pe != nil && (pe.Code == lockTimeout || len(batch) > 1 && pe.Code != diskFull) {
		return errAlone
	}
	if err != nil && !conflict(err) {
		return unavailable(err)
	}
	if err == nil {
		s.indexes.added(all.newIndexes, on)
	}
	for _, c := range batch {
		c.server = on
	}
	return err
}

// confirmed runs send, which commits. A server with synchronous standbys waits for them before it answers. When that
// wait is cut short, the server still keeps the changes.
func (s *Store) confirmed(ctx context.Context, conn *pgx.Conn, send func(context.Context) error) error {
	caller := ctx
	if s.stand.active(serverOf(conn)) {
		var cancel context.CancelFunc
		ctx, cancel = s.stand.bounded(ctx)
		defer cancel()
	}
	pg := conn.PgConn()
	forgetWarning(pg)
	err := send(ctx)
	if err == nil {
		err = warning(pg)
	}
	if err != nil && caller.Err() == nil && ctx.Err() != nil {
		err = errUnproven
	}
	return err
}

// apart reports whether a transaction may share its commit with those of the batch.
func apart(batch []*changes, c *changes) bool {
	for _, have := range batch {
		for name, writes := range c.names {
			if theirs, found := have.names[name]; found && (writes || theirs) {
				return false
			}
		}
	}
	return true
}

// recordName is a record's collection and key.
type recordName struct{ coll, key string }

// sharing makes the changes independent of the caller's memory, and returns nil if they are too large.
func (c *changes) sharing() *changes {
	if len(c.records) > shareRecords {
		return nil
	}
	size := 0
	for _, r := range c.records {
		size += len(r.name.key) + len(r.value) + len(r.entries)
	}
	if size > shareBytes {
		return nil
	}
	c.names = make(map[recordName]bool, len(c.records))
	for i := range c.records {
		r := &c.records[i]
		r.value = bytes.Clone(r.value)
		c.names[r.name] = r.what != unchanged && r.what != stillAbsent
	}
	return c
}
