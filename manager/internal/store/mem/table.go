package mem

import (
	"encoding/binary"
	"strings"
	"unsafe"

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
	// below has the entries of the version that this one hides in the layers below; nil if there is none. See layer.
	below *record
	// gone: the record is deleted, and this hides a version below.
	gone bool
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
	// removed is the sequence number of the last change that removed an entry. A scan may lack an entry because of it.
	removed uint64
	// count counts the entries, durable the durable ones; the second is unused without a log.
	count, durable int
	// onDisk is how many entries the state has, and passed what scans found to be hidden there.
	onDisk int
	passed passed
	// passedFrozen is what scans found to be hidden in the frozen layer. An entry there stays hidden.
	passedFrozen passed
	// looked counts the entries that scans looked at in the frozen layer and on disk. Only tests read it.
	looked int
}

type collection struct {
	name    store.Collection
	indexes []*index
	byName  map[string]*index
	// hot has the changes since the last flush began. frozen has those that are being flushed, nil while nothing is.
	hot, frozen *layer
	// deleted maps keys whose deletion may not be durable yet to its sequence number.
	deleted map[string]uint64
	// count counts the records, and bytes the bytes of their keys and values. The durable ones are unused without a log.
	count, durable      int
	bytes, durableBytes int64
}

// fewIndexes is the number of indexes up to which a linear search is faster than the map.
const fewIndexes = 8

func newCollection(name store.Collection) *collection {
	return &collection{
		name:    name,
		hot:     newLayer(),
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
	c.indexes = append(c.indexes, ix)
	c.byName[name] = ix
	return ix, nil
}

func (ix *index) less(a, b item) bool {
	if a.prefix != b.prefix {
		return a.prefix < b.prefix
	}
	if c := strings.Compare(a.rec.sortKey(ix), b.rec.sortKey(ix)); c != 0 {
		return c < 0
	}
	return a.rec.key() < b.rec.key()
}

// item returns the item of r, which has an entry in ix.
func (ix *index) item(r *record) item {
	s := r.sortKey(ix)
	var b [8]byte
	copy(b[:], s)
	return item{binary.BigEndian.Uint64(b[:]), r}
}

// pivot is an item that compares as one with this sort key and key.
func (ix *index) pivot(sortKey, key string) item {
	p := newRecord(key, len(sortKey), nil)
	addEntry(p, ix, sortKey)
	return ix.item(p)
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
