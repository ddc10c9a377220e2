package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

const (
	readLog    = "0123"
	readThings = store.Collection("things")
	readPlain  = store.Collection("plain") // without an index
)

// readState is a state on disk with what it has.
type readState struct {
	dir     string
	s       *State
	records map[store.ID]Record
	seq     uint64
	fs      vfs.FS
}

// fixed is a file system on which Pebble cannot rewrite tables, so that those that are there stay.
type fixed struct{ vfs.FS }

func (f fixed) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		return nil, errors.New("a new table")
	}
	return f.FS.Create(name, c)
}

func newReadState(t *testing.T) *readState {
	t.Helper()
	w := &readState{dir: filepath.Join(t.TempDir(), "state"), records: make(map[store.ID]Record)}
	w.open(t)
	return w
}

func (w *readState) open(t *testing.T) {
	t.Helper()
	var err error
	if w.s, err = Open(w.dir, readLog, Options{FS: w.fs}); err != nil {
		t.Fatal(err)
	}
}

func (w *readState) close(t *testing.T) {
	t.Helper()
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
}

// write puts records, and deletes those whose value is empty.
func (w *readState) write(t *testing.T, values map[store.ID]string) {
	t.Helper()
	w.seq++
	b := Batch{Sequence: w.seq}
	var changes []Change
	for id, v := range values {
		old, existed := w.records[id]
		c := Change{Collection: id.Collection, Key: id.Key, Existed: existed, Before: old.Entries, Deleted: v == ""}
		if delete(w.records, id); v != "" {
			c.Value = []byte(v)
			if id.Collection == readThings {
				c.Entries = []store.Entry{{Index: "by_value", SortKey: v[:4]}, {Index: "by_key", SortKey: id.Key + "\x00"}}
			}
			w.records[id] = Record{c.Value, c.Entries}
		}
		changes = append(changes, c)
	}
	b.Changes, b.Counts = slices.Values(changes), make(map[store.Collection]Counts)
	for id, r := range w.records {
		c := b.Counts[id.Collection]
		if c.Entries == nil {
			c.Entries = make(map[string]int)
		}
		c.Records++
		c.Bytes += int64(len(id.Key) + len(r.Value))
		for _, e := range r.Entries {
			c.Entries[e.Index]++
		}
		b.Counts[id.Collection] = c
	}
	if err := w.s.Write(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// fill writes several generations of values.
func (w *readState) fill(t *testing.T, n int) {
	t.Helper()
	r, keys := rand.New(rand.NewPCG(1, 2)), 2*n
	for generation := range 4 {
		values := make(map[store.ID]string)
		if generation == 3 {
			n /= 4
		}
		for range n {
			id := store.ID{Collection: readThings, Key: fmt.Sprintf("key-%05d", r.IntN(keys))}
			if r.IntN(4) == 0 {
				id.Collection = readPlain
			}
			if values[id] = fmt.Sprintf("%04d-%d-", r.IntN(1000), generation) + strings.Repeat("x", 700); r.IntN(10) == 0 {
				values[id] = ""
			}
		}
		w.write(t, values)
		if generation == 2 { // and the last one stays in a table of its own
			if err := w.s.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.close(t)
			w.fs = fixed{vfs.Default}
			w.open(t)
		}
	}
}

// read is all that a reader passes.
func readAll(t *testing.T, dir string) (r *Reader, records map[store.ID]Record, unreadable map[store.ID]bool) {
	t.Helper()
	r, err := OpenReader(t.Context(), dir, readLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	records, unreadable = make(map[store.ID]Record), make(map[store.ID]bool)
	err = r.Records(t.Context(), func(c store.Collection, key string, rec Record, err error) error {
		id := store.ID{Collection: c, Key: key}
		if _, twice := records[id]; twice || unreadable[id] {
			t.Errorf("%v was passed twice", id)
		}
		switch {
		case errors.Is(err, store.ErrUnreadable):
			unreadable[id] = true
		case err != nil:
			t.Error(err)
		default:
			records[id] = Record{slices.Clone(rec.Value), rec.Entries}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, records, unreadable
}

func sameRecord(a, b Record) bool {
	return string(a.Value) == string(b.Value) && slices.Equal(a.Entries, b.Entries)
}

// listing is the names, sizes and times of the files in a directory.
func listing(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(info.Name(), info.Size(), info.ModTime(), info.Mode()))
	}
	return list
}

func TestReaderPassesAllRecordsAndWritesNothing(t *testing.T) {
	w := newReadState(t)
	w.fill(t, 2000)
	w.close(t)
	for _, name := range []string{"7" + partSuffix, "000099.dbtmp"} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(w.dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	before := listing(t, w.dir)
	r, records, unreadable := readAll(t, w.dir)
	if r.Err() != nil || r.Sequence() != 4 || r.Bytes() < 1<<20 || r.Lost() != 0 || len(r.Damage()) > 0 || len(unreadable) > 0 {
		t.Errorf("%v, sequence %d, %d bytes, %d lost, damage %v, unreadable %v", r.Err(), r.Sequence(), r.Bytes(), r.Lost(), r.Damage(), unreadable)
	}
	if !maps.EqualFunc(records, w.records, sameRecord) {
		t.Errorf("%d records, want %d", len(records), len(w.records))
	}
	if after := listing(t, w.dir); !slices.Equal(after, before) {
		t.Errorf("the directory was changed:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

func TestReaderWithoutState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for range 2 {
		if _, err := OpenReader(t.Context(), dir, readLog, nil); !errors.Is(err, ErrNone) {
			t.Errorf("opened: %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			if names := listing(t, dir); len(names) > 0 {
				t.Errorf("there are %v", names)
			}
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReaderOfAnotherLog(t *testing.T) {
	w := newReadState(t)
	w.fill(t, 10)
	w.close(t)
	r, err := OpenReader(t.Context(), w.dir, "4567", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Err() == nil || !strings.Contains(r.Err().Error(), "the state of another log: of "+readLog) {
		t.Errorf("the reader says %v", r.Err())
	}
}

func TestReaderStops(t *testing.T) {
	w := newReadState(t)
	w.fill(t, 100)
	w.close(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := OpenReader(ctx, w.dir, readLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stop := errors.New("stop")
	if err := r.Records(ctx, func(store.Collection, string, Record, error) error { return stop }); err != stop {
		t.Errorf("Records returned %v", err)
	}
	cancel()
	if _, err := OpenReader(ctx, w.dir, readLog, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenReader returned %v", err)
	}
}

// TestReaderFindsWrongIndexesAndCounts: entries and counts must be those of the records.
func TestReaderFindsWrongIndexesAndCounts(t *testing.T) {
	id := store.ID{Collection: readThings, Key: "a"}
	for name, test := range map[string]struct {
		wrong func(w *readState)
		says  string
	}{
		"an entry is missing": {func(w *readState) {
			w.records[id] = Record{Entries: []store.Entry{{Index: "by_value", SortKey: "1111"}, {Index: "by_value", SortKey: "2222"}}}
		}, "the index by_value of things does not have the entries of its records"},
		"a record is not counted": {func(w *readState) { delete(w.records, id) }, "it counts 2 records and has 3"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadState(t)
			w.write(t, map[store.ID]string{id: "1111", {Collection: readThings, Key: "b"}: "2222"})
			test.wrong(w)
			w.write(t, map[store.ID]string{id: "2222", {Collection: readThings, Key: "c"}: "3333"})
			if name != "an entry is missing" {
				delete(w.records, id)
				w.write(t, map[store.ID]string{{Collection: readThings, Key: "c"}: "4444"})
			}
			w.close(t)
			r, _, _ := readAll(t, w.dir)
			if len(r.Damage()) == 0 || !strings.Contains(r.Damage()[0].String(), test.says) {
				t.Errorf("damage %v", r.Damage())
			}
		})
	}
}

// TestReaderFindsDamage flips bytes everywhere in the tables. What the reader passes must be what Get finds then.
func TestReaderFindsDamage(t *testing.T) {
	deep.Sequential(t)
	w := newReadState(t)
	w.fill(t, 400)
	w.close(t)
	tables, err := filepath.Glob(filepath.Join(w.dir, "*.sst"))
	if err != nil || len(tables) < 2 {
		t.Fatal(tables, err)
	}
	refused, served, named := 0, 0, 0
	for _, name := range tables {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			at := len(whole) * (2*i + 1) / 24
			if i < 6 { // the indexes and the footer
				at = len(whole) - 1 - i*i*40
			}
			damaged := slices.Clone(whole)
			damaged[at] ^= 0x40
			if err := os.WriteFile(name, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			r, records, unreadable := readAll(t, w.dir)
			if len(r.Damage()) == 0 || r.Damage()[0].File != name || r.Damage()[0].Offset > int64(at) {
				t.Errorf("byte %d of %s: damage %v", at, name, r.Damage())
			}
			w.s, err = Open(w.dir, readLog, Options{FS: w.fs})
			if (err != nil) != (r.Err() != nil) {
				t.Errorf("byte %d of %s: Open says %v, the reader says %v", at, name, err, r.Err())
			}
			if err != nil {
				refused++
				continue
			}
			served++
			lost := 0
			for id, want := range w.records {
				got, err := w.s.Get(id.Collection, id.Key)
				read, ok := records[id]
				switch {
				case err == nil && (!sameRecord(got, want) || !ok || !sameRecord(read, want)):
					t.Errorf("byte %d of %s: %v: Get: %q, the reader: %q, %v", at, name, id, got.Value, read.Value, ok)
				case err != nil && !errors.Is(err, store.ErrUnreadable):
					t.Errorf("byte %d of %s: %v: %v", at, name, id, err)
				case err != nil && ok:
					t.Errorf("byte %d of %s: %v: %v, and the reader has it", at, name, id, err)
				case err != nil && unreadable[id]:
					named++
				case err != nil:
					lost++
				}
			}
			for id := range unreadable {
				if _, ok := w.records[id]; !ok {
					t.Errorf("byte %d of %s: %v was deleted", at, name, id)
				}
			}
			if lost != r.Lost() {
				t.Errorf("byte %d of %s: %d records are lost, the reader says %d", at, name, lost, r.Lost())
			}
			w.close(t)
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 || served == 0 || named == 0 {
		t.Errorf("Open failed %d times, and served %d times; %d records were named", refused, served, named)
	}
}

// TestReaderNeedsLittleMemory reads a state of more than it may keep in memory.
func TestReaderNeedsLittleMemory(t *testing.T) {
	const records, valueBytes, allowed = 8000, 8 << 10, 24 << 20
	w := newReadState(t)
	b := Batch{Sequence: 1, Counts: map[store.Collection]Counts{readPlain: {Records: records}}}
	value := []byte(strings.Repeat("x", valueBytes))
	b.Changes = func(yield func(Change) bool) {
		for i := range records {
			if !yield(Change{Collection: readPlain, Key: fmt.Sprint(i), Value: value}) {
				return
			}
		}
	}
	if err := w.s.Write(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.close(t)
	memory := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, n := memory(), 0
	r, err := OpenReader(t.Context(), w.dir, readLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Records(t.Context(), func(store.Collection, string, Record, error) error {
		if n++; n%(records/4) == 0 {
			if m := memory() - before; m > allowed {
				t.Errorf("%d bytes are in use after %d records", m, n)
			}
		}
		return nil
	})
	if err != nil || n != records || r.Lost() != 0 {
		t.Errorf("%d records, %d lost, %v", n, r.Lost(), err)
	}
}
