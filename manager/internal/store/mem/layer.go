package mem

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// layer has changes of a collection in memory. A version in it hides what the layers below have of the same key,
// entries included, so an entry below counts only if no layer above it has the key. In the volatile engine the only
// layer has everything.
type layer struct {
	records records
	trees   []*tree // by index.id; nil where the layer has no entry
	// What the changes add to the state's counts.
	count   int
	bytes   int64
	entries []int
}

// tree has the entries of one index.
type tree struct {
	*btree.BTreeG[item]
	hint btree.PathHint // for writes, which often come in ascending order
}

func newLayer() *layer { return &layer{records: newRecords()} }

// tree returns the tree of an index, nil when it has no entry.
func (l *layer) tree(ix *index) *tree {
	if l == nil || int(ix.id) >= len(l.trees) {
		return nil
	}
	return l.trees[ix.id]
}

func (l *layer) link(ix *index, rec *record) {
	if n := int(ix.id) + 1 - len(l.trees); n > 0 {
		l.trees = append(l.trees, make([]*tree, n)...)
	}
	t := l.trees[ix.id]
	if t == nil {
		t = &tree{BTreeG: btree.NewBTreeGOptions(ix.less, btree.Options{NoLocks: true})}
		l.trees[ix.id] = t
	}
	t.SetHint(ix.item(rec), &t.hint)
}

func (l *layer) unlink(ix *index, rec *record) {
	t := l.trees[ix.id]
	t.DeleteHint(ix.item(rec), &t.hint)
}

// get returns the version of a key, which may be gone; nil when the layer has none.
func (l *layer) get(key string) *record {
	if l == nil {
		return nil
	}
	return l.records.get(key)
}

// hides reports whether the layers have a version of a key.
func (c *collection) hides(key string) bool { return c.hot.get(key) != nil || c.frozen.get(key) != nil }

// find returns the version of a key in the layers, which may be gone; nil when they have none.
func (c *collection) find(key string) *record {
	if rec := c.hot.get(key); rec != nil {
		return rec
	}
	return c.frozen.get(key)
}

// noEntries is what is remembered of a version without entries.
var noEntries = &record{}

// entriesOnly is what a version above r remembers of it: not its value, and not what is below it in turn.
func (r *record) entriesOnly() *record {
	if r.n == 0 {
		return noEntries
	}
	return &record{data: slices.Clone(r.data[:r.strLen]), keyLen: r.keyLen, n: r.n, strLen: r.strLen, few: r.few, more: r.more}
}

// replace makes rec the version of key, or deletes the key if rec is nil. onDisk is the state's version, which counts
// only where the layers have none; nil when there is none. It returns the version that readers saw before, nil without
// one.
func (c *collection) replace(key string, rec, onDisk *record, seq uint64) (visible *record) {
	old := c.hot.get(key)
	var below *record
	switch f := c.frozen.get(key); {
	case old != nil:
		below = old.below
		if !old.gone {
			visible = old
		}
	case f != nil && !f.gone:
		visible, below = f, f.entriesOnly()
	case f == nil && onDisk != nil:
		visible, below = onDisk, onDisk.entriesOnly()
	}
	// Entries that stay where they are are replaced in place.
	if visible != nil {
		for i := range int(visible.n) {
			ix := c.indexes[visible.slot(i).index]
			j := -1
			if rec != nil {
				j = rec.find(ix)
			}
			stays := j >= 0 && rec.sortKeyAt(j) == visible.sortKeyAt(i)
			if visible == old && !stays {
				c.hot.unlink(ix, old)
			}
			if !stays {
				ix.removed = seq
			}
		}
	}
	if rec != nil {
		rec.below = below
		c.hot.records.put(rec)
		for i := range int(rec.n) {
			c.hot.link(c.indexes[rec.slot(i).index], rec)
		}
	} else if below != nil {
		gone := newRecord(key, 0, nil)
		gone.seq, gone.below, gone.gone = seq, below, true
		c.hot.records.put(gone)
	} else if old != nil {
		c.hot.records.delete(key)
	}
	c.tally(visible, -1)
	c.tally(rec, 1)
	return visible
}

// tally adds or subtracts a version in the counts.
func (c *collection) tally(rec *record, sign int) {
	if rec == nil {
		return
	}
	size := int64(sign) * rec.size()
	c.count += sign
	c.bytes += size
	c.hot.count += sign
	c.hot.bytes += size
	for i := range int(rec.n) {
		ix := c.indexes[rec.slot(i).index]
		ix.count += sign
		if n := int(ix.id) + 1 - len(c.hot.entries); n > 0 {
			c.hot.entries = append(c.hot.entries, make([]int, n)...)
		}
		c.hot.entries[ix.id] += sign
	}
}

// ascend calls fn with the tree's entries from a pivot on.
func (t *tree) ascend(pivot item, fn func(item) bool) {
	if t != nil {
		t.Ascend(pivot, fn)
	}
}

// scan collects the hits of r in the layers, and the highest sequence number on which they depend.
func (c *collection) scan(ix *index, r store.Range) (hits []store.Hit, seen uint64) {
	sort, key := r.From, ""
	if r.After != nil {
		sort, key = r.After.SortKey, r.After.Key
	}
	seen = ix.removed
	collect := func(t *tree, pivot item, hidden func(string) bool) (hits []store.Hit) {
		t.ascend(pivot, func(it item) bool {
			s, k := it.rec.sortKey(ix), it.rec.key()
			if r.To != "" && s >= r.To {
				return false
			}
			if r.After != nil && s == sort && k == key || hidden(k) {
				return true
			}
			hits = append(hits, store.Hit{SortKey: s, Key: k})
			seen = max(seen, it.rec.seq)
			return len(hits) < r.Limit
		})
		return hits
	}
	hits = collect(c.hot.tree(ix), ix.pivot(sort, key), func(string) bool { return false })
	t := c.frozen.tree(ix)
	if t == nil {
		return hits, seen
	}
	from, to := bounds(r)
	start, end := ix.passedFrozen.skip(from)
	if end || to != "" && start >= to {
		return hits, seen
	}
	pivot := ix.pivot(sort, key)
	if start != from {
		h, _ := member.Split(start) // which add got: the position of an entry or of a bound
		pivot = ix.pivot(h.SortKey, h.Key)
	}
	found, skipped := false, false
	frozen := collect(t, pivot, func(k string) bool {
		ix.looked++
		hidden := c.hot.get(k) != nil
		found, skipped = found || !hidden, skipped || hidden && !found
		return hidden
	})
	if skipped {
		first := to
		if len(frozen) > 0 {
			first = member.Join(frozen[0].SortKey, frozen[0].Key)
		}
		ix.passedFrozen.add(from, first)
	}
	return mergeHits(hits, frozen, r.Limit), seen
}

// bounds are the positions from which on and up to which a range has entries; no to is the end of the index.
func bounds(r store.Range) (from, to string) {
	from = member.Join(r.From, "")
	if r.After != nil {
		from = member.Join(r.After.SortKey, r.After.Key) + "\x00"
	}
	if r.To != "" {
		to = member.Join(r.To, "")
	}
	return from, to
}

func compareHits(a, b store.Hit) int {
	if c := strings.Compare(a.SortKey, b.SortKey); c != 0 {
		return c
	}
	return strings.Compare(a.Key, b.Key)
}

// mergeHits merges two ordered lists into one of at most limit hits.
func mergeHits(a, b []store.Hit, limit int) []store.Hit {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	out := make([]store.Hit, 0, min(limit, len(a)+len(b)))
	for len(out) < limit && len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && compareHits(a[0], b[0]) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}
