package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

// mode says how a transaction protects what it reads.
type mode int

const (
	// optimistic: reads take no locks, and the commit checks that they still hold.
	optimistic mode = iota
	// pessimistic: reads take locks.
	pessimistic
	// snapshot: all reads see one state, and nothing is written.
	snapshot
)

type tx struct {
	overlay.Tx
	s    *Store
	ctx  context.Context
	mode mode
	// shares: reads and commits may share statements with those of other transactions.
	shares bool
	// server is where all statements ran; empty before the first.
	server server
	// statements is how many have returned records.
	statements int
	// unlocked: a record was read that another transaction may change before the commit.
	unlocked bool
	// conn is nil until connection is called, and release returns it.
	conn    *pgx.Conn
	release func()
	// begun: the server has an open transaction.
	begun bool
	// clock is the server's time at the last read, now what Now returned first.
	clock, now time.Time
}

func (s *Store) newTx(ctx context.Context, m mode, assume bool) *tx {
	t := &tx{s: s, ctx: ctx, mode: m, unlocked: m == optimistic, release: func() {}}
	t.ReadOnly, t.Load, t.LoadMany, t.Assume = m == snapshot, t.load, t.loadMany, assume
	t.FindEntries = t.findEntries
	return t
}

// connection returns the transaction's own connection. What shares statements needs none.
func (t *tx) connection() (*pgx.Conn, error) {
	if t.conn == nil {
		conn, err := t.s.pool.Acquire(t.ctx)
		if err != nil {
			return nil, t.Fail(unreached(err))
		}
		t.conn, t.release = conn.Conn(), conn.Release
		if err := t.ranOn(serverOf(t.conn)); err != nil {
			return nil, err
		}
	}
	return t.conn, t.Err
}

// mayShare reports whether statements may be shared. What holds a connection must not wait for those that run shared
// statements, because they need one as well.
func (t *tx) mayShare() bool { return t.mode == optimistic && t.conn == nil }

// ranOn records the server of a statement. After a failover, versions that the old server returned mean other transactions
// on the new one, so the function runs again.
func (t *tx) ranOn(s server) error {
	if t.server != "" && t.server != s {
		return t.failed(errChanged)
	}
	t.server = s
	return nil
}

// failed stores an error of the driver; a conflict keeps its own type.
func (t *tx) failed(err error) error {
	if !conflict(err) {
		err = unavailable(err)
	}
	return t.Fail(err)
}

// send runs a batch in one round trip inside the transaction, and begins the transaction if necessary. read, when not
// nil, reads the answers.
func (t *tx) send(b *pgx.Batch, read func(pgx.BatchResults) error) error {
	if t.Err != nil {
		return t.Err
	}
	conn, err := t.connection()
	if err != nil {
		return err
	}
	begins := !t.begun
	if begins {
		first := &pgx.Batch{}
		if t.mode == snapshot {
			first.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		} else {
			first.Queue("BEGIN")
		}
		first.QueuedQueries = append(first.QueuedQueries, b.QueuedQueries...)
		b = first
	}
	t.statements++
	res := conn.SendBatch(t.ctx, b)
	err = func() error {
		if begins {
			if _, err := res.Exec(); err != nil {
				return err
			}
			t.begun = true
		}
		if read == nil {
			return nil
		}
		return read(res)
	}()
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return t.failed(err)
	}
	return nil
}

// Now implements store.Tx: the server's clock at the last read before the first call. It is never before the time at
// which the records read were written.
func (t *tx) Now() time.Time {
	if !t.now.IsZero() {
		return t.now
	}
	if t.clock.IsZero() && t.Err == nil {
		borrowed := t.mayShare()
		conn, err := t.connection()
		if err == nil {
			if err := conn.QueryRow(t.ctx, t.s.sql.now).Scan(&t.clock); err != nil {
				_ = t.failed(err)
			}
		}
		if borrowed { // what follows may share
			t.release()
			t.conn, t.release = nil, func() {}
		}
	}
	if t.clock.IsZero() {
		return time.Now() // never used: the transaction fails with t.Err
	}
	t.now = t.clock
	return t.now
}

// Wall implements store.Tx.
func (t *tx) Wall() time.Time { return t.Now() }

func (t *tx) load(r *overlay.Record) error { return t.loadMany([]*overlay.Record{r}) }

// loadMany reads many records in one round trip, or in two where it locks.
func (t *tx) loadMany(records []*overlay.Record) error {
	if t.mode == pessimistic {
		return t.loadLocked(records)
	}
	ask := readingOf(records)
	if t.mode == optimistic {
		t.statements++
		read := func() error { return t.s.reads.do(t.ctx, ask) }
		if !t.mayShare() || len(records) > shareRecords {
			conn, err := t.connection()
			if err != nil {
				return err
			}
			read = func() error { return t.s.readOn(t.ctx, conn, []*reading{ask}) }
		}
		if err := read(); err != nil {
			return t.failed(err)
		}
		if err := t.ranOn(ask.server); err != nil {
			return err
		}
		for i, r := range records {
			t.keep(r, &ask.answers[i])
		}
		return nil
	}
	b := &pgx.Batch{}
	ask.queue(b, &t.s.sql)
	return t.send(b, func(res pgx.BatchResults) error { return t.readAll(res, records) })
}

// readAll reads the answer to a reading of the records.
func (t *tx) readAll(res pgx.BatchResults, records []*overlay.Record) error {
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for next := 0; rows.Next(); next++ {
		if err := t.read(records[next], rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// loadLocked locks the records' rows. Where there is no row it locks the name and reads again, because the transaction
// that held the lock before may have inserted the record. Transactions lock in the same order, so they cannot deadlock.
// It does not lock what seldom changes: all transactions that read that would wait for this one.
func (t *tx) loadLocked(records []*overlay.Record) error {
	load := func(res pgx.BatchResults, r *overlay.Record) error {
		err := t.read(r, res.QueryRow())
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	}
	slices.SortFunc(records, byName)
	b := &pgx.Batch{}
	seldom := func(r *overlay.Record) bool { return slices.Contains(t.s.seldom, r.Collection) }
	for _, r := range records {
		stmt := t.s.sql.getLocked
		if seldom(r) {
			stmt, t.unlocked = t.s.sql.get, true
		}
		b.Queue(stmt, string(r.Collection), []byte(r.Key))
	}
	err := t.send(b, func(res pgx.BatchResults) error {
		for _, r := range records {
			if err := load(res, r); err != nil {
				return err
			}
		}
		return nil
	})
	absent := slices.DeleteFunc(slices.Clone(records), func(r *overlay.Record) bool { return r.Stored || seldom(r) })
	if err != nil || len(absent) == 0 {
		return err
	}
	slices.SortFunc(absent, func(a, b *overlay.Record) int { return cmp.Compare(t.s.lockNumber(a), t.s.lockNumber(b)) })
	b = &pgx.Batch{}
	for _, r := range absent {
		b.Queue(t.s.sql.lockAbsent, t.s.lockNumber(r))
		b.Queue(t.s.sql.getLocked, string(r.Collection), []byte(r.Key))
	}
	b.Queue(t.s.sql.now)
	return t.send(b, func(res pgx.BatchResults) error {
		for _, r := range absent {
			if _, err := res.Exec(); err != nil {
				return err
			}
			if err := load(res, r); err != nil {
				return err
			}
		}
		return res.QueryRow().Scan(&t.clock)
	})
}

// read reads the time and a record.
func (t *tx) read(r *overlay.Record, row pgx.Row) error {
	var a answer
	if err := row.Scan(&a.clock, &a.value, &a.entries, &a.version); err != nil {
		return err
	}
	t.keep(r, &a)
	return nil
}

// keep stores what the server said of a record.
func (t *tx) keep(r *overlay.Record, a *answer) {
	t.clock = a.clock.Time
	if a.version.Valid {
		r.Stored, r.StoredValue, r.Version = true, a.value, int64(a.version.Uint32)
		split(r, a.entries)
	}
}

func split(r *overlay.Record, entries []byte) {
	var err error
	if r.StoredEntries, _, err = reccodec.Split(entries); err != nil {
		r.Unreadable = err.Error()
	}
}

// findEntries reads the whole index. It is used for a record whose own list of entries is damaged.
func (t *tx) findEntries(r *overlay.Record) error {
	b := &pgx.Batch{}
	b.Queue(t.s.sql.entries, string(r.Collection), []byte(r.Key))
	return t.send(b, func(res pgx.BatchResults) error {
		rows, err := res.Query()
		if err != nil {
			return err
		}
		var index string
		var sortKey []byte
		_, err = pgx.ForEachRow(rows, []any{&index, &sortKey}, func() error {
			r.StoredEntries = append(r.StoredEntries, store.Entry{Index: index, SortKey: string(sortKey)})
			return nil
		})
		return err
	})
}

// Scan implements store.Tx.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	if t.Err != nil {
		return nil, t.Err
	}
	if !r.Claim && !r.Repeated || t.ReadOnly || r.After != nil {
		return t.scan(c, index, r)
	}
	id, _ := t.s.indexes.id(indexName{string(c), index})
	for whole := false; ; whole = true {
		s := t.s.fronts.Begin(t.s.fronts.Mark(), id, r.From, whole)
		rest := r
		rest.From = s.From
		hits, err := t.scan(c, index, rest)
		if err != nil {
			return nil, err
		}
		var first, last string
		if len(hits) > 0 {
			first, last = hits[0].SortKey, hits[len(hits)-1].SortKey
		}
		if !s.End(len(hits), first, last, r.To, len(hits) < r.Limit) {
			return hits, nil
		}
	}
}

// scan runs the statement of a scan.
func (t *tx) scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	q := &t.s.sql
	from, to, after, afterTo := q.scan, q.scanTo, q.scanAfter, q.scanAfterTo
	claim := r.Claim && !t.ReadOnly
	if claim {
		from, to, after, afterTo = q.claim, q.claimTo, q.claimAfter, q.claimAfterTo
	}
	var stmt string
	id, _ := t.s.indexes.id(indexName{string(c), index})
	args := []any{id, r.Limit}
	switch {
	case r.After != nil && r.To != "":
		stmt, args = afterTo, append(args, []byte(r.After.SortKey), []byte(r.After.Key), []byte(r.To))
	case r.After != nil:
		stmt, args = after, append(args, []byte(r.After.SortKey), []byte(r.After.Key))
	case r.To != "":
		stmt, args = to, append(args, []byte(r.From), []byte(r.To))
	default:
		stmt, args = from, append(args, []byte(r.From))
	}
	if claim {
		args = append(args, string(c))
	}
	if !claim && !t.begun && t.mode == optimistic {
		conn, err := t.connection()
		if err != nil {
			return nil, err
		}
		rows, err := conn.Query(t.ctx, stmt, args...)
		if err == nil {
			var hits []store.Hit
			if hits, err = readHits(rows); err == nil {
				return hits, nil
			}
		}
		return nil, t.failed(err)
	}
	b := &pgx.Batch{}
	b.Queue(stmt, args...)
	// They are read after the hits are locked, so there is a moment at which all of that is true.
	var with []*overlay.Record
	if claim {
		if t.mode == optimistic {
			var err error
			if with, err = t.Unread(r.With); err != nil {
				return nil, err
			}
		}
		if len(with) > 0 {
			readingOf(with).queue(b, q)
		} else {
			b.Queue(q.now)
		}
	}
	var hits []store.Hit
	err := t.send(b, func(res pgx.BatchResults) error {
		rows, err := res.Query()
		if err != nil {
			return err
		}
		if !claim {
			hits, err = readHits(rows)
			return err
		}
		if hits, err = t.readClaimed(c, rows); err != nil {
			return err
		}
		if len(with) > 0 {
			if err := t.readAll(res, with); err != nil {
				return err
			}
			t.Preload(with...)
			return nil
		}
		return res.QueryRow().Scan(&t.clock)
	})
	return hits, err
}

func readHits(rows pgx.Rows) ([]store.Hit, error) {
	var hits []store.Hit
	var sortKey, key []byte
	_, err := pgx.ForEachRow(rows, []any{&sortKey, &key}, func() error {
		hits = append(hits, store.Hit{SortKey: string(sortKey), Key: string(key)})
		return nil
	})
	return hits, err
}

// readClaimed reads hits whose rows are locked, with their records, so the Get that follows needs no round trip.
func (t *tx) readClaimed(c store.Collection, rows pgx.Rows) ([]store.Hit, error) {
	var hits []store.Hit
	var records []*overlay.Record
	var sortKey, key, value, entries []byte
	var version uint32
	_, err := pgx.ForEachRow(rows, []any{&sortKey, &key, &value, &entries, &version}, func() error {
		hits = append(hits, store.Hit{SortKey: string(sortKey), Key: string(key)})
		r := &overlay.Record{Collection: c, Key: hits[len(hits)-1].Key, Stored: true, StoredValue: value, Version: int64(version)}
		value = nil // the next row's value must not overwrite this one
		split(r, entries)
		records = append(records, r)
		return nil
	})
	t.Preload(records...)
	return hits, err
}

// rollback ends a failed transaction. If that fails, the pool discards the connection.
func (t *tx) rollback() {
	if t.conn == nil || t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "ROLLBACK")
}
