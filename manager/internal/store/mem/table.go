package mem

import (
	"cmp"
	"encoding/binary"
	"strings"
	"unsafe"

	"github.com/tidwall/btree"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// record is one version of a record. It is immutable once applied: a change makes a new version, so readers and
// snapshots may keep it without the lock.
//
// There may be millions, so a record is only two allocations, 64 bytes and its data. Its entries are numbers instead of
// pointers and strings, so the garbage collector has only two pointers to follow.
type record struct {
	data   []byte // the key, the sort keys, the value; see newRecord
	seq    uint64 // log sequence number of the change that wrote it
	keyLen uint16
	n      uint16  // number of entries; the first two are in few, the others in more
	strLen uint32  // of the key and the sort keys
	few    [2]slot // more entries are rare
	more   *[]slot
}

// slot is an index entry: its sort key is a part of record.data.
type slot struct {
	index uint16 // index.id
	len   uint16
	off   uint32
}

// item is an element of an index's tree. prefix is the start of the sort key as a number. Most comparisons are decided
// by it and need not read the record.
type item struct {
	prefix uint64
	rec    *record
}

type index struct {
	id   uint16 // its index in collection.indexes
	name string
	tree *btree.BTreeG[item]
	hint btree.PathHint // for writes, which often come in ascending order
	// removed is the sequence number of the last change that removed an entry. A scan may lack an entry because of it.
	removed uint64
	// durable counts the durable entries; unused without a log.
	durable int
}

type collection struct {
	name    store.Collection
	records records
	indexes []*index
	byName  map[string]*index
	// deleted maps keys whose deletion may not be durable yet to its sequence number.
	deleted map[string]uint64
	// durable counts the durable records, and durableBytes the bytes of their keys and values; both are unused without
	// a log.
	durable      int
	durableBytes int64
}

// fewIndexes is the number of indexes up to which a linear search is faster than the map.
const fewIndexes = 8

func newCollection(name store.Collection) *collection {
	return &collection{
		name:    name,
		records: newRecords(),
		byName:  make(map[string]*index),
		deleted: make(map[string]uint64),
	}
}

// index returns the index of that name, and creates it if necessary.
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

// text returns a part of the data as a string without a copy. That is safe because nobody writes to the data of a
// record. A copy for each read of a key would cost more than the rest of a transaction.
func (r *record) text(off, n uint32) string {
	return unsafe.String(unsafe.SliceData(r.data[off:off+n]), int(n))
}

func (r *record) key() string { return r.text(0, uint32(r.keyLen)) }

func (r *record) value() []byte { return r.data[r.strLen:] }

// size is the length of the key and the value in bytes.
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

// find returns the index of the record's entry in ix, or -1.
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

// newRecord builds a record with copies of key and value, and with room for sortBytes bytes of sort keys. It copies the
// key, because a key that is a part of some request must not keep the whole request in memory. addEntry adds the
// entries.
func newRecord[K string | []byte](key K, sortBytes int, value []byte) *record {
	r := &record{
		data: make([]byte, len(key)+sortBytes+len(value)), keyLen: uint16(len(key)), strLen: uint32(len(key) + sortBytes),
	}
	copy(r.data, key)
	copy(r.data[r.strLen:], value)
	return r
}

// addEntry adds an entry to a record that is not applied yet.
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
	case r.more == nil: // with its array in one allocation
		m := &struct {
			slots []slot
			first [1]slot
		}{first: [1]slot{s}}
		m.slots = m.first[:]
		r.more = &m.slots
	default:
		*r.more = append(*r.more, s)
	}
	r.n++
}

// put makes rec the current version of its key and returns the version it replaces.
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

// delete removes a record and returns it, nil when there is none. seq is the sequence number that the indexes remember.
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

// unlink removes those entries of old from their indexes that rec does not replace in place.
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

// scan collects the hits of r and the highest sequence number on which they depend.
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
