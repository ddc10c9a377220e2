package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// span is a part of the key space. Of a damaged block and of a table it has both ends.
type span struct{ from, to []byte }

// tableFile is a table of the state with what is damaged in it.
type tableFile struct {
	path string
	span
	bad []span
	// outside says that something is damaged that the state does not use any more.
	outside bool
}

// check reads all tables.
func (r *Reader) check(ctx context.Context) error {
	levels, err := r.s.db.SSTables()
	if err != nil {
		return err
	}
	for _, level := range levels {
		for _, info := range level {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.checkInfo(ctx, info); err != nil {
				return err
			}
		}
	}
	r.bad = merged(r.bad)
	return nil
}

func (r *Reader) checkInfo(ctx context.Context, info pebble.SSTableInfo) error {
	t := &tableFile{
		path: r.s.tablePath(info),
		span: span{bytes.Clone(info.Smallest.UserKey), bytes.Clone(info.Largest.UserKey)},
	}
	if err := r.checkTable(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	t.bad = merged(t.bad)
	r.tables = append(r.tables, t)
	r.bad = append(r.bad, t.bad...)
	return nil
}

func (s *State) tablePath(info pebble.SSTableInfo) string {
	return s.fs.PathJoin(s.dir, info.BackingSSTNum.String()+".sst")
}

// locate finds the damaged parts of the table that an error of a read is about, and reports whether it found any that were
// not known. It reads the whole table, once. A table whose damage goes from the description of the state to the indexes would
// leave nothing to read: then the error stays.
func (s *State) locate(err error) bool {
	info := pebble.ExtractDataCorruptionInfo(err)
	if info == nil || s.enter() != nil {
		return false
	}
	defer s.leave()
	r := &Reader{s: s}
	levels, listErr := s.db.SSTables()
	for _, level := range levels {
		for _, t := range level {
			if s.fs.PathBase(s.tablePath(t)) == s.fs.PathBase(info.Path) && listErr == nil {
				listErr = r.checkInfo(s.closing, t)
			}
		}
	}
	everything := func(bad span) bool { return bad.from[0] == kindMeta && bad.to[0] == kindEntry }
	if slices.ContainsFunc(r.bad, everything) {
		return false
	}
	known := s.damaged.Load()
	if known != nil {
		r.bad = append(r.bad, *known...)
	}
	bad := merged(r.bad)
	if listErr != nil || len(bad) == 0 || known != nil && slices.EqualFunc(*known, bad, span.equal) {
		return false
	}
	s.damaged.Store(&bad)
	for _, d := range r.damage {
		s.report(errors.New(d.String()))
	}
	return true
}

func (s span) equal(other span) bool {
	return bytes.Equal(s.from, other.from) && bytes.Equal(s.to, other.to)
}

// checkTable checks the checksums of a table. When one is wrong, it finds out which blocks are damaged.
func (r *Reader) checkTable(ctx context.Context, t *tableFile) error {
	tr, err := r.openTable(ctx, t)
	if err == nil {
		defer tr.Close()
		err = tr.ValidateBlockChecksums()
	}
	if err == nil {
		return nil
	}
	if !pebble.IsCorruptionError(err) {
		return err
	}
	if tr != nil {
		if e := r.findDamage(ctx, t, tr); e != nil {
			return e
		}
	}
	if len(t.bad) == 0 && !t.outside {
		r.damaged(t, 0, err, t.span, t.from)
	}
	return nil
}

func (r *Reader) openTable(ctx context.Context, t *tableFile) (*sstable.Reader, error) {
	f, err := r.s.fs.Open(t.path)
	if err != nil {
		return nil, err
	}
	readable, err := objstorageprovider.NewFileReadable(f, r.s.fs, objstorageprovider.NewReadaheadConfig(), t.path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	tr, err := sstable.NewReader(ctx, readable, r.s.opts.MakeReaderOptions())
	if err != nil {
		_ = readable.Close() // it was only read
		return nil, err
	}
	return tr, nil
}

// damaged notes a damaged part of a table. No key from before on is read together with others: a key before the damaged
// part, since Pebble reads a block when it is at the end of the one before.
func (r *Reader) damaged(t *tableFile, offset uint64, reason error, lost span, before []byte) {
	if bytes.Compare(lost.from, t.from) < 0 {
		lost.from = t.from
	}
	if bytes.Compare(lost.to, t.to) > 0 {
		lost.to = t.to
	}
	if bytes.Compare(lost.from, lost.to) > 0 {
		t.outside = true
		return
	}
	t.bad = append(t.bad, span{before, lost.to})
	r.damage = append(r.damage, Damage{File: t.path, Offset: int64(offset), Reason: reason.Error(), Lost: lost.String()})
}

// findDamage reads the index of a table and the blocks that it leads to.
func (r *Reader) findDamage(ctx context.Context, t *tableFile, tr *sstable.Reader) error {
	top, err := topIndex(ctx, tr)
	if err != nil {
		return err
	}
	w := walk{r: r, t: t, tr: tr, from: t.from}
	return w.index(ctx, top, t.to, tr.Attributes.Has(sstable.AttributeTwoLevelIndex))
}

// topIndex returns where the index of a table begins, from the table's footer, whose checksum was right.
func topIndex(ctx context.Context, tr *sstable.Reader) (h block.Handle, err error) {
	tableFormat, err := tr.TableFormat()
	if err != nil {
		return h, err
	}
	f := tr.BlockReader().Readable()
	footer := make([]byte, tableFormat.FooterSize())
	if err := f.ReadAt(ctx, footer, f.Size()-int64(len(footer))); err != nil {
		return h, err
	}
	footer = footer[1:] // the kind of checksum
	_, n := block.DecodeHandle(footer)
	h, _ = block.DecodeHandle(footer[n:])
	return h, nil
}

// walk goes through the blocks of a table in their order.
type walk struct {
	r    *Reader
	t    *tableFile
	tr   *sstable.Reader
	from []byte // no key of the next block is less
}

func unmarked(*block.Metadata, []byte) error { return nil }

// read reads a block, none of whose keys is greater than to.
func (w *walk) read(ctx context.Context, h block.Handle, to []byte, kind blockkind.Kind) (data block.BufferHandle, ok bool, err error) {
	data, err = w.tr.BlockReader().Read(ctx, block.NoReadEnv, nil, h, kind, unmarked)
	if err == nil {
		return data, true, nil
	}
	if !pebble.IsCorruptionError(err) {
		return data, false, err
	}
	before, beforeErr := w.before()
	if beforeErr != nil {
		return data, false, beforeErr
	}
	w.r.damaged(w.t, h.Offset, fmt.Errorf("the checksum of a block of %d bytes is wrong", h.Length), span{w.from, bytes.Clone(to)}, before)
	return data, false, nil
}

// before is a key in the block before the next one; w.from when that block is damaged or does not exist.
func (w *walk) before() ([]byte, error) {
	key := w.from
	it, err := w.tr.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if pebble.IsCorruptionError(err) {
		return key, nil
	}
	if err != nil {
		return nil, err
	}
	kv := it.SeekLT(w.from, 0)
	if kv != nil && bytes.Compare(kv.K.UserKey, w.t.from) >= 0 {
		key = bytes.Clone(kv.K.UserKey)
	}
	if err = cmp.Or(it.Error(), it.Close()); pebble.IsCorruptionError(err) {
		err = nil
	}
	return key, err
}

// index goes through the blocks that an index block leads to: index blocks when it is the upper one of two.
func (w *walk) index(ctx context.Context, h block.Handle, to []byte, upper bool) error {
	data, ok, err := w.read(ctx, h, to, blockkind.SSTableIndex)
	if err != nil || !ok {
		return err
	}
	defer data.Release()
	var it colblk.IndexIter
	if err := it.Init(w.r.s.opts.Comparer, data.BlockData(), block.NoTransforms); err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, err := it.BlockHandleWithProperties()
		if err != nil {
			return err
		}
		last := bytes.Clone(it.Separator())
		if upper {
			err = w.index(ctx, next.Handle, last, false)
		} else {
			err = w.data(ctx, next.Handle, last)
		}
		if err != nil {
			return err
		}
		w.from = last
	}
	return nil
}

func (w *walk) data(ctx context.Context, h block.Handle, to []byte) error {
	data, ok, err := w.read(ctx, h, to, blockkind.SSTableData)
	if ok {
		data.Release()
	}
	return err
}

// inDamaged returns the keys of a kind in damaged parts that tables have in other blocks, at most as many as named.
func (r *Reader) inDamaged(ctx context.Context, kind byte) (map[string]struct{}, error) {
	keys := make(map[string]struct{})
	for _, bad := range r.bad {
		for _, t := range r.tables {
			if bytes.Compare(t.to, bad.from) < 0 || bytes.Compare(t.from, bad.to) > 0 {
				continue
			}
			if err := r.readable(ctx, t, bad, func(key []byte) bool {
				if key[0] == kind {
					keys[string(key)] = struct{}{}
				}
				return len(keys) < r.named
			}); err != nil {
				return nil, fmt.Errorf("%s: %w", t.path, err)
			}
		}
	}
	return keys, ctx.Err()
}

// readable calls fn with the keys of a table in a span, except those in damaged blocks.
func (r *Reader) readable(ctx context.Context, t *tableFile, in span, fn func(key []byte) bool) error {
	tr, err := r.openTable(ctx, t)
	if pebble.IsCorruptionError(err) {
		return nil // all of it is damaged
	}
	if err != nil {
		return err
	}
	defer tr.Close()
	parts := append(gaps(t.bad, span{in.from, after(in.to)}), t.bad...) // a damaged part begins in the block before
	for _, part := range parts {
		it, err := tr.NewIter(sstable.NoTransforms, part.from, part.to, sstable.AssertNoBlobHandles)
		if pebble.IsCorruptionError(err) {
			continue
		}
		if err != nil {
			return err
		}
		more := true
		for kv := it.First(); kv != nil && more; kv = it.Next() {
			more = fn(kv.K.UserKey)
		}
		if err := cmp.Or(it.Error(), it.Close()); err != nil && !pebble.IsCorruptionError(err) {
			return err
		}
		if !more {
			return nil
		}
	}
	return nil
}

// after is the least key that is greater.
func after(key []byte) []byte { return append(bytes.Clone(key), 0) }

// isBad reports whether a damaged part has a key.
func (r *Reader) isBad(key []byte) bool {
	i, found := slices.BinarySearchFunc(r.bad, key, func(s span, key []byte) int { return bytes.Compare(s.from, key) })
	return found || i > 0 && r.bad[i-1].has(key)
}

// merged sorts spans and joins those that overlap.
func merged(list []span) (out []span) {
	slices.SortFunc(list, func(a, b span) int { return bytes.Compare(a.from, b.from) })
	for _, s := range list {
		if n := len(out); n > 0 && bytes.Compare(s.from, out[n-1].to) <= 0 {
			if bytes.Compare(s.to, out[n-1].to) > 0 {
				out[n-1].to = s.to
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// gaps returns what is left of a span without the damaged parts. The end of a gap, and of in, is not a part of it.
func gaps(bad []span, in span) (out []span) {
	from := in.from
	for _, b := range bad {
		if bytes.Compare(b.to, from) < 0 {
			continue
		}
		if bytes.Compare(b.from, in.to) >= 0 {
			break
		}
		if bytes.Compare(from, b.from) < 0 {
			out = append(out, span{from, b.from})
		}
		from = after(b.to)
	}
	if bytes.Compare(from, in.to) < 0 {
		out = append(out, span{from, in.to})
	}
	return out
}

// String names what a span has.
func (s span) String() string {
	from, to := place(s.from), place(s.to)
	if from == to {
		return from
	}
	return from + " to " + to
}

// place names what a key is of.
func place(key []byte) string {
	if len(key) > 0 && key[0] == kindRecord {
		c, name := splitRecordKey(key)
		return fmt.Sprintf("%s %+q", c, name)
	}
	if len(key) > 0 && key[0] == kindEntry {
		if n, ok := indexPrefix(key); ok {
			return indexName(key[:n])
		}
		c, _ := splitRecordKey(key)
		return fmt.Sprintf("an index of %s", c)
	}
	return "the description of the state"
}

func indexName(prefix []byte) string {
	c, index := splitRecordKey(prefix[:len(prefix)-1])
	return fmt.Sprintf("the index %s of %s", index, c)
}

// sums compares the entries of the indexes with those of the records: by their number, and by a sum over hashes.
type sums map[string]*sum

type sum struct {
	n    int
	hash uint64
}

// add counts the key of an entry n times, of which the first prefix bytes name the index.
func (s *sums) add(key []byte, prefix, n int) {
	if *s == nil {
		*s = make(sums)
	}
	x := (*s)[string(key[:prefix])]
	if x == nil {
		x = new(sum)
		(*s)[string(key[:prefix])] = x
	}
	x.n += n
	x.hash += uint64(n) * xxhash.Sum64(key)
}

// wrong names the indexes that differ.
func (s sums) wrong() (names []string) {
	for _, prefix := range slices.Sorted(maps.Keys(s)) {
		if *s[prefix] != (sum{}) {
			names = append(names, indexName([]byte(prefix)))
		}
	}
	return names
}
