package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

const (
	sqlGet      = `SELECT value, entries FROM records WHERE coll = ? AND key = ?`
	sqlPut      = `INSERT INTO records (coll, key, value, entries) VALUES (?, ?, ?, ?) ON CONFLICT (coll, key) DO UPDATE SET value = excluded.value, entries = excluded.entries`
	sqlDelete   = `DELETE FROM records WHERE coll = ? AND key = ?`
	sqlEntries  = `SELECT idx, sort_key FROM entries WHERE coll = ? AND key = ?`
	sqlAddEntry = `INSERT INTO entries (coll, idx, sort_key, key) VALUES (?, ?, ?, ?)`
	sqlDelEntry = `DELETE FROM entries WHERE coll = ? AND idx = ? AND sort_key = ? AND key = ?`

	sqlSavepoint  = `SAVEPOINT one`
	sqlRelease    = `RELEASE one`
	sqlRollbackTo = `ROLLBACK TO one`

	// An empty "to" means no bound. "after" is always given; for a scan from the start of a range it is the pair just
	// below it.
	sqlScan = `SELECT sort_key, key FROM entries WHERE coll = ?1 AND idx = ?2 AND (sort_key, key) > (?3, ?4)
		AND (length(?5) = 0 OR sort_key < ?5) ORDER BY sort_key, key LIMIT ?6`
)

// queries reads for a transaction: the writer's prepared statements, or a reader's connection.
type queries interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// prepared are the writer's statements by their text.
type prepared map[string]*sql.Stmt

func prepare(ctx context.Context, conn *sql.Conn) (prepared, error) {
	q := make(prepared)
	for _, text := range []string{
		sqlGet, sqlScan, sqlEntries, sqlPut, sqlDelete, sqlAddEntry, sqlDelEntry, sqlSavepoint, sqlRelease, sqlRollbackTo,
	} {
		stmt, err := conn.PrepareContext(ctx, text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("prepare %q: %w", text, err), q.close())
		}
		q[text] = stmt
	}
	return q, nil
}

func (q prepared) close() (err error) {
	for _, stmt := range q {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

func (q prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return q[query].QueryContext(ctx, args...)
}

func (q prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return q[query].QueryRowContext(ctx, args...)
}

func (q prepared) exec(ctx context.Context, query string, args ...any) error {
	_, err := q[query].ExecContext(ctx, args...)
	return err
}

// each scans the columns of each row into to, and then calls fn.
func each(rows *sql.Rows, err error, to []any, fn func()) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return err
		}
		fn()
	}
	return rows.Err()
}

type tx struct {
	overlay.Tx
	ctx    context.Context
	q      queries
	now    time.Time
	sizeOf func(store.Collection) (records int, bytes int64)
	deltas map[countID]int
}

func newTx(ctx context.Context, q queries, now time.Time, sizeOf func(store.Collection) (int, int64), readOnly bool) *tx {
	t := &tx{ctx: ctx, q: q, now: now, sizeOf: sizeOf}
	t.ReadOnly, t.Load, t.FindEntries = readOnly, t.load, t.findEntries
	return t
}

// Now implements store.Tx.
func (t *tx) Now() time.Time { return t.now }

// Wall implements store.Tx.
func (t *tx) Wall() time.Time { return t.now }

// Size implements store.Tx.
func (t *tx) Size(c store.Collection) (records int, bytes int64, err error) {
	if err := store.CheckName(c); err != nil {
		return 0, 0, err
	}
	records, bytes = t.sizeOf(c)
	return records, bytes, nil
}

func (t *tx) load(r *overlay.Record) error {
	var entries []byte
	err := t.q.QueryRowContext(t.ctx, sqlGet, string(r.Collection), []byte(r.Key)).Scan(&r.StoredValue, &entries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return mapError(err)
	}
	r.Stored = true
	if r.StoredEntries, _, err = reccodec.Split(entries); err != nil {
		r.Unreadable = err.Error()
	}
	return nil
}

// findEntries reads the whole index. It is used for a record whose own list of entries is damaged.
func (t *tx) findEntries(r *overlay.Record) error {
	var e store.Entry
	rows, err := t.q.QueryContext(t.ctx, sqlEntries, string(r.Collection), []byte(r.Key))
	return mapError(each(rows, err, []any{&e.Index, &e.SortKey}, func() { r.StoredEntries = append(r.StoredEntries, e) }))
}

// Scan implements store.Tx. There is only one writer, so Claim has no effect.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	if t.Err != nil {
		return nil, t.Err
	}
	// Keys are never empty, so (From, "") is below every hit of the range.
	after := store.Hit{SortKey: r.From}
	if r.After != nil {
		after = *r.After
	}
	var hits []store.Hit
	var h store.Hit
	rows, err := t.q.QueryContext(t.ctx, sqlScan, string(c), index, []byte(after.SortKey), []byte(after.Key), []byte(r.To), r.Limit)
	if err := each(rows, err, []any{&h.SortKey, &h.Key}, func() { hits = append(hits, h) }); err != nil {
		return nil, t.Fail(mapError(err))
	}
	return hits, nil
}

// flush writes the transaction's changes into the tables.
func (t *tx) flush(q prepared) error {
	t.deltas = make(map[countID]int)
	for _, r := range t.Writes() {
		if err := t.flushRecord(q, r); err != nil {
			return mapError(err)
		}
	}
	return nil
}

func (t *tx) flushRecord(q prepared, r *overlay.Record) error {
	coll, key := string(r.Collection), []byte(r.Key)
	for _, e := range r.Removed() {
		if err := q.exec(t.ctx, sqlDelEntry, coll, e.Index, []byte(e.SortKey), key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, index: e.Index}]--
	}
	if r.Present {
		if err := q.exec(t.ctx, sqlPut, coll, key, r.Value, reccodec.Append(nil, r.Entries)); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, bytes: true}] += len(r.Value) - len(r.StoredValue)
		if !r.Stored {
			t.deltas[countID{c: r.Collection, bytes: true}] += len(key)
			t.deltas[countID{c: r.Collection}]++
		}
	} else {
		if err := q.exec(t.ctx, sqlDelete, coll, key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, bytes: true}] -= len(key) + len(r.StoredValue)
		t.deltas[countID{c: r.Collection}]--
	}
	for _, e := range r.Added() {
		if err := q.exec(t.ctx, sqlAddEntry, coll, e.Index, []byte(e.SortKey), key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, index: e.Index}]++
	}
	return nil
}
