package postgres

import (
	"cmp"
	"errors"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

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
	type lock struct {
		number int64
		own    bool
	}
	var locks []lock
	for _, r := range records {
		what := unchanged
		switch {
		case r.Written && r.Present && r.Stored:
			what = update
		case r.Written && r.Present:
			what = insert
			locks = append(locks, lock{t.s.lockNumber(r), true})
		case r.Written && r.Stored:
			what = remove
		case !r.Stored:
			what = stillAbsent
			locks = append(locks, lock{t.s.lockNumber(r), false})
		}
		c.record(what, r)
		if r.Written {
			c.changedEntries(r)
		}
	}
	slices.SortFunc(locks, func(a, b lock) int { return cmp.Compare(a.number, b.number) })
	for _, l := range locks {
		c.lockNumber = append(c.lockNumber, l.number)
		c.lockOwn = append(c.lockOwn, l.own)
	}
	return c
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

func (c *changes) args() []any {
	return []any{c.lockNumber, c.lockOwn, c.what, c.coll, c.key, c.version, c.value, c.entries,
		c.entWhat, c.entColl, c.entKey, c.entOldIdx, c.entOldSort, c.entNewIdx, c.entNewSort}
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
	args := t.changes().args()
	if !t.begun {
		if _, err := t.conn.Exec(t.ctx, t.s.sql.apply, args...); err != nil {
			return t.failed(err)
		}
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(t.s.sql.apply, args...)
	b.Queue("COMMIT")
	return t.send(b, func(res pgx.BatchResults) error {
		if _, err := res.Exec(); err != nil {
			return err
		}
		_, err := res.Exec()
		return err
	})
}

// errChanged makes the function run again.
var errChanged = errors.New("postgres store: what the transaction read has changed")

// validate checks that everything the transaction read existed at one moment, for a transaction that writes nothing.
// For a single record that is always true.
func (t *tx) validate() error {
	if t.Err != nil || t.mode != optimistic || t.Reads() < 2 {
		return t.Err
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
	if err := t.conn.QueryRow(t.ctx, t.s.sql.same, c.what, c.coll, c.key, c.version).Scan(&same); err != nil {
		return t.failed(err)
	}
	if !same {
		return t.failed(errChanged)
	}
	return nil
}
