package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Wherever a table is damaged: after a repair every record is what it was or is refused, no other one is, the index has
// the entries of all records that can be read, the tables can be rewritten, and what is lost stays refused until it is deleted.
func TestRepair(t *testing.T) {
	deep.Sequential(t)
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 100, 300)
	m.add(t, s, 100, 300)
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes := make(map[string]*Record) // newer versions of some, and deleted ones
	for i := range 60 {
		changes[fmt.Sprintf("k%05d", 3*i)] = &Record{Value: []byte("newer"), Entries: []store.Entry{{Index: "order", SortKey: fmt.Sprintf("n%05d", i)}}}
	}
	for i := range 20 {
		changes[fmt.Sprintf("k%05d", 3*i+1)] = nil
	}
	m.write(t, s, changes)
	mustClose(t, s)
	outcomes := make(map[string]int)
	const rounds = 30
	for _, name := range tables(fs) {
		size := len(fs.Content(name))
		for i := range rounds {
			outcomes[m.repaired(t, fs, name, size*i/rounds)]++
		}
		for i := range 40 { // index, properties, footer
			outcomes[m.repaired(t, fs, name, size-1-15*i)]++
		}
	}
	t.Log(outcomes)
	if outcomes["some are lost"] == 0 || outcomes["nothing is lost"] == 0 {
		t.Error(outcomes)
	}
}

func (m *model) repaired(t *testing.T, fs *faultfs.FS, name string, off int) (outcome string) {
	t.Helper()
	fs = fs.Clone()
	fs.Flip(name, int64(off), 0x10)
	if other := off + 10_000; off%2 == 0 && other < len(fs.Content(name)) {
		fs.Flip(name, int64(other), 0x10)
	}
	at := fmt.Sprintf("byte %d of %d of %s", off, len(fs.Content(name)), name)
	before := content(fs)
	done, err := Repair(t.Context(), dir, log, fs.Pebble())
	if err != nil {
		if after := content(fs); !maps.Equal(before, after) {
			t.Errorf("%s: a repair that fails changed files: %v", at, err)
		}
		if s, err := Open(dir, log, Options{FS: fs.Pebble()}); err == nil {
			t.Errorf("%s: what could be opened could not be repaired", at)
			mustClose(t, s)
		}
		return "beyond repair"
	}
	if len(done.Damage) == 0 || !strings.Contains(done.Damage[0].File, name) {
		t.Errorf("%s: the damage is %v", at, done.Damage)
	}
	s := mustOpen(t, fs)
	after := model{records: maps.Clone(m.records), seq: m.seq}
	lost := func(s *State) (keys []string) {
		for key, want := range m.records {
			r, err := s.Get(things, key)
			if errors.Is(err, store.ErrUnreadable) && s.MayHave(things, key) {
				keys = append(keys, key)
				delete(after.records, key)
			} else if err != nil || !sameRecord(r, want) {
				t.Errorf("%s: %q is %q, %v", at, key, r, err)
			}
		}
		slices.Sort(keys)
		return keys
	}
	gone := lost(s)
	for i := range 300 {
		key := fmt.Sprintf("k%05d", i)
		if _, had := m.records[key]; had {
			continue
		}
		if _, err := s.Get(things, key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %q, which was deleted or never written: %v", at, key, err)
		}
	}
	if len(gone) != done.Lost || len(done.Named) > done.Lost {
		t.Errorf("%s: %d records are lost and %d named, %q are refused", at, done.Lost, len(done.Named), gone)
	}
	hits, err := scan(s, "order")
	hits = slices.DeleteFunc(hits, func(h store.Hit) bool { return slices.Contains(gone, h.Key) })
	if want := after.hits("order"); err != nil || !slices.Equal(hits, want) {
		t.Errorf("%s: the index has %q, %v, want %q", at, hits, err, want)
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Errorf("%s: %v", at, err)
	}
	mustClose(t, s)
	r, err := OpenReader(t.Context(), dir, log, fs.Pebble())
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	named := 0
	if err := r.Records(t.Context(), func(c store.Collection, key string, _ Record, err error) error {
		if err != nil && c == things && slices.Contains(gone, key) {
			named++
		}
		return nil
	}); err != nil || named+r.Lost() != len(gone) || len(r.bad) > 0 || (len(r.Damage()) > 0) != (r.Lost() > 0) {
		t.Errorf("%s: a reader of the repaired state: %d named, %d lost, %v, %v, want %d", at, named, r.Lost(), r.Damage(), err, len(gone))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	s = mustOpen(t, fs)
	if again := lost(s); !slices.Equal(again, gone) {
		t.Errorf("%s: after a restart %q are refused, before %q", at, again, gone)
	}
	if len(gone) > 0 {
		m := model{records: maps.Clone(m.records), seq: m.seq}
		m.write(t, s, map[string]*Record{gone[0]: nil})
		if _, err := s.Get(things, gone[0]); !errors.Is(err, store.ErrNotFound) || s.MayHave(things, gone[0]) {
			t.Errorf("%s: %q was deleted: %v", at, gone[0], err)
		}
		m.write(t, s, map[string]*Record{gone[0]: {Value: []byte("again")}})
		if r, err := s.Get(things, gone[0]); err != nil || string(r.Value) != "again" {
			t.Errorf("%s: %q was written again: %q, %v", at, gone[0], r, err)
		}
	}
	mustClose(t, s)
	if done, err := Repair(t.Context(), dir, log, fs.Pebble()); err != nil || len(done.Damage) > 0 {
		t.Errorf("%s: another repair: %v, %v", at, done, err)
	}
	if len(gone) > 0 {
		return "some are lost"
	}
	return "nothing is lost"
}

// A table of which nothing can be read costs its records. A copy of the repaired state refuses them, too.
func TestRepairOfAWholeTable(t *testing.T) {
	deep.Sequential(t)
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	for range 4 {
		m.add(t, s, 600, 10_000)
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	names := tables(fs)
	if len(names) < 2 {
		t.Fatal("all is in one table")
	}
	name := names[len(names)-1] // the first one describes the state
	fs.Flip(name, int64(len(fs.Content(name))-5), 1)
	done, err := Repair(t.Context(), dir, log, fs.Pebble())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(done.Damage); n != 1 || !strings.Contains(done.Damage[0].File, name) || done.Lost < 300 || done.Lost > 2000 {
		t.Fatalf("%d lost, %v", done.Lost, done.Damage)
	}
	s = mustOpen(t, fs)
	refused := func(s *State) (n int) {
		for key, want := range m.records {
			if r, err := s.Get(things, key); errors.Is(err, store.ErrUnreadable) && s.MayHave(things, key) {
				n++
			} else if err != nil || !sameRecord(r, want) {
				t.Errorf("%q is %q, %v", key, r, err)
			}
		}
		return n
	}
	if n := refused(s); n != done.Lost {
		t.Errorf("%d are refused, want %d", n, done.Lost)
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.Contains(tables(fs), name) {
		t.Error("the damaged table is still there")
	}
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []Change
	for {
		c, key, r, ok, err := snap.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		all = append(all, Change{Collection: c, Key: key, Value: slices.Clone(r.Value), Entries: r.Entries})
	}
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	copied := &faultfs.FS{}
	s = mustOpen(t, copied)
	if err := s.Write(t.Context(), Batch{Sequence: 9, Changes: slices.Values(all), Counts: map[store.Collection]Counts{Lost: {Records: 1}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n := refused(s); n != done.Lost {
			t.Errorf("%d are refused in a copy, want %d", n, done.Lost)
		}
		mustClose(t, s)
		s = mustOpen(t, copied)
	}
	mustClose(t, s)
}

// A repair that is cut off, wherever, and run again loses nothing else.
func TestRepairIsCutOff(t *testing.T) {
	deep.Sequential(t)
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 300, 300)
	mustClose(t, s)
	name := tables(fs)[0]
	for _, key := range []string{"k00050", "k00150", "k00250"} {
		fs.Flip(name, int64(strings.Index(string(fs.Content(name)), string(m.records[key].Value))), 1)
	}
	for n := 1; ; n += deep.Rounds(23, 40) {
		if n > 1000 {
			t.Fatal("no repair ends")
		}
		fs := fs.Clone()
		var mu sync.Mutex
		left, image := n, (*faultfs.FS)(nil)
		fs.SetHook(func(faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				image = fs.Crash()
			}
			return nil
		})
		if _, err := Repair(t.Context(), dir, log, fs.Pebble()); err != nil {
			t.Fatal(err)
		}
		fs.SetHook(nil)
		whole := image == nil
		if whole {
			image = fs.Crash()
		}
		fs = image
		if _, err := Repair(t.Context(), dir, log, fs.Pebble()); err != nil {
			t.Fatalf("cut off at %d: %v", n, err)
		}
		s := mustOpen(t, fs)
		refused := 0
		for key, want := range m.records {
			if r, err := s.Get(things, key); errors.Is(err, store.ErrUnreadable) && s.MayHave(things, key) {
				refused++
			} else if err != nil || !sameRecord(r, want) {
				t.Fatalf("cut off at %d: %q is %q, %v", n, key, r, err)
			}
		}
		if refused < 3 || refused > 60 {
			t.Fatalf("cut off at %d: %d are refused", n, refused)
		}
		if err := s.Compact(t.Context()); err != nil {
			t.Errorf("cut off at %d: %v", n, err)
		}
		mustClose(t, s)
		if whole {
			t.Logf("%d steps", n)
			return
		}
	}
}
