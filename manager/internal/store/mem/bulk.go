package mem

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// indexAll builds the indexes of all records. They must be empty.
func (s *Store) indexAll() {
	for _, c := range s.collections {
		items := make([][]bulkItem, len(c.indexes))
		c.records.each(func(rec *record) bool {
			for i := range int(rec.n) {
				id := rec.slot(i).index
				items[id] = append(items[id], bulkItem{item: c.indexes[id].item(rec)})
			}
			return true
		})
		for id, ix := range c.indexes {
			ix.load(items[id])
			items[id] = nil
		}
	}
}

// bulkItem is an item to be added to an index. first orders like the sort keys, as item.prefix does, but is read from
// after the prefix that all sort keys have in common. So sorting hardly ever has to read the records.
type bulkItem struct {
	first uint64
	item  item
}

// load fills an empty index.
func (ix *index) load(items []bulkItem) {
	if len(items) == 0 {
		return
	}
	sample := items[0].item.rec.sortKey(ix)
	common := len(sample)
	for _, it := range items {
		common = commonPrefix(sample[:common], it.item.rec.sortKey(ix))
	}
	for i := range items {
		var b [8]byte
		copy(b[:], items[i].item.rec.sortKey(ix)[common:])
		items[i].first = binary.BigEndian.Uint64(b[:])
	}
	slices.SortFunc(items, func(a, b bulkItem) int {
		if a.first != b.first {
			return cmp.Compare(a.first, b.first)
		}
		return ix.compare(a.item, b.item)
	})
	for _, it := range items {
		ix.tree.Load(it.item) // the items are sorted, so each is appended
	}
}

func commonPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
