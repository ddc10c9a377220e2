package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"syscall"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
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
	// Changes has each record at most once.
	Changes iter.Seq[Change]
	// Counts replace the state's for these collections.
	Counts map[store.Collection]Counts
}

const (
	// listPart bounds the fingerprints of one list.
	listPart = 1 << 18
	// spareItems is how many fingerprints the lists may have beyond twice those in use before they are written anew.
	spareItems = 1 << 16
)

// row is a key of the new table. Its value is that of a change, or other bytes.
type row struct {
	key     []byte
	change  *Change
	value   []byte
	deleted bool
}

// Write adds a batch. It is durable when Write returns nil, and after an error the state is unchanged, or ErrFailed. A full disk
// is store.ErrNoSpace. Write must not be called again before it has returned.
func (s *State) Write(ctx context.Context, b Batch) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	t := table{s: s, lists: s.lists}
	t.changes(b.Changes)
	t.describe(&b)
	if err := ctx.Err(); err != nil {
		return err
	}
	// Look-ups must find what the table adds from the moment at which it is there.
	s.absent.add(t.added)
	if err := t.ingest(ctx); err != nil {
		s.absent.remove(t.added)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return fmt.Errorf("%w: %w", store.ErrNoSpace, err)
		}
		return err
	}
	s.absent.remove(t.removed)
	s.lists = t.lists
	for c, counts := range b.Counts {
		s.meta.counts[c] = counts
	}
	s.meta.sequence.Store(b.Sequence)
	return nil
}

// table is a table that is being made.
type table struct {
	s              *State
	rows           []row
	keys           []byte // where the next keys are
	added, removed []fingerprint
	lists          listed
}

// keysChunk is how much room for keys is allocated at a time.
const keysChunk = 64 << 10

func (t *table) row(r row, build func([]byte) []byte) {
	if cap(t.keys)-len(t.keys) < 4<<10 {
		t.keys = make([]byte, 0, keysChunk)
	}
	start := len(t.keys)
	t.keys = build(t.keys)
	r.key = t.keys[start:len(t.keys):len(t.keys)]
	t.rows = append(t.rows, r)
}

func (t *table) changes(list iter.Seq[Change]) {
	for c := range list {
		if c.Deleted && !c.Existed {
			continue
		}
		t.row(row{change: &c, deleted: c.Deleted}, func(b []byte) []byte { return appendRecordKey(b, c.Collection, c.Key) })
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

func (t *table) entry(c *Change, e store.Entry, deleted bool) {
	t.row(row{deleted: deleted}, func(b []byte) []byte {
		return AppendPosition(appendIndex(b, c.Collection, e.Index), e.SortKey, c.Key)
	})
}

func (t *table) meta(key, value []byte) { t.rows = append(t.rows, row{key: key, value: value}) }

// describe adds what describes the state after the batch.
func (t *table) describe(b *Batch) {
	t.meta(metaKey(metaLog), []byte(t.s.meta.log))
	t.meta(metaKey(metaSequence), binary.BigEndian.AppendUint64(nil, b.Sequence))
	for c, counts := range b.Counts {
		t.meta(metaKey(metaCounts+string(c)), counts.append(nil))
	}
	slices.Sort(t.added)
	slices.Sort(t.removed)
	add := func(added, removed []fingerprint) {
		t.meta(listKey(t.lists.next), appendList(nil, added, removed))
		t.lists.next++
		t.lists.items += len(added) + len(removed)
	}
	if n := len(t.added) + len(t.removed); t.lists.items+n > 2*t.s.absent.len()+spareItems {
		for number := t.lists.first; number < t.lists.next; number++ {
			t.rows = append(t.rows, row{key: listKey(number), deleted: true})
		}
		t.lists.first, t.lists.items = t.lists.next, 0
		t.s.absent.all(listPart, func(part []fingerprint) { add(part, nil) })
	}
	if len(t.added)+len(t.removed) > 0 {
		add(t.added, t.removed)
	}
}

// ingest writes the table and has the state take it in.
func (t *table) ingest(ctx context.Context) (err error) {
	slices.SortFunc(t.rows, func(a, b row) int { return bytes.Compare(a.key, b.key) })
	s := t.s
	path := s.fs.PathJoin(s.dir, strconv.FormatUint(s.Sequence(), 10)+partSuffix)
	f, err := s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.opts.MakeWriterOptions(0, s.db.TableFormat()))
	err = t.write(ctx, w)
	if err := errors.Join(err, w.Close()); err != nil {
		return errors.Join(err, s.remove(path))
	}
	if err := s.guard(func() error { return s.db.Ingest(ctx, []string{path}) }); err != nil {
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
	var value []byte
	for i, r := range t.rows {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var err error
		switch {
		case r.deleted:
			err = w.Delete(r.key)
		case r.change != nil:
			value = appendRecord(value[:0], r.change.Value, r.change.Entries)
			err = w.Set(r.key, value)
		default:
			err = w.Set(r.key, r.value)
		}
		if err != nil {
			return err
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
