package mem

import (
	"cmp"
	"encoding/binary"
	"strings"
	"unsafe"

	"github.com/tidwall/btree"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// record is one version of a record. It is immutable once applied: a change
// makes a new one, so readers and snapshots may keep it without the lock.
//
// There may be millions, so it is made of two allocations, itself in 64 bytes
// and its data, and its entries are numbers instead of pointers and strings: of
// all that the garbage collector has to follow two pointers.
type record struct {
	data   []byte // the key, the sort keys, the value; see newRecord
	seq    uint64 // log sequence number of the change that made it
	keyLen uint16
	n      uint16  // entries; the first two are in few, the others in more
	strLen uint32  // of the key and the sort keys
	few    [2]slot // more entries are rare
	more   *[]slot
}

// slot is an index entry: its sort key is a stretch of record.data.
type slot struct {
	index uint16 // index.id
	len   uint16
	off   uint32
}

// item is what the tree of an index is made of. prefix is the start of the
// sort key as a number: most comparisons end there and need not touch the
// record.
type item struct {
	prefix uint64
	rec    *record
}

type index struct {
	id   uint16 // its place in collection.indexes
	name string
	tree *btree.BTreeG[item]
	hint btree.PathHint // for writes, which often come in ascending order
	// removed is the sequence number of the last change that took an entry
	// out: a scan may miss that entry because of it.
	removed uint64
	// durable counts the entries that are durable; without a log it is unused.
	durable int
}

type collection struct {
	name    store.Collection
	records records
	indexes []*index
	byName  map[string]*index
	// deleted has the keys whose deletion may not be durable yet, with its
	// sequence number.
	deleted map[string]uint64
	// durable counts the records that are durable, and durableBytes those of
	// their keys and values; without a log they are unused.
	durable      int
	durableBytes int64
}

// fewIndexes are looked through faster than the map finds one.
const fewIndexes = 8

func newCollection(name store.Collection) *collection {
	return &collection{
		name:    name,
		records: newRecords(),
		byName:  make(map[string]*index),
		deleted: make(map[string]uint64),
	}
}

// index returns the index of that name, a new one when there is none.
func (c *collection) index(name string) (*index, error) {
	for _, ix := range c.indexes[:min(len(c.indexes), fewIndexes)] {
		if ix.name == name {
			return ix, nil
		}
	}
	if ix := c.byName[name]; ix != nil {
		return ix, nil
	}
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if len(c.indexes) >= maxIndexes {
		return nil, errIndexes
	}
	ix := &index{id: uint16(len(c.indexes)), name: name}
	ix.tree = btree.NewBTreeGOptions(ix.less, btree.Options{NoLocks: true})
	c.indexes = append(c.indexes, ix)
	c.byName[name] = ix
	return ix, nil
}

func (ix *index) less(a, b item) bool {
	if a.prefix != b.prefix {
		return a.prefix < b.prefix
	}
	return ix.compare(a, b) < 0
}

func (ix *index) compare(a, b item) int {
	if a.prefix != b.prefix {
		return cmp.Compare(a.prefix, b.prefix)
	}
	if c := strings.Compare(a.rec.sortKey(ix), b.rec.sortKey(ix)); c != 0 {
		return c
	}
	return strings.Compare(a.rec.key(), b.rec.key())
}

// item returns the item of r, which has an entry in ix.
func (ix *index) item(r *record) item {
	s := r.sortKey(ix)
	var b [8]byte
	copy(b[:], s)
	return item{binary.BigEndian.Uint64(b[:]), r}
}

// text is a stretch of the data as a string. Nobody writes to the data of a
// record, so that it can be shared like one; a copy per look at a key would cost
// more than everything else that a transaction does.
func (r *record) text(off, n uint32) string {
	return unsafe.String(unsafe.SliceData(r.data[off:off+n]), int(n))
}

func (r *record) key() string { return r.text(0, uint32(r.keyLen)) }

func (r *record) value() []byte { return r.data[r.strLen:] }

// size is that of the key and the value.
func (r *record) size() int64 { return int64(int(r.keyLen) + len(r.data) - int(r.strLen)) }

// slot returns the i-th entry.
func (r *record) slot(i int) *slot {
	if i < len(r.few) {
		return &r.few[i]
	}
	return &(*r.more)[i-len(r.few)]
}

func (r *record) sortKeyAt(i int) string {
	s := r.slot(i)
	return r.text(s.off, uint32(s.len))
}

// find returns the place of the record's entry in ix, or -1.
func (r *record) find(ix *index) int {
	for i := range int(r.n) {
		if r.slot(i).index == ix.id {
			return i
		}
	}
	return -1
}

func (r *record) sortKey(ix *index) string {
	if i := r.find(ix); i >= 0 {
		return r.sortKeyAt(i)
	}
	return ""
}

// newRecord builds a record with copies of a key and a value, and with room for
// as many bytes of sort keys: a key that is a piece of some request must not keep
// all of it in memory. addEntry does the rest.
func newRecord[K string | []byte](key K, sortBytes int, value []byte) *record {
	r := &record{
		data: make([]byte, len(key)+sortBytes+len(value)), keyLen: uint16(len(key)), strLen: uint32(len(key) + sortBytes),
	}
	copy(r.data, key)
	copy(r.data[r.strLen:], value)
	return r
}

// addEntry adds an entry to a record that nobody has seen yet.
func addEntry[K string | []byte](r *record, ix *index, sortKey K) {
	s := slot{index: ix.id, len: uint16(len(sortKey)), off: uint32(r.keyLen)}
	if r.n > 0 {
		last := r.slot(int(r.n) - 1)
		s.off = last.off + uint32(last.len)
	}
	copy(r.data[s.off:r.strLen], sortKey)
	switch {
	case int(r.n) < len(r.few):
		r.few[r.n] = s
	case r.more == nil:
		r.more = &[]slot{s}
	default:
		*r.more = append(*r.more, s)
	}
	r.n++
}

// put makes rec the version of its key and returns the one it replaces.
func (c *collection) put(rec *record) *record {
	old := c.records.put(rec)
	if old != nil {
		c.unlink(old, rec)
	}
	for i := range int(rec.n) {
		ix := c.indexes[rec.slot(i).index]
		ix.tree.SetHint(ix.item(rec), &ix.hint)
	}
	return old
}

// delete removes a record and returns it, nil when there is none. seq is what
// the indexes remember.
func (c *collection) delete(key string, seq uint64) *record {
	old := c.records.delete(key)
	if old == nil {
		return nil
	}
	for i := range int(old.n) {
		c.indexes[old.slot(i).index].remove(old, seq)
	}
	return old
}

// unlink takes those entries of old out of their indexes that rec does not
// replace in place.
func (c *collection) unlink(old, rec *record) {
	for i := range int(old.n) {
		ix := c.indexes[old.slot(i).index]
		if j := rec.find(ix); j < 0 || rec.sortKeyAt(j) != old.sortKeyAt(i) {
			ix.remove(old, rec.seq)
		}
	}
}

func (ix *index) remove(r *record, seq uint64) {
	ix.tree.DeleteHint(ix.item(r), &ix.hint)
	ix.removed = seq
}

// scan collects the hits of r and the highest sequence number on which they
// depend.
func (ix *index) scan(r store.Range) (hits []store.Hit, seen uint64) {
	sort, key := r.From, ""
	if r.After != nil {
		sort, key = r.After.SortKey, r.After.Key
	}
	pivot := newRecord(key, len(sort), nil)
	addEntry(pivot, ix, sort)
	seen = ix.removed
	ix.tree.Ascend(ix.item(pivot), func(it item) bool {
		s := it.rec.sortKey(ix)
		if r.To != "" && s >= r.To {
			return false
		}
		if r.After != nil && s == sort && it.rec.key() == key {
			return true
		}
		hits = append(hits, store.Hit{SortKey: s, Key: it.rec.key()})
		seen = max(seen, it.rec.seq)
		return len(hits) < r.Limit
	})
	return hits, seen
}
