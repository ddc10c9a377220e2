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

	entWhat    []string
	entColl    []string
	entKey     [][]byte
	entOldIdx  []string
	entOldSort [][]byte
	entNewIdx  []string
	entNewSort [][]byte

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
		entWhat: []string{}, entColl: []string{}, entKey: [][]byte{},
		entOldIdx: []string{}, entOldSort: [][]byte{}, entNewIdx: []string{}, entNewSort: [][]byte{},
	}
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
		case r.Written && r.Stored:
			what = remove
		case !r.Stored:
			what = stillAbsent
			c.locks = append(c.locks, lock{t.s.lockNumber(r), false})
		}
		c.record(what, r)
		if r.Written {
			c.changedEntries(r)
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
		m.entColl = append(m.entColl, c.entColl...)
		m.entKey = append(m.entKey, c.entKey...)
		m.entOldIdx = append(m.entOldIdx, c.entOldIdx...)
		m.entOldSort = append(m.entOldSort, c.entOldSort...)
		m.entNewIdx = append(m.entNewIdx, c.entNewIdx...)
		m.entNewSort = append(m.entNewSort, c.entNewSort...)
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
	if what != update && what != insert {
		c.value, c.entries = append(c.value, nil), append(c.entries, nil)
	} else {
		c.value, c.entries = append(c.value, r.Value), append(c.entries, reccodec.Append(nil, r.Entries))
	}
}

// changedEntries turns old entries into new ones, which is cheaper than deleting and inserting.
func (c *changes) changedEntries(r *overlay.Record) {
	removed, added := r.Removed(), r.Added()
	for i := range max(len(removed), len(added)) {
		what := update
		var old, now store.Entry
		if i < len(removed) {
			old = removed[i]
		} else {
			what = insert
		}
		if i < len(added) {
			now = added[i]
		} else {
			what = remove
		}
		c.entWhat = append(c.entWhat, what)
		c.entColl = append(c.entColl, string(r.Collection))
		c.entKey = append(c.entKey, []byte(r.Key))
		c.entOldIdx = append(c.entOldIdx, old.Index)
		c.entOldSort = append(c.entOldSort, []byte(old.SortKey))
		c.entNewIdx = append(c.entNewIdx, now.Index)
		c.entNewSort = append(c.entNewSort, []byte(now.SortKey))
	}
}

// statement returns the one that commits, with its arguments.
func (c *changes) statement(q *statements) (stmt string, args []any) {
	char := func(v []string) wire { return wireStrings(pgtype.QCharOID, v) }
	text := func(v []string) wire { return wireStrings(pgtype.TextOID, v) }
	args = []any{wireNumbers(c.lockNumber), wireBools(c.lockOwn),
		char(c.what), text(c.coll), wireBytes(c.key), wireVersions(c.version), wireBytes(c.value), wireBytes(c.entries),
		char(c.entWhat), text(c.entColl), wireBytes(c.entKey),
		text(c.entOldIdx), wireBytes(c.entOldSort), text(c.entNewIdx), wireBytes(c.entNewSort)}
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
	c := t.changes()
	defer t.s.fronts.added(c)
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
	err = t.s.confirmed(t.ctx, conn, func(ctx context.Context) error {
		t.ctx = ctx
		return t.apply(c)
	})
	if err != nil {
		_ = t.Fail(err)
		return err
	}
	t.written(c.written, t.server)
	return nil
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

// apply writes, and ends the transaction that may be open.
func (t *tx) apply(c *changes) (err error) {
	stmt, args := c.statement(&t.s.sql)
	if !t.begun {
		if c.written, err = t.s.applied(t.server, t.conn.QueryRow(t.ctx, stmt, args...)); err != nil {
			return t.failed(err)
		}
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(stmt, args...)
	b.Queue("COMMIT")
	return t.send(b, func(res pgx.BatchResults) (err error) {
		if c.written, err = t.s.applied(t.server, res.QueryRow()); err != nil {
			return err
		}
		_, err = res.Exec()
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
