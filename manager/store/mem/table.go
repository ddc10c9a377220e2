package mem

import (
	"github.com/tidwall/btree"

	"github.com/oncegate/oncegate/manager/store"
)

// record is one version of a record. It is immutable once applied: a change
// makes a new one, so readers and snapshots may keep it without the lock.
type record struct {
	key     string
	value   []byte
	seq     uint64 // log sequence number of the change that made it
	entries []entry
}

// entry is an item of an index; the trees hold pointers into record.entries.
type entry struct {
	ix   *index
	sort string
	rec  *record
}

type index struct {
	name string
	tree *btree.BTreeG[*entry]
	// removed is the sequence number of the last change that took an entry
	// out: a scan may miss that entry because of it.
	removed uint64
	// durable counts the entries that are durable; without a log it is unused.
	durable int
}

type collection struct {
	name    store.Collection
	records map[string]*record
	indexes map[string]*index
	// deleted has the keys whose deletion may not be durable yet, with its
	// sequence number.
	deleted map[string]uint64
	// durable counts the records that are durable; without a log it is unused.
	durable int
}

func newCollection(name store.Collection) *collection {
	return &collection{
		name:    name,
		records: make(map[string]*record),
		indexes: make(map[string]*index),
		deleted: make(map[string]uint64),
	}
}

func entryLess(a, b *entry) bool {
	if a.sort != b.sort {
		return a.sort < b.sort
	}
	return a.rec.key < b.rec.key
}

// index returns the index of that name, a new one when there is none.
func (c *collection) index(name string) (*index, error) {
	if ix := c.indexes[name]; ix != nil {
		return ix, nil
	}
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	ix := &index{name: name, tree: btree.NewBTreeGOptions(entryLess, btree.Options{NoLocks: true})}
	c.indexes[name] = ix
	return ix, nil
}

// entryIn returns the record's entry in ix, nil when it has none.
func (r *record) entryIn(ix *index) *entry {
	for i := range r.entries {
		if r.entries[i].ix == ix {
			return &r.entries[i]
		}
	}
	return nil
}

// put makes rec the version of its key and returns the one it replaces.
func (c *collection) put(rec *record) *record {
	old := c.records[rec.key]
	c.records[rec.key] = rec
	if old != nil {
		c.unlink(old, rec)
	}
	for i := range rec.entries {
		e := &rec.entries[i]
		e.ix.tree.Set(e)
	}
	return old
}

// delete removes a record and returns it, nil when there is none. The
// version's sequence number is what the indexes remember.
func (c *collection) delete(key string, seq uint64) *record {
	old := c.records[key]
	if old == nil {
		return nil
	}
	delete(c.records, key)
	for i := range old.entries {
		e := &old.entries[i]
		e.ix.tree.Delete(e)
		e.ix.removed = seq
	}
	return old
}

// unlink takes those entries of old out of their indexes that rec does not
// replace in place.
func (c *collection) unlink(old, rec *record) {
	for i := range old.entries {
		e := &old.entries[i]
		if n := rec.entryIn(e.ix); n == nil || n.sort != e.sort {
			e.ix.tree.Delete(e)
			e.ix.removed = rec.seq
		}
	}
}

// scan collects the hits of r and the highest sequence number among them.
func (ix *index) scan(r store.Range) (hits []store.Hit, seen uint64) {
	pivot := entry{sort: r.From, rec: &record{}}
	if r.After != nil {
		pivot.sort, pivot.rec.key = r.After.SortKey, r.After.Key
	}
	seen = ix.removed
	ix.tree.Ascend(&pivot, func(e *entry) bool {
		if r.To != "" && e.sort >= r.To {
			return false
		}
		if r.After != nil && e.sort == r.After.SortKey && e.rec.key == r.After.Key {
			return true
		}
		hits = append(hits, store.Hit{SortKey: e.sort, Key: e.rec.key})
		seen = max(seen, e.rec.seq)
		return len(hits) < r.Limit
	})
	return hits, seen
}
