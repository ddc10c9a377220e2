package postgres

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

// changes is what a transaction read and what it writes. The server's function apply takes it as columns.
type changes struct {
	locks   []lock
	records []recordChange
	entries []entryChange

	// newIndexes are the indexes of new entries that the server may not know yet.
	newIndexes []indexName

	// Only to share a commit: the records with whether they are written, and what server they were read on; empty if none
	// was. It becomes that of the commit.
	names  map[recordName]bool
	server server
}

// lock is the advisory lock of an absent record.
type lock struct {
	number int64
	own    bool
}

// recordChange is what apply does with a record.
type recordChange struct {
	what           string
	name           recordName
	version        uint32
	value, entries []byte
}

// entryChange is what apply does with an index entry of a record.
type entryChange struct {
	what, key          string
	oldIndex, newIndex int32
	oldSort, newSort   string
}

// What apply does with a record or an entry.
const (
	unchanged   = "r" // check that the record is as it was read
	stillAbsent = "n"
	update      = "u"
	remove      = "d"
	insert      = "i"
)

// lockNumber is the number of the advisory lock for a record that has no row.
func (s *Store) lockNumber(r *overlay.Record) int64 {
	h := fnv.New64a()
	for _, part := range []string{s.schema, string(r.Collection), r.Key} {
		_, _ = io.WriteString(h, part)
		_, _ = h.Write([]byte{0})
	}
	return int64(h.Sum64())
}

// byName is the order of records.
func byName(a, b *overlay.Record) int {
	return cmp.Or(strings.Compare(string(a.Collection), string(b.Collection)), strings.Compare(a.Key, b.Key))
}

// changes sorts records and entries, so that transactions lock in the same order and cannot deadlock.
func (t *tx) changes() *changes {
	records := t.Records()
	slices.SortFunc(records, byName)
	c := &changes{records: make([]recordChange, 0, len(records)), entries: make([]entryChange, 0, len(records))}
	for _, r := range records {
		what := unchanged
		switch {
		case r.Written && r.Present && r.Stored:
			what = update
		case r.Written && r.Present:
			what = insert
			c.locks = append(c.locks, lock{t.s.lockNumber(r), true})
		case r.Written && r.Stored:
			what = remove
		case !r.Stored:
			what = stillAbsent
			c.locks = append(c.locks, lock{t.s.lockNumber(r), false})
		}
		c.record(what, r)
		if r.Written {
			c.changedEntries(r, &t.s.indexes)
		}
	}
	c.sortLocks()
	return c
}

func (c *changes) sortLocks() {
	slices.SortFunc(c.locks, func(a, b lock) int { return cmp.Compare(a.number, b.number) })
}

// merge returns the changes of several transactions as those of one, in the order in which a transaction locks.
func merge(batch []*changes) *changes {
	m := &changes{}
	for _, c := range batch {
		m.locks = append(m.locks, c.locks...)
		m.records = append(m.records, c.records...)
		m.entries = append(m.entries, c.entries...)
		m.newIndexes = append(m.newIndexes, c.newIndexes...)
	}
	slices.SortStableFunc(m.records, func(a, b recordChange) int {
		return cmp.Or(strings.Compare(a.name.coll, b.name.coll), strings.Compare(a.name.key, b.name.key))
	})
	m.sortLocks()
	return m
}

func (c *changes) record(what string, r *overlay.Record) {
	n := recordChange{what: what, name: recordName{string(r.Collection), r.Key}, version: uint32(r.Version)}
	if what == update || what == insert {
		n.value, n.entries = r.Value, reccodec.Append(nil, r.Entries)
	}
	c.records = append(c.records, n)
}

// changedEntries turns old entries into new ones, which is cheaper than deleting and inserting.
func (c *changes) changedEntries(r *overlay.Record, x *indexes) {
	removed, added := r.Removed(), r.Added()
	for i := range max(len(removed), len(added)) {
		e := entryChange{what: update, key: r.Key}
		if i < len(removed) {
			e.oldIndex, _ = x.id(indexName{string(r.Collection), removed[i].Index})
			e.oldSort = removed[i].SortKey
		} else {
			e.what = insert
		}
		if i < len(added) {
			name := indexName{string(r.Collection), added[i].Index}
			var known bool
			if e.newIndex, known = x.id(name); !known && !slices.Contains(c.newIndexes, name) {
				c.newIndexes = append(c.newIndexes, name)
			}
			e.newSort = added[i].SortKey
		} else {
			e.what = remove
		}
		c.entries = append(c.entries, e)
	}
}

// recordColumns are the arguments that say what was read.
func (c *changes) recordColumns() []any {
	return []any{
		wireStrings(pgtype.QCharOID, c.records, func(r *recordChange) string { return r.what }),
		wireStrings(pgtype.TextOID, c.records, func(r *recordChange) string { return r.name.coll }),
		wireStrings(pgtype.ByteaOID, c.records, func(r *recordChange) string { return r.name.key }),
		wireFixed(pgtype.XIDOID, c.records, func(r *recordChange) uint32 { return r.version }),
	}
}

// applyArgs are the arguments of the statement that commits.
func (c *changes) applyArgs() []any {
	return slices.Concat([]any{
		wireFixed(pgtype.Int8OID, c.locks, func(l *lock) int64 { return l.number }),
		wireFixed(pgtype.BoolOID, c.locks, func(l *lock) bool { return l.own }),
	}, c.recordColumns(), []any{
		wireBytes(c.records, func(r *recordChange) []byte { return r.value }),
		wireBytes(c.records, func(r *recordChange) []byte { return r.entries }),
		wireStrings(pgtype.QCharOID, c.entries, func(e *entryChange) string { return e.what }),
		wireStrings(pgtype.ByteaOID, c.entries, func(e *entryChange) string { return e.key }),
		wireFixed(pgtype.Int4OID, c.entries, func(e *entryChange) int32 { return e.oldIndex }),
		wireStrings(pgtype.ByteaOID, c.entries, func(e *entryChange) string { return e.oldSort }),
		wireFixed(pgtype.Int4OID, c.entries, func(e *entryChange) int32 { return e.newIndex }),
		wireStrings(pgtype.ByteaOID, c.entries, func(e *entryChange) string { return e.newSort }),
	})
}

// commit checks what was read, and writes, in one round trip.
func (t *tx) commit() error {
	if t.Err != nil {
		return t.Err
	}
	if len(t.Writes()) == 0 {
		err := t.validate()
		t.rollback()
		return err
	}
	c := t.changes()
	if t.shares && t.mayShare() && c.sharing() != nil {
		c.server = t.server
		err := t.s.commits.do(t.ctx, c)
		if err == nil {
			return t.ranOn(c.server)
		}
		if !errors.Is(err, errAlone) {
			return t.failed(err)
		}
	}
	conn, err := t.connection()
	if err != nil {
		return err
	}
	defer t.s.added(c)
	err = t.s.confirmed(t.ctx, conn, func(ctx context.Context) error {
		t.ctx = ctx
		return t.apply(c)
	})
	if err != nil {
		_ = t.Fail(err)
		return err
	}
	t.s.indexes.added(c.newIndexes, t.server)
	return nil
}

// added reports to the fronts what a commit may have added.
func (s *Store) added(c *changes) {
	for _, e := range c.entries {
		if e.what != remove {
			s.fronts.Added(e.newIndex, e.newSort)
		}
	}
}

// queue adds the statements that commit.
func (c *changes) queue(b *pgx.Batch, q *statements) {
	for _, n := range c.newIndexes {
		b.Queue(q.addIndex, indexID(n), n.collection, n.index)
	}
	b.Queue(q.apply, c.applyArgs()...)
}

// apply writes, and ends the transaction that may be open.
func (t *tx) apply(c *changes) error {
	if !t.begun && len(c.newIndexes) == 0 {
		if _, err := t.conn.Exec(t.ctx, t.s.sql.apply, c.applyArgs()...); err != nil {
			return t.failed(err)
		}
		return nil
	}
	b := &pgx.Batch{}
	c.queue(b, &t.s.sql)
	b.Queue("COMMIT")
	return t.send(b, nil)
}

// errChanged makes the function run again.
var errChanged = errors.New("postgres store: what the transaction read has changed")

// validate checks that everything the transaction read existed at one moment, for a transaction that writes nothing.
// For what a single statement returned that is always true.
func (t *tx) validate() error {
	if t.Err != nil || !t.unlocked || t.Reads() < 2 || t.statements < 2 {
		return t.Err
	}
	conn, err := t.connection()
	if err != nil {
		return err
	}
	c := &changes{}
	for _, r := range t.Records() {
		switch {
		case r.Assumed:
		case r.Stored:
			c.record(unchanged, r)
		default:
			c.record(stillAbsent, r)
		}
	}
	var same bool
	if err := conn.QueryRow(t.ctx, t.s.sql.same, c.recordColumns()...).Scan(&same); err != nil {
		return t.failed(err)
	}
	if !same {
		return t.failed(errChanged)
	}
	return nil
}
