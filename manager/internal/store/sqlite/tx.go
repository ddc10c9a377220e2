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
	// An empty "to" means no bound. "after" is always given; for a scan from the start of a range it is the pair just
	// below it.
	sqlScan = `SELECT sort_key, key FROM entries WHERE coll = ?1 AND idx = ?2 AND (sort_key, key) > (?3, ?4)
		AND (length(?5) = 0 OR sort_key < ?5) ORDER BY sort_key, key LIMIT ?6`
)

// queries reads for a transaction: through the writer's prepared statements or through a reader's connection.
type queries interface {
	get(ctx context.Context, c store.Collection, key string) *sql.Row
	scan(ctx context.Context, args ...any) (*sql.Rows, error)
	entries(ctx context.Context, c store.Collection, key string) (*sql.Rows, error)
}

type connQueries struct{ conn *sql.Conn }

func (q connQueries) get(ctx context.Context, c store.Collection, key string) *sql.Row {
	return q.conn.QueryRowContext(ctx, sqlGet, string(c), []byte(key))
}

func (q connQueries) scan(ctx context.Context, args ...any) (*sql.Rows, error) {
	return q.conn.QueryContext(ctx, sqlScan, args...)
}

func (q connQueries) entries(ctx context.Context, c store.Collection, key string) (*sql.Rows, error) {
	return q.conn.QueryContext(ctx, sqlEntries, string(c), []byte(key))
}

type preparedQueries struct {
	getStmt, scanStmt, entriesStmt, put, remove, addEntry, delEntry *sql.Stmt
	savepoint, release, rollbackTo                                  *sql.Stmt
}

func prepare(ctx context.Context, conn *sql.Conn) (*preparedQueries, error) {
	q := &preparedQueries{}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&q.getStmt, sqlGet}, {&q.scanStmt, sqlScan}, {&q.entriesStmt, sqlEntries}, {&q.put, sqlPut}, {&q.remove, sqlDelete},
		{&q.addEntry, sqlAddEntry}, {&q.delEntry, sqlDelEntry},
		{&q.savepoint, "SAVEPOINT one"}, {&q.release, "RELEASE one"}, {&q.rollbackTo, "ROLLBACK TO one"},
	} {
		stmt, err := conn.PrepareContext(ctx, p.text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("prepare %q: %w", p.text, err), q.close())
		}
		*p.stmt = stmt
	}
	return q, nil
}

func (q *preparedQueries) close() error {
	var errs []error
	for _, stmt := range []*sql.Stmt{q.getStmt, q.scanStmt, q.entriesStmt, q.put, q.remove, q.addEntry, q.delEntry, q.savepoint, q.release, q.rollbackTo} {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	return errors.Join(errs...)
}

func (q *preparedQueries) get(ctx context.Context, c store.Collection, key string) *sql.Row {
	return q.getStmt.QueryRowContext(ctx, string(c), []byte(key))
}

func (q *preparedQueries) scan(ctx context.Context, args ...any) (*sql.Rows, error) {
	return q.scanStmt.QueryContext(ctx, args...)
}

func (q *preparedQueries) entries(ctx context.Context, c store.Collection, key string) (*sql.Rows, error) {
	return q.entriesStmt.QueryContext(ctx, string(c), []byte(key))
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
	if err := store.CheckName(string(c)); err != nil {
		return 0, 0, err
	}
	records, bytes = t.sizeOf(c)
	return records, bytes, nil
}

func (t *tx) load(r *overlay.Record) error {
	var entries []byte
	err := t.q.get(t.ctx, r.Collection, r.Key).Scan(&r.StoredValue, &entries)
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
	rows, err := t.q.entries(t.ctx, r.Collection, r.Key)
	if err != nil {
		return mapError(err)
	}
	defer rows.Close()
	for rows.Next() {
		var index string
		var sortKey []byte
		if err := rows.Scan(&index, &sortKey); err != nil {
			return mapError(err)
		}
		r.StoredEntries = append(r.StoredEntries, store.Entry{Index: index, SortKey: string(sortKey)})
	}
	return mapError(rows.Err())
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
	rows, err := t.q.scan(t.ctx, string(c), index, []byte(after.SortKey), []byte(after.Key), []byte(r.To), r.Limit)
	if err != nil {
		return nil, t.Fail(mapError(err))
	}
	defer rows.Close()
	var hits []store.Hit
	for rows.Next() {
		var sortKey, key []byte
		if err := rows.Scan(&sortKey, &key); err != nil {
			return nil, t.Fail(mapError(err))
		}
		hits = append(hits, store.Hit{SortKey: string(sortKey), Key: string(key)})
	}
	if err := rows.Err(); err != nil {
		return nil, t.Fail(mapError(err))
	}
	return hits, nil
}

// flush writes the transaction's changes into the tables.
func (t *tx) flush(q *preparedQueries) error {
	t.deltas = make(map[countID]int)
	for _, r := range t.Writes() {
		if err := t.flushRecord(q, r); err != nil {
			return mapError(err)
		}
	}
	return nil
}

func (t *tx) flushRecord(q *preparedQueries, r *overlay.Record) error {
	coll, key := string(r.Collection), []byte(r.Key)
	for _, e := range r.Removed() {
		if _, err := q.delEntry.ExecContext(t.ctx, coll, e.Index, []byte(e.SortKey), key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, index: e.Index}]--
	}
	if r.Present {
		if _, err := q.put.ExecContext(t.ctx, coll, key, r.Value, reccodec.Append(nil, r.Entries)); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, bytes: true}] += len(r.Value) - len(r.StoredValue)
		if !r.Stored {
			t.deltas[countID{c: r.Collection, bytes: true}] += len(key)
			t.deltas[countID{c: r.Collection}]++
		}
	} else {
		if _, err := q.remove.ExecContext(t.ctx, coll, key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, bytes: true}] -= len(key) + len(r.StoredValue)
		t.deltas[countID{c: r.Collection}]--
	}
	for _, e := range r.Added() {
		if _, err := q.addEntry.ExecContext(t.ctx, coll, e.Index, []byte(e.SortKey), key); err != nil {
			return err
		}
		t.deltas[countID{c: r.Collection, index: e.Index}]++
	}
	return nil
}
