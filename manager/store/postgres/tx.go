package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/store"
	"github.com/oncegate/oncegate/manager/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/store/internal/reccodec"
)

type tx struct {
	overlay.Tx
	s     *Store
	ctx   context.Context
	conn  *pgx.Conn
	begun bool
	now   time.Time
}

func (s *Store) newTx(ctx context.Context, conn *pgx.Conn, readOnly bool) *tx {
	t := &tx{s: s, ctx: ctx, conn: conn}
	t.ReadOnly, t.Load = readOnly, t.load
	return t
}

// failed notes an error of the driver; a conflict keeps its own type.
func (t *tx) failed(err error) error {
	if !conflict(err) {
		err = unavailable(err)
	}
	return t.Fail(err)
}

// send runs a batch in one round trip, beginning the transaction when it has
// not begun; read, when not nil, reads the answers.
func (t *tx) send(b *pgx.Batch, read func(pgx.BatchResults) error) error {
	if t.Err != nil {
		return t.Err
	}
	first := &pgx.Batch{}
	if !t.begun {
		if t.ReadOnly {
			first.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		} else {
			first.Queue("BEGIN")
		}
		first.QueuedQueries = append(first.QueuedQueries, b.QueuedQueries...)
		b = first
	}
	res := t.conn.SendBatch(t.ctx, b)
	err := func() error {
		if !t.begun {
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

// Now implements store.Tx: the server's clock after the first lock was
// granted, so that a transaction that waited for another one's lock never
// decides by a time before the other's.
func (t *tx) Now() time.Time {
	if t.now.IsZero() {
		b := &pgx.Batch{}
		b.Queue(t.s.sql.now)
		if t.send(b, t.readNow) != nil {
			return time.Now() // never acted on: the transaction fails with t.Err
		}
	}
	return t.now
}

func (t *tx) readNow(res pgx.BatchResults) error { return res.QueryRow().Scan(&t.now) }

// load gets a record and locks it, or its absence.
func (t *tx) load(r *overlay.Record) error {
	stmt := t.s.sql.getLocked
	if t.ReadOnly {
		stmt = t.s.sql.get
	}
	b := &pgx.Batch{}
	b.Queue(stmt, string(r.Collection), []byte(r.Key))
	wantNow := t.now.IsZero()
	if wantNow {
		b.Queue(t.s.sql.now)
	}
	err := t.send(b, func(res pgx.BatchResults) error {
		if err := read(r, res); err != nil || !wantNow {
			return err
		}
		return t.readNow(res)
	})
	if err != nil || r.Stored || t.ReadOnly {
		return err
	}
	return t.lockAbsence(r, stmt, wantNow)
}

// lockAbsence holds the record's name, then looks again: whoever held the name
// before may have inserted it.
func (t *tx) lockAbsence(r *overlay.Record, stmt string, wantNow bool) error {
	b := &pgx.Batch{}
	b.Queue(t.s.sql.lockAbsent, lockNumber(r.Collection, r.Key))
	b.Queue(stmt, string(r.Collection), []byte(r.Key))
	if wantNow {
		b.Queue(t.s.sql.now)
	}
	return t.send(b, func(res pgx.BatchResults) error {
		if _, err := res.Exec(); err != nil {
			return err
		}
		if err := read(r, res); err != nil || !wantNow {
			return err
		}
		return t.readNow(res)
	})
}

func lockNumber(c store.Collection, key string) int64 {
	h := fnv.New64a()
	h.Write([]byte(c))
	h.Write([]byte{0})
	h.Write([]byte(key))
	return int64(h.Sum64())
}

func read(r *overlay.Record, res pgx.BatchResults) error {
	var entries []byte
	err := res.QueryRow().Scan(&r.StoredValue, &entries)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	r.Stored = true
	if r.StoredEntries, _, err = reccodec.Split(entries); err != nil {
		return fmt.Errorf("%w: %s %q", err, r.Collection, r.Key)
	}
	return nil
}

// Scan implements store.Tx.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	q := &t.s.sql
	from, to, after, afterTo := q.scan, q.scanTo, q.scanAfter, q.scanAfterTo
	claim := r.Claim && !t.ReadOnly
	if claim {
		from, to, after, afterTo = q.claim, q.claimTo, q.claimAfter, q.claimAfterTo
	}
	b := &pgx.Batch{}
	switch coll := string(c); {
	case r.After != nil && r.To != "":
		b.Queue(afterTo, coll, index, r.Limit, []byte(r.After.SortKey), []byte(r.After.Key), []byte(r.To))
	case r.After != nil:
		b.Queue(after, coll, index, r.Limit, []byte(r.After.SortKey), []byte(r.After.Key))
	case r.To != "":
		b.Queue(to, coll, index, r.Limit, []byte(r.From), []byte(r.To))
	default:
		b.Queue(from, coll, index, r.Limit, []byte(r.From))
	}
	var hits []store.Hit
	err := t.send(b, func(res pgx.BatchResults) error {
		rows, err := res.Query()
		if err != nil {
			return err
		}
		var sortKey, key []byte
		into := []any{&sortKey, &key}
		rec := &overlay.Record{Collection: c}
		var entries []byte
		if claim {
			into = append(into, &rec.StoredValue, &entries)
		}
		_, err = pgx.ForEachRow(rows, into, func() error {
			hits = append(hits, store.Hit{SortKey: string(sortKey), Key: string(key)})
			if !claim {
				return nil
			}
			// The row is locked: the Get that follows needs no round trip.
			rec.Key, rec.Stored = string(key), true
			var err error
			if rec.StoredEntries, _, err = reccodec.Split(entries); err != nil {
				return fmt.Errorf("%w: %s %q", err, c, key)
			}
			t.Preload(rec)
			rec = &overlay.Record{Collection: c}
			into[2] = &rec.StoredValue
			return nil
		})
		return err
	})
	return hits, err
}

// commit sends all writes and COMMIT in one round trip.
func (t *tx) commit() error {
	writes := t.Writes()
	if !t.begun && len(writes) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	for _, r := range writes {
		t.queue(b, r)
	}
	b.Queue("COMMIT")
	n := b.Len()
	return t.send(b, func(res pgx.BatchResults) error {
		for range n {
			if _, err := res.Exec(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) queue(b *pgx.Batch, r *overlay.Record) {
	coll, key := string(r.Collection), []byte(r.Key)
	for _, e := range r.Removed() {
		b.Queue(t.s.sql.delEntry, coll, e.Index, []byte(e.SortKey), key)
	}
	switch {
	case !r.Present:
		b.Queue(t.s.sql.remove, coll, key)
	case r.Stored:
		b.Queue(t.s.sql.update, coll, key, r.Value, reccodec.Append(nil, r.Entries))
	default:
		b.Queue(t.s.sql.insert, coll, key, r.Value, reccodec.Append(nil, r.Entries))
	}
	for _, e := range r.Added() {
		b.Queue(t.s.sql.addEntry, coll, e.Index, []byte(e.SortKey), key)
	}
}

// rollback ends a failed transaction. The pool throws the connection away when
// that does not work.
func (t *tx) rollback() {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "ROLLBACK")
}
