package state

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// Change is what becomes of a record.
type Change struct {
	Collection store.Collection
	Key        string
	// Deleted: the record is absent from now on, and Value and Entries are empty.
	Deleted bool
	Value   []byte
	Entries []store.Entry
	// Existed: the state has a version of the record, with the entries Before.
	Existed bool
	Before  []store.Entry
}

// Batch is what Write adds.
type Batch struct {
	// Sequence is that of the last log record whose changes are in the batch. All before it are in this batch or in the state.
	Sequence uint64
	// Changes has each record at most once. What it yields must not change before Write has returned. Size is about how many
	// there are.
	Changes iter.Seq[Change]
	Size    int
	// Counts replace the state's for these collections.
	Counts map[store.Collection]Counts
}

const (
	// listPart bounds the fingerprints of one list.
	listPart = 1 << 18
	// spareItems is how many fingerprints the lists may have beyond twice those in use before they are written again.
	spareItems = 1 << 16
)

// group are the new rows whose keys begin alike: the records of a collection, or the entries of an index.
type group struct {
	prefix []byte
	rows   []row
}

// row is the rest of a key, and what becomes of it. head is the rest's first 8 bytes as a number: most comparisons need no more.
type row struct {
	head    uint64
	rest    string
	change  int32 // number of the change whose record is the value, -1 for none
	deleted bool
}

func compareRows(a, b row) int {
	if a.head != b.head {
		return cmp.Compare(a.head, b.head)
	}
	return strings.Compare(a.rest, b.rest)
}

// Write adds a batch. It is durable when Write returns nil, and after an error the state is unchanged, or ErrFailed. A full disk
// is store.ErrNoSpace. Write must not be called again before it has returned.
func (s *State) Write(ctx context.Context, b Batch) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.write(ctx, b, false)
}

// write is Write. repair: the fingerprints of lost records are already those of the state.
func (s *State) write(ctx context.Context, b Batch, repair bool) error {
	t := table{s: s, lists: s.lists, groups: make(map[groupName]*group)}
	t.changes(&b)
	lost, err := t.lost()
	if err != nil {
		return err
	}
	if !repair {
		for _, l := range lost {
			t.added = append(t.added, l.records...)
		}
	}
	t.describe(&b)
	if err := ctx.Err(); err != nil {
		return err
	}
	// Look-ups must find what the table adds from the moment at which it is there.
	s.absent.add(t.added)
	path := s.fs.PathJoin(s.dir, strconv.FormatUint(s.Sequence(), 10)+partSuffix)
	if err := s.ingest(ctx, path, t.write, pebble.KeyRange{}); err != nil {
		s.absent.remove(t.added)
		if isFull(err) {
			return fmt.Errorf("%w: %w", store.ErrNoSpace, err)
		}
		return err
	}
	s.absent.remove(t.removed)
	s.lists = t.lists
	s.addLost(lost)
	for c, counts := range b.Counts {
		s.meta.counts[c] = counts
	}
	s.meta.sequence.Store(b.Sequence)
	return nil
}

// table is a table that is being made.
type table struct {
	s              *State
	list           []Change
	meta           []tableRow
	groups         map[groupName]*group
	positions      []byte // where the next positions are
	added, removed []fingerprint
	lists          listed
}

// groupName names the records of a collection or, with an index, its entries.
type groupName struct {
	collection store.Collection
	index      string
}

// tableRow is a row of a table as it is written.
type tableRow struct {
	key, value []byte
	deleted    bool
}

func (m *tableRow) write(w *sstable.Writer) error {
	if m.deleted {
		return w.Delete(m.key)
	}
	return w.Set(m.key, m.value)
}

func (t *table) add(name groupName, r row) {
	g := t.groups[name]
	if g == nil {
		g = new(group)
		if name.index == "" {
			g.prefix = appendRecordKey(nil, name.collection, "")
		} else {
			g.prefix = appendIndex(nil, name.collection, name.index)
		}
		t.groups[name] = g
	}
	var head [8]byte
	copy(head[:], r.rest)
	r.head = binary.BigEndian.Uint64(head[:])
	g.rows = append(g.rows, r)
}

func (t *table) changes(b *Batch) {
	t.list = make([]Change, 0, b.Size)
	for c := range b.Changes {
		if c.Deleted && !c.Existed {
			continue
		}
		t.add(groupName{c.Collection, ""}, row{rest: c.Key, change: int32(len(t.list)), deleted: c.Deleted})
		t.list = append(t.list, c)
		switch {
		case c.Deleted:
			t.removed = append(t.removed, fingerprintOf(c.Collection, c.Key))
		case !c.Existed:
			t.added = append(t.added, fingerprintOf(c.Collection, c.Key))
		}
		for _, e := range c.Before {
			if !slices.Contains(c.Entries, e) {
				t.entry(&c, e, true)
			}
		}
		for _, e := range c.Entries {
			if !slices.Contains(c.Before, e) {
				t.entry(&c, e, false)
			}
		}
	}
}

// positionsChunk is how much room for positions is allocated at a time, and maxPosition how long one can be.
const (
	positionsChunk = 256 << 10
	maxPosition    = 3*store.MaxKeyBytes + 2
)

func (t *table) entry(c *Change, e store.Entry, deleted bool) {
	if cap(t.positions)-len(t.positions) < maxPosition {
		t.positions = make([]byte, 0, positionsChunk)
	}
	start := len(t.positions)
	t.positions = member.Append(t.positions, e.SortKey, c.Key)
	// Nobody writes to this part of the chunk again.
	position := unsafe.String(unsafe.SliceData(t.positions[start:]), len(t.positions)-start)
	t.add(groupName{c.Collection, e.Index}, row{rest: position, change: -1, deleted: deleted})
}

// describe adds what describes the state after the batch.
func (t *table) describe(b *Batch) {
	set := func(key, value []byte) { t.meta = append(t.meta, tableRow{key, value, false}) }
	set(metaKey(metaLog), []byte(t.s.meta.log))
	set(metaKey(metaSequence), binary.BigEndian.AppendUint64(nil, b.Sequence))
	for c, counts := range b.Counts {
		set(metaKey(metaCounts+string(c)), counts.append(nil))
	}
	slices.Sort(t.added)
	slices.Sort(t.removed)
	add := func(added, removed []fingerprint) {
		set(listKey(t.lists.next), appendList(nil, added, removed))
		t.lists.next++
		t.lists.items += len(added) + len(removed)
	}
	if n := len(t.added) + len(t.removed); t.lists.items+n > 2*t.s.absent.len()+spareItems {
		for number := t.lists.first; number < t.lists.next; number++ {
			t.meta = append(t.meta, tableRow{listKey(number), nil, true})
		}
		t.lists.first, t.lists.items = t.lists.next, 0
		t.s.absent.all(listPart, func(part []fingerprint) { add(part, nil) })
	}
	if len(t.added)+len(t.removed) > 0 {
		add(t.added, t.removed)
	}
}

// ingest writes a table and has the state take it in, in place of everything in a range.
func (s *State) ingest(ctx context.Context, path string, write func(context.Context, *sstable.Writer) error, replaced pebble.KeyRange) error {
	f, err := s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Written out in steps: a sync of the log would wait for all of it.
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: s.opts.BytesPerSync})
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.opts.MakeWriterOptions(0, s.db.TableFormat()))
	err = write(ctx, w)
	if err = errors.Join(err, w.Close()); err == nil {
		err = s.fillSpare()
	}
	if err != nil {
		return errors.Join(err, s.remove(path))
	}
	err = s.guard(func() error {
		if !replaced.Valid() {
			return s.db.Ingest(ctx, []string{path})
		}
		_, err := s.db.IngestAndExcise(ctx, []string{path}, nil, nil, replaced)
		return err
	})
	if err != nil {
		return errors.Join(err, s.remove(path))
	}
	return nil
}

// remove removes a table that was not taken in. The next Open does the same.
func (s *State) remove(path string) error {
	if err := s.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// checkEvery is after how many rows a context is asked.
const checkEvery = 4096

func (t *table) write(ctx context.Context, w *sstable.Writer) error {
	slices.SortFunc(t.meta, func(a, b tableRow) int { return bytes.Compare(a.key, b.key) })
	for _, m := range t.meta {
		if err := m.write(w); err != nil {
			return err
		}
	}
	groups := slices.SortedFunc(maps.Values(t.groups), func(a, b *group) int { return bytes.Compare(a.prefix, b.prefix) })
	var m tableRow
	for _, g := range groups {
		slices.SortFunc(g.rows, compareRows)
		for i, r := range g.rows {
			if i%checkEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			m.key, m.value, m.deleted = append(append(m.key[:0], g.prefix...), r.rest...), m.value[:0], r.deleted
			if r.change >= 0 && !r.deleted {
				c := &t.list[r.change]
				m.value = appendRecord(m.value, c.Value, c.Entries)
			}
			if err := m.write(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// guard calls Pebble on a goroutine of its own, which ends where Pebble cannot continue (see logger.Fatalf). When that
// happens to another goroutine, the call may never return, and guard does not wait for it.
func (s *State) guard(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-s.failed:
		return s.Err()
	}
}
