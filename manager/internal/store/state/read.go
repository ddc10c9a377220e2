package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// ErrNone is returned by OpenReader for a directory without a state.
var ErrNone = errors.New("state: there is none")

// Damage is a part of a state that cannot be read.
type Damage struct {
	// File is the path of a table, or of the directory when the damage is in no single table.
	File string
	// Offset is that of a block in the table, in bytes. It is 0 when the whole table is concerned.
	Offset int64
	Reason string
	// Lost says which part of the state cannot be read; empty when everything can be.
	Lost string
}

func (d Damage) String() string {
	s := fmt.Sprintf("%s: offset %d: %s", d.File, d.Offset, d.Reason)
	if d.Lost != "" {
		s += "; cannot be read: " + d.Lost
	}
	return s
}

// Reader reads a state that no process has open. It writes nothing.
type Reader struct {
	s      *State
	tables []*tableFile
	bad    []span // what damaged blocks have, in order and apart from each other
	damage []Damage
	lost   int
	named  int // bounds the records in damaged parts that Records looks for
	err    error
}

// readerCacheBytes bounds the memory for blocks that were read.
const readerCacheBytes = 8 << 20

// OpenReader opens the state in dir and checks all checksums. log names the log that it belongs to. files is where the
// state lives; nil is the operating system's file system. OpenReader returns ErrNone, ctx's error, or an error of Pebble:
// then Open would fail, too. The caller must see to it that no process has the state open. It must Close the reader.
func OpenReader(ctx context.Context, dir, log string, files vfs.FS) (*Reader, error) {
	if files == nil {
		files = vfs.Default
	}
	if _, err := files.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	} else if err != nil {
		return nil, err
	}
	o := Options{FS: readOnly{files}, CacheBytes: readerCacheBytes}
	r := &Reader{s: newState(dir, o), named: maxNamed}
	if err := r.s.open(o, true); err != nil {
		err = errors.Join(err, r.Close())
		if errors.Is(err, pebble.ErrDBDoesNotExist) {
			return nil, ErrNone
		}
		return nil, fmt.Errorf("state: %s: %w", dir, named(err))
	}
	if r.err = r.s.load(log); r.err != nil {
		r.err = fmt.Errorf("state: %s: %w", dir, named(r.err))
	}
	if err := r.check(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Err is why Open would fail on the state; nil when it would not.
func (r *Reader) Err() error { return r.err }

// Sequence is that of the last log record that the state has; 0 for a new state, and for one that an import has begun.
func (r *Reader) Sequence() uint64 { return r.s.Sequence() }

// Bytes is the size of the files.
func (r *Reader) Bytes() int64 { return r.s.Bytes() }

// Damage lists what is damaged. Records adds to it.
func (r *Reader) Damage() []Damage { return r.damage }

// Lost is how many records the last Records did not pass, according to the state's counts.
func (r *Reader) Lost() int { return r.lost }

// Close releases the reader.
func (r *Reader) Close() error { return r.s.Close() }

// maxNamed is how many records in damaged parts Records looks for. Pebble takes milliseconds for each that it cannot read.
const maxNamed = 10_000

// Records calls fn for each record, in order, and then for those in damaged parts that something leads to: with a
// *store.UnreadableError when the record cannot be read. The record is valid during the call. Records returns ctx's error,
// that of fn, or one of the file system.
func (r *Reader) Records(ctx context.Context, fn func(store.Collection, string, Record, error) error) error {
	var seen sums
	var buf []byte
	passed := 0
	count := func(c store.Collection, key string, rec Record, err error) error {
		passed++
		if err == nil {
			for _, e := range rec.Entries {
				prefix := len(appendIndex(buf[:0], c, e.Index))
				buf = member.Append(appendIndex(buf[:0], c, e.Index), e.SortKey, key)
				seen.add(buf, prefix, 1)
			}
		}
		return fn(c, key, rec, err)
	}
	err := r.each(ctx, kindRecord, func(key, value []byte) error {
		c, name := splitRecordKey(key)
		rec, err := decodedRecord(c, name, value)
		return count(c, name, rec, err)
	})
	if err != nil {
		return err
	}
	keys, err := r.inDamaged(ctx, kindRecord)
	if err != nil {
		return err
	}
	err = r.each(ctx, kindEntry, func(key, _ []byte) error {
		prefix, ok := indexPrefix(key)
		if !ok {
			return fmt.Errorf("state: %s: %w: %q", r.s.dir, member.ErrMalformed, key)
		}
		seen.add(key, prefix, -1)
		if len(r.bad)+len(r.s.allLost()) == 0 || len(keys) >= r.named {
			return nil
		}
		h, err := member.Split(string(key[prefix:]))
		if err != nil {
			return fmt.Errorf("state: %s: %w: %q", r.s.dir, err, key)
		}
		c, _ := splitRecordKey(key)
		if k := appendRecordKey(nil, c, h.Key); r.isBad(k) || r.s.isLost(k, fingerprintOf(c, h.Key)) {
			keys[string(k)] = struct{}{}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, k := range slices.Sorted(maps.Keys(keys)) {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c, name := splitRecordKey([]byte(k))
		if !r.s.MayHave(c, name) { // an older version of a record that was deleted
			continue
		}
		rec, err := r.s.Get(c, name)
		if errors.Is(err, store.ErrNotFound) || err == nil && !r.isBad([]byte(k)) { // lost, and written again since
			continue
		}
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return err
		}
		if err := count(c, name, rec, err); err != nil {
			return err
		}
	}
	all := 0
	for _, c := range r.s.meta.counts {
		all += c.Records
	}
	r.lost = max(0, all-passed)
	if len(r.s.allLost()) > 0 && r.lost > 0 {
		for _, l := range r.s.allLost() {
			for _, span := range l.spans {
				r.damage = append(r.damage, Damage{File: r.s.dir, Reason: "a repair did not find all records", Lost: span.String()})
			}
		}
	}
	if len(r.damage) == 0 {
		if all != passed {
			r.damage = append(r.damage, Damage{File: r.s.dir, Reason: fmt.Sprintf("it counts %d records and has %d", all, passed)})
		}
		for _, index := range seen.wrong() {
			if len(r.s.allLost()) > 0 { // entries of lost records stay
				break
			}
			r.damage = append(r.damage, Damage{File: r.s.dir, Reason: index + " does not have the entries of its records"})
		}
	}
	return nil
}

// each calls fn for all keys of a kind outside the damaged parts.
func (r *Reader) each(ctx context.Context, kind byte, fn func(key, value []byte) error) error {
	for _, gap := range gaps(r.bad, span{[]byte{kind}, []byte{kind + 1}}) {
		it, err := r.s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: gap.from, UpperBound: gap.to})
		if err != nil {
			return err
		}
		n := 0
		for ok := it.First(); ok && err == nil; ok = it.Next() {
			if n++; n%checkEvery == 0 && ctx.Err() != nil {
				err = ctx.Err()
				break
			}
			var value []byte
			if value, err = it.ValueAndErr(); err == nil {
				err = fn(it.Key(), value)
			}
		}
		if err := cmp.Or(err, it.Error(), it.Close()); err != nil {
			return err
		}
	}
	return nil
}

// splitRecordKey returns the collection, and what follows it, of the key of a record or an entry.
func splitRecordKey(k []byte) (store.Collection, string) {
	c, rest, _ := strings.Cut(string(k[1:]), "\x00")
	return store.Collection(c), rest
}

func decodedRecord(c store.Collection, key string, raw []byte) (r Record, err error) {
	if r.Value, r.Entries, err = decodeRecord(raw); err != nil {
		err = &store.UnreadableError{Collection: c, Key: key, Reason: err.Error()}
	}
	return r, err
}

// indexPrefix is how many bytes of an entry's key are those of appendIndex.
func indexPrefix(key []byte) (n int, ok bool) {
	zeros := 0
	for i, b := range key[1:] {
		if b == 0 {
			if zeros++; zeros == 2 {
				return i + 2, true
			}
		}
	}
	return 0, false
}

// readOnly is a file system that changes nothing. Lock takes no lock, because a lock is a file.
type readOnly struct{ vfs.FS }

var errReadOnly = fmt.Errorf("state: a reader writes nothing: %w", fs.ErrPermission)

func (readOnly) Create(string, vfs.DiskWriteCategory) (vfs.File, error) { return nil, errReadOnly }
func (readOnly) Link(string, string) error                              { return errReadOnly }
func (readOnly) OpenReadWrite(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error) {
	return nil, errReadOnly
}
func (readOnly) Remove(string) error         { return errReadOnly }
func (readOnly) RemoveAll(string) error      { return errReadOnly }
func (readOnly) Rename(string, string) error { return errReadOnly }
func (readOnly) ReuseForWrite(string, string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, errReadOnly
}
func (readOnly) MkdirAll(string, os.FileMode) error { return errReadOnly }
func (readOnly) Lock(string) (io.Closer, error)     { return io.NopCloser(nil), nil }
