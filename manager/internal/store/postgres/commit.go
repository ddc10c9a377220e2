package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

// changes holds the arguments of the server's function apply: what a transaction read and what it writes, as columns.
type changes struct {
	lockNumber []int64
	lockOwn    []bool

	what    []string
	coll    []string
	key     [][]byte
	version []uint32
	value   [][]byte
	entries [][]byte

	entWhat     []string
	entKey      [][]byte
	entOldIndex []int32
	entOldSort  [][]byte
	entNewIndex []int32
	entNewSort  [][]byte

	// entNew are the names of the new indexes, newIndexes those that the server may not know yet.
	entNew     []indexName
	newIndexes []indexName

	// Only to share a commit: the locks, the records with whether they are written, and what server the records were read
	// on; empty if none was. It becomes that of the commit.
	locks  []lock
	names  map[recordName]bool
	server server

	// guessed: records were not read. until is when the transaction must commit at the latest then, by the server's clock;
	// zero if at any time.
	guessed bool
	until   time.Time
	// written is the version of the rows that apply wrote.
	written uint32
}

// lock is the advisory lock of an absent record.
type lock struct {
	number int64
	own    bool
}

// newChanges returns empty columns: a nil one would become NULL.
func newChanges() *changes {
	return &changes{
		lockNumber: []int64{}, lockOwn: []bool{},
		what: []string{}, coll: []string{}, key: [][]byte{}, version: []uint32{}, value: [][]byte{}, entries: [][]byte{},
		entWhat: []string{}, entKey: [][]byte{},
		entOldIndex: []int32{}, entOldSort: [][]byte{}, entNewIndex: []int32{}, entNewSort: [][]byte{},
	}
}

// What apply does with a record or an entry.
const (
	unchanged   = "r" // check that the record is as it was read
	stillAbsent = "n"
	update      = "u"
	remove      = "d"
	removeValue = "v"
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
	c := newChanges()
	if c.guessed = t.guessed; c.guessed && !t.now.IsZero() {
		c.until = t.now.Add(clockFresh)
	}
	for _, r := range records {
		what := unchanged
		switch {
		case r.Written && r.Present && r.Stored:
			what = update
		case r.Written && r.Present:
			what = insert
			c.locks = append(c.locks, lock{t.s.lockNumber(r), true})
		case r.Written && r.Version == byValue:
			what = removeValue
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
	for _, l := range c.locks {
		c.lockNumber = append(c.lockNumber, l.number)
		c.lockOwn = append(c.lockOwn, l.own)
	}
}

// merge returns the changes of several transactions as those of one, in the order in which a transaction locks.
func merge(batch []*changes) *changes {
	type place struct {
		c *changes
		i int
	}
	var records []place
	m := newChanges()
	for _, c := range batch {
		m.locks = append(m.locks, c.locks...)
		m.guessed = m.guessed || c.guessed
		if !c.until.IsZero() && (m.until.IsZero() || c.until.Before(m.until)) {
			m.until = c.until
		}
		for i := range c.what {
			records = append(records, place{c, i})
		}
		m.entWhat = append(m.entWhat, c.entWhat...)
		m.entKey = append(m.entKey, c.entKey...)
		m.entOldIndex = append(m.entOldIndex, c.entOldIndex...)
		m.entOldSort = append(m.entOldSort, c.entOldSort...)
		m.entNewIndex = append(m.entNewIndex, c.entNewIndex...)
		m.entNewSort = append(m.entNewSort, c.entNewSort...)
		m.entNew = append(m.entNew, c.entNew...)
		m.newIndexes = append(m.newIndexes, c.newIndexes...)
	}
	slices.SortStableFunc(records, func(a, b place) int {
		return cmp.Or(strings.Compare(a.c.coll[a.i], b.c.coll[b.i]), bytes.Compare(a.c.key[a.i], b.c.key[b.i]))
	})
	for _, p := range records {
		m.what = append(m.what, p.c.what[p.i])
		m.coll = append(m.coll, p.c.coll[p.i])
		m.key = append(m.key, p.c.key[p.i])
		m.version = append(m.version, p.c.version[p.i])
		m.value = append(m.value, p.c.value[p.i])
		m.entries = append(m.entries, p.c.entries[p.i])
	}
	m.sortLocks()
	return m
}

func (c *changes) record(what string, r *overlay.Record) {
	c.what = append(c.what, what)
	c.coll = append(c.coll, string(r.Collection))
	c.key = append(c.key, []byte(r.Key))
	c.version = append(c.version, uint32(r.Version))
	switch what {
	case update, insert:
		c.value, c.entries = append(c.value, r.Value), append(c.entries, reccodec.Append(nil, r.Entries))
	case removeValue:
		c.value, c.entries = append(c.value, r.StoredValue), append(c.entries, reccodec.Append(nil, nil))
	default:
		c.value, c.entries = append(c.value, nil), append(c.entries, nil)
	}
}

// changedEntries turns old entries into new ones, which is cheaper than deleting and inserting.
func (c *changes) changedEntries(r *overlay.Record, x *indexes) {
	removed, added := r.Removed(), r.Added()
	for i := range max(len(removed), len(added)) {
		what := update
		var old, now store.Entry
		var oldIndex, newIndex int32
		var name indexName
		if i < len(removed) {
			old = removed[i]
			oldIndex, _ = x.id(indexName{string(r.Collection), old.Index})
		} else {
			what = insert
		}
		if i < len(added) {
			now = added[i]
			name = indexName{string(r.Collection), now.Index}
			var known bool
			if newIndex, known = x.id(name); !known && !slices.Contains(c.newIndexes, name) {
				c.newIndexes = append(c.newIndexes, name)
			}
		} else {
			what = remove
		}
		c.entWhat = append(c.entWhat, what)
		c.entKey = append(c.entKey, []byte(r.Key))
		c.entOldIndex = append(c.entOldIndex, oldIndex)
		c.entOldSort = append(c.entOldSort, []byte(old.SortKey))
		c.entNewIndex = append(c.entNewIndex, newIndex)
		c.entNewSort = append(c.entNewSort, []byte(now.SortKey))
		c.entNew = append(c.entNew, name)
	}
}

// statement returns the one that commits, with its arguments.
func (c *changes) statement(q *statements) (stmt string, args []any) {
	char := func(v []string) wire { return wireStrings(pgtype.QCharOID, v) }
	text := func(v []string) wire { return wireStrings(pgtype.TextOID, v) }
	args = []any{wireNumbers(c.lockNumber), wireBools(c.lockOwn),
		char(c.what), text(c.coll), wireBytes(c.key), wireVersions(c.version), wireBytes(c.value), wireBytes(c.entries),
		char(c.entWhat), wireBytes(c.entKey),
		wireIndexes(c.entOldIndex), wireBytes(c.entOldSort), wireIndexes(c.entNewIndex), wireBytes(c.entNewSort)}
	if !c.guessed {
		return q.apply, args
	}
	until := pgtype.Timestamptz{Time: c.until, Valid: true}
	if c.until.IsZero() {
		until.InfinityModifier = pgtype.Infinity
	}
	return q.applyGuessed, append(args, until)
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
	for _, r := range t.Records() {
		if r.Version == byValue && (!r.Written || r.Present) {
			return errGuessed
		}
	}
	c := t.changes()
	if t.shares && t.mayShare() && c.sharing() != nil {
		c.server = t.server
		err := t.s.commits.do(t.ctx, c)
		if err == nil {
			t.written(c.written, c.server)
			return t.ranOn(c.server)
		}
		if t.guessed && errors.Is(err, errChangedTogether) {
			err = errChanged // so that it reads, and shares again
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
	t.written(c.written, t.server)
	return nil
}

// added tells the fronts what a commit may have added.
func (s *Store) added(c *changes) {
	for i, what := range c.entWhat {
		if what != remove {
			s.fronts.Added(c.entNew[i].String(), string(c.entNewSort[i]))
		}
	}
}

// applied reads the answer to the statement that commits. Without a row, a guess was wrong.
func (s *Store) applied(on server, row pgx.Row) (version uint32, err error) {
	var clock pgtype.Timestamptz
	var id int64
	err = row.Scan(nil, &id, &clock)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errChanged
	}
	if err != nil {
		return 0, err
	}
	s.clock.saw(on, clock.Time)
	return uint32(id), nil
}

// queue adds the statements that commit. read reads the answer of the last one.
func (c *changes) queue(b *pgx.Batch, q *statements) (read func(s *Store, on server, res pgx.BatchResults) error) {
	for _, n := range c.newIndexes {
		b.Queue(q.addIndex, n.collection, n.index)
	}
	stmt, args := c.statement(q)
	b.Queue(stmt, args...)
	return func(s *Store, on server, res pgx.BatchResults) (err error) {
		for range c.newIndexes {
			if _, err := res.Exec(); err != nil {
				return err
			}
		}
		c.written, err = s.applied(on, res.QueryRow())
		return err
	}
}

// apply writes, and ends the transaction that may be open.
func (t *tx) apply(c *changes) (err error) {
	if !t.begun && len(c.newIndexes) == 0 {
		stmt, args := c.statement(&t.s.sql)
		if c.written, err = t.s.applied(t.server, t.conn.QueryRow(t.ctx, stmt, args...)); err != nil {
			return t.failed(err)
		}
		return nil
	}
	b := &pgx.Batch{}
	read := c.queue(b, &t.s.sql)
	b.Queue("COMMIT")
	return t.send(b, func(res pgx.BatchResults) error {
		if err := read(t.s, t.server, res); err != nil {
			return err
		}
		_, err := res.Exec()
		return err
	})
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
	c := newChanges()
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
	if err := conn.QueryRow(t.ctx, t.s.sql.same, c.what, c.coll, c.key, c.version).Scan(&same); err != nil {
		return t.failed(err)
	}
	if !same {
		return t.failed(errChanged)
	}
	return nil
}
