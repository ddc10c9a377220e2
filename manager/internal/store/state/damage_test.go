package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Wherever a table is damaged: no reader gets something else than what was written, a damaged record is unreadable while
// those in other blocks are not affected, and a state that cannot be opened says which file is damaged.
func TestDamagedTables(t *testing.T) {
	deep.Sequential(t)
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 100, 300)
	m.add(t, s, 100, 300)
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.add(t, s, 40, 300)
	mustClose(t, s)
	outcomes := make(map[string]int)
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, name := range tables(fs) {
		size := int64(len(fs.Content(name)))
		for off := int64(0); off < size; off += 1 + int64(rnd.IntN(deep.Rounds(4000, 800))) {
			outcomes[m.damaged(t, fs, name, off)]++
		}
		for off := size - 1; off > size-600 && off >= 0; off -= 1 + int64(rnd.IntN(deep.Rounds(80, 10))) {
			outcomes[m.damaged(t, fs, name, off)]++ // index, properties, footer
		}
	}
	for outcome, n := range outcomes {
		t.Log(n, outcome)
	}
}

func (m *model) damaged(t *testing.T, fs *faultfs.FS, name string, off int64) (outcome string) {
	t.Helper()
	fs = fs.Clone()
	fs.Flip(name, off, 0x10)
	at := fmt.Sprintf("byte %d of %d of %s", off, len(fs.Content(name)), name)
	var reported []string
	s, err := Open(dir, log, Options{FS: fs.Pebble(), OnError: func(err error) { reported = append(reported, err.Error()) }})
	if err != nil {
		if !strings.Contains(err.Error(), name[strings.LastIndex(name, "/")+1:]) {
			t.Errorf("%s: Open does not name the file: %v", at, err)
		}
		return "not opened"
	}
	defer mustClose(t, s)
	unreadable := 0
	for key, want := range m.records {
		r, err := s.Get(things, key)
		var u *store.UnreadableError
		switch {
		case errors.As(err, &u):
			if u.Key != key || u.Collection != things || !strings.Contains(u.Reason, name) {
				t.Errorf("%s: the error of %q is %v", at, key, err)
			}
			unreadable++
		case err != nil || string(r.Value) != string(want.Value) || !slices.Equal(r.Entries, want.Entries):
			t.Errorf("%s: %q is %q, %v", at, key, r, err)
		}
		if !s.MayHave(things, key) {
			t.Errorf("%s: %q seems to be absent", at, key)
		}
	}
	if _, err := s.Get(things, "absent"); err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("%s: an absent record: %v", at, err)
	}
	outcome = "no effect"
	if unreadable > 0 {
		outcome = "some are unreadable"
	}
	if unreadable > 100 {
		outcome = "a whole table is unreadable"
	}
	hits, err := scan(s, "order")
	want := m.hits("order")
	i := 0
	for _, h := range want {
		if i < len(hits) && hits[i] == h {
			i++
		}
	}
	if err != nil || i < len(hits) {
		t.Errorf("%s: a scan has %q, %v", at, hits, err)
	} else if len(hits) < len(want) {
		outcome += ", a scan passes over some"
		if len(reported) == 0 || !strings.Contains(reported[0], name) || !strings.Contains(reported[0], "the index order of things") {
			t.Errorf("%s: a scan reports %q", at, reported)
		}
	}
	// The first scan still had the entry before the damaged block.
	if again, err := scan(s, "order"); err != nil || len(again) < len(hits)-1 || len(again) > len(hits) {
		t.Errorf("%s: another scan has %q, %v", at, again, err)
	}
	if s.Err() != nil {
		t.Errorf("%s: the state failed: %v", at, s.Err())
	}
	return outcome
}

// A compaction that meets a damaged block is tried again after a while and not at once, and writes and reads continue.
func TestCompactionOfADamagedTable(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	mustClose(t, s)
	failures := make(chan error, 1e6)
	s, err := Open(dir, log, Options{FS: fs.Pebble(), OnError: func(err error) { failures <- err }})
	if err != nil {
		t.Fatal(err)
	}
	var m model
	m.add(t, s, 50, 300) // into the last level
	entered, leave := make(chan struct{}, 100), make(chan struct{})
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Create && path.Ext(op.Path) == ".sst" { // of a compaction
			entered <- struct{}{}
			<-leave
		}
		return nil
	})
	m.add(t, s, 50, 300) // into the first one
	<-entered
	name := tables(fs)[1]
	fs.Flip(name, int64(bytes.Index(fs.Content(name), m.records["k00090"].Value)), 1)
	close(leave)
	if err := <-failures; !strings.Contains(err.Error(), name) {
		t.Errorf("the error in the background does not name the file: %v", err)
	}
	for range 30 { // enough for compactions inside the first level
		m.add(t, s, 10, 300)
	}
	unreadable := 0
	for key := range m.records {
		if _, err := s.Get(things, key); errors.Is(err, store.ErrUnreadable) {
			unreadable++
		} else if err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	if unreadable < 1 || unreadable > 20 {
		t.Errorf("%d records are unreadable, want those of a block", unreadable)
	}
	if n := len(failures); n > 10 {
		t.Errorf("the compaction was tried %d times again", n)
	}
	mustClose(t, s)
}

// A table that is missing or cut off is named by Open.
func TestMissingTables(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 50, 300)
	m.add(t, s, 50, 300)
	mustClose(t, s)
	for _, name := range tables(fs) {
		for how, harm := range map[string]func(*faultfs.FS){
			"missing": func(fs *faultfs.FS) { fs.Delete(name) },
			"cut off": func(fs *faultfs.FS) { fs.SetContent(name, fs.Content(name)[:1000]) },
			"empty":   func(fs *faultfs.FS) { fs.SetContent(name, nil) },
		} {
			fs := fs.Clone()
			harm(fs)
			s, err := Open(dir, log, Options{FS: fs.Pebble()})
			if err == nil {
				t.Errorf("%s %s: Open finds nothing wrong", name, how)
				mustClose(t, s)
			} else if !strings.Contains(err.Error(), path.Base(name)) && !strings.Contains(err.Error(), strings.TrimSuffix(path.Base(name), ".sst")) {
				t.Errorf("%s %s: Open does not name it: %v", name, how, err)
			}
		}
	}
}

// What describes the tables may be missing or damaged, too. Then Look finds an older state or an error, never a newer
// state, and changes nothing, so that the files can still be mended.
func TestLookChangesNothing(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 50, 300)
	mustClose(t, s)
	harms := map[string]func(*faultfs.FS, string){
		"missing": (*faultfs.FS).Delete,
		"empty":   func(fs *faultfs.FS, name string) { fs.SetContent(name, nil) },
		"damaged": func(fs *faultfs.FS, name string) {
			if n := len(fs.Content(name)); n > 0 {
				fs.Flip(name, int64(n)/2, 0xff)
			}
		},
		"as it is": func(*faultfs.FS, string) {},
	}
	found := make(map[uint64]int)
	for _, name := range fs.Names() {
		for how, harm := range harms {
			fs := fs.Clone()
			harm(fs, name)
			before := content(fs)
			seq, err := Look(dir, log, Options{FS: fs.Pebble()})
			if after := content(fs); !maps.Equal(before, after) {
				t.Errorf("%s %s: Look changes files: there were %q, there are %q", name, how, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
			}
			if err == nil {
				found[seq]++
			}
			if how == "as it is" && (seq != 1 || err != nil) || seq > 1 {
				t.Errorf("%s %s: Look finds %d, %v", name, how, seq, err)
			}
		}
	}
	if found[0] == 0 {
		t.Error("no harm lets the state look older")
	}
	if _, err := Look(dir, "another log", Options{FS: fs.Pebble()}); !errors.Is(err, ErrOther) {
		t.Errorf("for another log: %v", err)
	}
	if _, err := Open(dir, "another log", Options{FS: fs.Pebble()}); !errors.Is(err, ErrOther) {
		t.Errorf("Open for another log: %v", err)
	}
	if seq, err := Look("nowhere", log, Options{FS: fs.Pebble()}); seq != 0 || err != nil {
		t.Errorf("without a state: %d, %v", seq, err)
	}
}

// content has all files but the lock, which is created when it is missing.
func content(fs *faultfs.FS) map[string]string {
	all := make(map[string]string)
	for _, name := range fs.Names() {
		if path.Base(name) != "LOCK" {
			all[name] = string(fs.Content(name))
		}
	}
	return all
}

// An index reader passes over damaged blocks, wherever it begins, and finds all entries of the others, also those that are
// written later.
func TestIndexReadersPassOverDamage(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.add(t, s, 3000, 6) // the last fifth of the table is the index
	mustClose(t, s)
	name := tables(fs)[0]
	size := len(fs.Content(name))
	for flips := range 4 {
		fs := fs.Clone()
		for i := range flips {
			fs.Flip(name, int64(size*(84+4*i)/100), 1)
		}
		reported := 0
		s, err := Open(dir, log, Options{FS: fs.Pebble(), OnError: func(err error) {
			if strings.Contains(err.Error(), "the index order of things") {
				reported++
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		m := model{records: maps.Clone(m.records), seq: m.seq}
		if _, err := scan(s, "order"); err != nil { // which still has the entry before a damaged block
			t.Fatal(err)
		}
		hits, err := scan(s, "order")
		if lost := 3000 - len(hits); err != nil || lost < flips || lost > flips*600 || reported != flips {
			t.Fatalf("%d flips: %d entries are not found, %v, %d reported", flips, lost, err, reported)
		}
		found := make(map[store.Hit]bool)
		for _, h := range hits {
			found[h] = true
		}
		x, err := s.OpenIndex(things, "order")
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range m.hits("order") {
			ok := x.Seek(member.Append(nil, h.SortKey, h.Key))
			if i := slices.IndexFunc(hits, func(o store.Hit) bool { return o.SortKey >= h.SortKey }); ok != (i >= 0) || ok && x.Hit() != hits[i] {
				t.Fatalf("%d flips: a seek to %q: %v, %v", flips, h, ok, x.Err())
			}
		}
		x.Close()
		m.add(t, s, 100, 6)
		if more, err := scan(s, "order"); err != nil || len(more) != len(hits)+100 {
			t.Errorf("%d flips: %d entries after 100 more, %v, there were %d", flips, len(more), err, len(hits))
		}
		mustClose(t, s)
	}
}
