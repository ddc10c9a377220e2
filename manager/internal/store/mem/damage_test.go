package mem

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
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// damage flips a bit of the only table that has the text.
func damage(t *testing.T, fs *faultfs.FS, text string) {
	t.Helper()
	for _, name := range fs.Names() {
		if off := bytes.Index(fs.Content(name), []byte(text)); off >= 0 && path.Ext(name) == ".sst" {
			fs.Flip(name, int64(off), 1)
			return
		}
	}
	t.Fatalf("no table has %q", text)
}

// A record in a damaged block cannot be read or replaced. It can be deleted, and then written again. Others are not affected.
func TestDamagedRecord(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	s := mustOpen(t, opts)
	const n = 60
	value := func(i int) string { return strings.Repeat(fmt.Sprintf("<%03d>", i), 400) }
	for i := range n {
		mustUpdate(t, s, put(fmt.Sprintf("k%03d", i), value(i), store.Entry{Index: byName, SortKey: fmt.Sprintf("%03d", i)}))
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	damage(t, fs, value(30))
	s = mustOpen(t, opts)
	var damaged []string
	for i := range n {
		key := fmt.Sprintf("k%03d", i)
		err := s.View(t.Context(), func(tx store.Tx) error {
			v, err := get(tx, key)
			if err == nil && v != value(i) {
				t.Errorf("%s is %q", key, v)
			}
			return err
		})
		var u *store.UnreadableError
		if errors.As(err, &u) && u.Key == key && u.Collection == things {
			damaged = append(damaged, key)
		} else if err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if !slices.Contains(damaged, "k030") || len(damaged) > 4 {
		t.Fatalf("%v cannot be read, want k030 and its neighbours", damaged)
	}
	for _, put := range []func(store.Tx) error{
		put("k030", "new"),
		func(tx store.Tx) error { _ = tx.Put(things, "k030", nil); return tx.Put(things, "other", nil) },
	} {
		if err := s.Update(t.Context(), put); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("a put: %v", err)
		}
	}
	hits := func() (n int) {
		err := s.View(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan(things, byName, store.Range{Limit: store.MaxScan})
			n = len(hits)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got := hits(); got != n {
		t.Errorf("%d hits, want %d", got, n)
	}
	// Deleted and written again in one transaction, or one after the other.
	mustUpdate(t, s, func(tx store.Tx) error {
		return errors.Join(tx.Delete(things, "k030"), tx.Put(things, "k030", []byte("new"), store.Entry{Index: byName, SortKey: "030"}))
	})
	for _, key := range damaged {
		if key != "k030" {
			mustUpdate(t, s, func(tx store.Tx) error { return tx.Delete(things, key) })
		}
	}
	check := func(when string) {
		t.Helper()
		for i := range n {
			key := fmt.Sprintf("k%03d", i)
			want := value(i)
			if key == "k030" {
				want = "new"
			} else if slices.Contains(damaged, key) {
				want = absent
			}
			if got := mustGet(t, s, key); got != want {
				t.Errorf("%s: %s is %q", when, key, got)
			}
		}
		if got, err := s.Len(t.Context(), things, ""); got != n-len(damaged)+1 || err != nil {
			t.Errorf("%s: %d records, %v, want %d", when, got, err, n-len(damaged)+1)
		}
	}
	check("in memory")
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("after a flush")
	image := fs.Crash()
	mustClose(t, s)
	opts.Log.FS, opts.State = image, image.Pebble()
	s = mustOpen(t, opts)
	check("after a crash")
	mustClose(t, s)
}

// A log replays over a record that was damaged since.
func TestReplayOverADamagedRecord(t *testing.T) {
	fs := &faultfs.FS{}
	mustClose(t, onDisk(t, fs, options(fs), 20))
	s := mustOpen(t, options(fs))
	for _, key := range []string{"z1", "z2", "z3"} {
		mustUpdate(t, s, put(key, strings.Repeat("old", 400)))
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, put("z2", "new"))
	mustUpdate(t, s, func(tx store.Tx) error { return tx.Delete(things, "z3") })
	mustClose(t, s)
	damage(t, fs, strings.Repeat("old", 400))
	s = mustOpen(t, options(fs))
	if mustGet(t, s, "z2") != "new" || mustGet(t, s, "z3") != absent {
		t.Error("the changes are not there")
	}
	if err := s.View(t.Context(), func(tx store.Tx) error { _, err := get(tx, "z1"); return err }); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("the damaged record: %v", err)
	}
	mustClose(t, s)
}

// stateFiles has the files of the state.
func stateFiles(fs *faultfs.FS) map[string]string {
	all := make(map[string]string)
	for _, name := range fs.Names() {
		if path.Dir(name) == path.Join(at, StateDir) && path.Base(name) != "LOCK" {
			all[name] = string(fs.Content(name))
		}
	}
	return all
}

// A state that is missing, older than the log needs or of another log is refused, and stays as it is.
func TestStateThatDoesNotFitTheLog(t *testing.T) {
	replaceState := func(fs *faultfs.FS, files map[string]string) {
		for name := range stateFiles(fs) {
			fs.Delete(name)
		}
		for name, data := range files {
			fs.SetContent(name, []byte(data))
		}
	}
	build := func() (fs *faultfs.FS, older map[string]string) {
		fs = &faultfs.FS{}
		s := onDisk(t, fs, options(fs), 20)
		mustClose(t, s)
		older = stateFiles(fs)
		s = mustOpen(t, options(fs))
		mustUpdate(t, s, put("k000", "new"))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustUpdate(t, s, put("k001", "new"))
		mustClose(t, s)
		return fs, older
	}
	others, _ := build()
	for name, harm := range map[string]func(fs *faultfs.FS, older map[string]string){
		"missing": func(fs *faultfs.FS, _ map[string]string) { replaceState(fs, nil) },
		"older":   replaceState,
		"other":   func(fs *faultfs.FS, _ map[string]string) { replaceState(fs, stateFiles(others)) },
		"without its list of files": func(fs *faultfs.FS, _ map[string]string) {
			for name := range stateFiles(fs) {
				if strings.HasPrefix(path.Base(name), "marker.manifest") {
					fs.Delete(name)
				}
			}
		},
		"of a log that is new": func(fs *faultfs.FS, _ map[string]string) {
			for _, name := range fs.Names() {
				if path.Dir(name) == at {
					fs.Delete(name)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, older := build()
			harm(fs, older)
			before := stateFiles(fs)
			for range 2 {
				s, err := Open(t.Context(), at, options(fs))
				if err == nil {
					mustClose(t, s)
				}
				if !errors.Is(err, ErrState) {
					t.Errorf("Open: %v, want ErrState", err)
				}
				if after := stateFiles(fs); !maps.Equal(before, after) && name != "of a log that is new" {
					t.Errorf("Open changed files: there were %q, there are %q", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
				}
			}
		})
	}
}

// Files that were copied one after the other, in any order, while the store was in use, make a store that has what some
// number of whole transactions made, or Open refuses them.
func TestFilesCopiedWhileTheStoreRuns(t *testing.T) {
	opened, refused := 0, make(map[string]int)
	for seed := range uint64(deep.Rounds(40, 150)) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		fs, copied := &faultfs.FS{}, &faultfs.FS{}
		opts := options(fs)
		opts.LayerBytes, opts.FlushBytes = 3<<10, 8<<10
		s, model := mustOpen(t, opts), New(Options{})
		states := [][]string{nil}
		change := func(n int) {
			for range n {
				fn := randomWrites(rnd, 30)
				mustUpdate(t, s, fn)
				mustUpdate(t, model, fn)
				states = append(states, dumped(t, model))
			}
		}
		change(1 + rnd.IntN(60))
		names := fs.Names()
		rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if rnd.IntN(2) == 0 { // as a program that copies one directory after the other
			slices.Sort(names)
		}
		for _, name := range names {
			if data := fs.Content(name); data != nil && path.Base(name) != "LOCK" {
				copied.SetContent(name, data)
			}
			change(rnd.IntN(4))
		}
		mustClose(t, s)
		opts.Log.FS, opts.State = copied, copied.Pebble()
		s, err := Open(t.Context(), at, opts)
		if err != nil {
			text := err.Error()
			refused[text[:min(len(text), 30)]]++
			continue
		}
		opened++
		if got := dumped(t, s); !slices.ContainsFunc(states, func(st []string) bool { return slices.Equal(st, got) }) {
			t.Errorf("seed %d: the copy has what never was:\n%q", seed, got)
		}
		mustClose(t, s)
	}
	t.Logf("%d copies opened, refused: %v", opened, refused)
}

// A damaged block of an index costs the hits of that block. Claims and sweeps find all others.
func TestScansPassOverDamage(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	const n = 200
	sortKey := func(i int) string { return strings.Repeat(fmt.Sprintf("<%03d>", i), 100) }
	for i := range n {
		mustUpdate(t, s, put(fmt.Sprintf("k%03d", i), "", store.Entry{Index: byName, SortKey: sortKey(i)}))
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	for _, name := range fs.Names() {
		if content := fs.Content(name); path.Ext(name) == ".sst" {
			if off := bytes.LastIndex(content, []byte(sortKey(150)[200:])); off >= 0 {
				fs.Flip(name, int64(off), 1)
			}
		}
	}
	var reported []string
	opts := options(fs)
	opts.OnStateError = func(err error) { reported = append(reported, err.Error()) }
	s = mustOpen(t, opts)
	left := n
	for range n { // a sweep: it deletes what it finds first
		var hits []store.Hit
		mustUpdate(t, s, func(tx store.Tx) (err error) {
			if hits, err = tx.Scan(things, byName, store.Range{Limit: 10}); err != nil {
				return err
			}
			for _, h := range hits {
				err = errors.Join(err, tx.Delete(things, h.Key))
			}
			return err
		})
		left -= len(hits)
	}
	if left < 1 || left > 12 {
		t.Errorf("%d records were not found", left)
	}
	if mustGet(t, s, "k150") != "" {
		t.Error("a record that the index does not lead to cannot be read")
	}
	if len(reported) != 1 || !strings.Contains(reported[0], "the index by_name of things") {
		t.Errorf("reported: %q", reported)
	}
	mustClose(t, s)
}
