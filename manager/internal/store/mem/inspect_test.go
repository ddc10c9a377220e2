package mem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/state"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// opened opens a store in a real directory.
func opened(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, Options{Log: wal.Options{SegmentBytes: 64 << 10, FillAhead: -1}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func putAll(t *testing.T, s *Store, value string, keys ...string) {
	t.Helper()
	for _, k := range keys {
		mustUpdate(t, s, put(k, value, store.Entry{Index: byName, SortKey: value}))
	}
}

func flushed(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func copied(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// inspected is what Verify says about a directory, and the changes that it passed.
func inspected(t *testing.T, dir string) (r *Report, lines []string) {
	t.Helper()
	r, err := Verify(t.Context(), dir, InspectOptions{Log: wal.InspectOptions{Check: func(e wal.Entry) error {
		_, err := DecodeWriteSet(e.Body, func(c *Change) error {
			text := fmt.Sprintf("%s %s=%s", filepath.Base(e.File), c.Key, c.Value)
			if e.Replaced {
				text += " replaced"
			}
			lines = append(lines, text)
			return nil
		})
		return err
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return r, lines
}

func TestInspectPassesTheStateAndThenTheLog(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	putAll(t, s, "old", "a", "b")
	flushed(t, s)
	putAll(t, s, "new", "b", "c")
	if _, err := Verify(t.Context(), dir, InspectOptions{}); !isLocked(err) {
		t.Errorf("Verify of an open store: %v", err)
	}
	mustClose(t, s)
	r, lines := inspected(t, dir)
	const log = "00000000000000000001.wal"
	want := []string{"state a=old", "state b=old", log + " a=old replaced", log + " b=old replaced", log + " b=new", log + " c=new"}
	if st := r.State; !slices.Equal(lines, want) || r.Refused() || !st.InForce || st.Sequence != 2 || st.Records != 2 || st.Lost != 0 || st.Bytes == 0 || len(st.Damage) > 0 {
		t.Errorf("%q, %+v", lines, r)
	}
}

func isLocked(err error) bool {
	var l *vfs.LockedError
	return errors.As(err, &l)
}

// TestInspectComplainsOfWhatCannotBeUsed: an error of Check is damage, and a note where a start does not read the record.
func TestInspectComplainsOfWhatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	putAll(t, s, "v", "a", "b")
	flushed(t, s)
	mustClose(t, s)
	bad := errors.New("bad")
	r, err := Verify(t.Context(), dir, InspectOptions{Log: wal.InspectOptions{Check: func(wal.Entry) error { return bad }}})
	if err != nil {
		t.Fatal(err)
	}
	var damage, notes int
	for _, c := range r.Complaints {
		if c.Severity == wal.Damage && c.File == filepath.Join(dir, StateDir) {
			damage++
		} else if c.Severity == wal.Note {
			notes++
		}
	}
	if damage != 2 || notes != 2 || len(r.Complaints) != 4 { // a start does not read what the state has
		t.Errorf("complaints %v", r.Complaints)
	}
}

// TestInspectAfterACrashInAFlush: a state may be ahead of the snapshot that points to it. A start does not read what it has.
func TestInspectAfterACrashInAFlush(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	putAll(t, s, "1", "a")
	flushed(t, s)
	mustClose(t, s)
	early := copied(t, dir)
	s = opened(t, dir)
	putAll(t, s, "2", "a", "b")
	flushed(t, s)
	putAll(t, s, "3", "b")
	mustClose(t, s)
	if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%020d.snap", 3))); err != nil {
		t.Fatal(err)
	}
	snapshot := fmt.Sprintf("%020d.snap", 1)
	b, err := os.ReadFile(filepath.Join(early, snapshot))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, snapshot), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	const log = "00000000000000000001.wal"
	want := []string{"state a=2", "state b=2", log + " a=1 replaced", log + " a=2 replaced", log + " b=2 replaced", log + " b=3"}
	if r, lines := inspected(t, dir); !slices.Equal(lines, want) || r.Refused() || r.State.Sequence != 3 {
		t.Errorf("%q, %+v", lines, r)
	}
	bad := errors.New("bad")
	r, err := Verify(t.Context(), dir, InspectOptions{Log: wal.InspectOptions{Check: func(e wal.Entry) error {
		if e.Replaced {
			return bad
		}
		return nil
	}}})
	if err != nil || r.Damaged() || len(r.Complaints) != 3 {
		t.Errorf("%v, complaints %v", err, r.Complaints)
	}
}

// TestInspectSaysWhenOpenRefuses makes directories whose log and state do not fit.
func TestInspectSaysWhenOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, dir)
	putAll(t, s, "1", "a", "b")
	flushed(t, s)
	mustClose(t, s)
	early := copied(t, dir)
	s = opened(t, dir)
	putAll(t, s, "2", "b", "c", "d")
	flushed(t, s)
	mustClose(t, s)
	other := t.TempDir()
	s = opened(t, other)
	putAll(t, s, "3", "a", "b", "c", "d", "e", "f")
	flushed(t, s)
	mustClose(t, s)

	withState := func(from string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, StateDir)); err != nil {
				t.Fatal(err)
			}
			if from == "" {
				return
			}
			if err := os.CopyFS(filepath.Join(dir, StateDir), os.DirFS(filepath.Join(from, StateDir))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		dir    string
		change func(t *testing.T, dir string)
		says   string // empty: it opens
	}{
		"as it was":             {dir, func(*testing.T, string) {}, ""},
		"no state":              {dir, withState(""), "must have all up to record 5, and has those up to 0"},
		"a state that is older": {dir, withState(early), "must have all up to record 5, and has those up to 2"},
		"a state that is newer": {early, withState(dir), "has record 5, and the log ends with 2"},
		"another log":           {dir, withState(other), "the state of another log"},
		"an empty directory": {dir, func(t *testing.T, dir string) {
			withState("")(t, dir)
			if err := os.Mkdir(filepath.Join(dir, StateDir), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "must have all up to record 5, and has those up to 0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, test.dir)
			test.change(t, dir)
			r, _ := inspected(t, dir)
			if r.Damaged() {
				t.Errorf("complaints %v", r.Complaints)
			}
			s, err := Open(t.Context(), dir, Options{})
			if test.says == "" {
				if r.Refused() || err != nil {
					t.Fatalf("Verify says %v, Open says %v", r.Refusals, err)
				}
				mustClose(t, s)
				return
			}
			if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Open says %v", err)
			}
			if len(r.Refusals) != 1 || r.Refusals[0].Error() != err.Error() {
				t.Errorf("Verify says %v, Open %v", r.Refusals, err)
			}
		})
	}
}

// TestInspectAnImport: until a restored directory was opened, its records are those of the snapshot.
func TestInspectAnImport(t *testing.T) {
	dir := t.TempDir()
	im, err := wal.NewImporter(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	body := func(key string) []byte {
		return appendPutOf(appendHeader(nil, time.Now()), things, key, []byte("v"), nil)
	}
	steps := []func() error{
		func() error { return im.Snapshot(7, time.Now()) },
		func() error { return im.Append(body("a")) },
		func() error { return im.Append(body("b")) },
		func() error { return im.Segment(1, 8, 64<<10) },
		func() error { return im.Append(body("c")) },
		im.Finish,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	snapshot, log := fmt.Sprintf("%020d.snap", 7), "00000000000000000001.wal"
	want := []string{snapshot + " a=v", snapshot + " b=v", log + " c=v"}
	verify := func(what string) {
		t.Helper()
		r, lines := inspected(t, dir)
		if r.Refused() || r.State.InForce || r.SnapshotRecords != 2 || !slices.Equal(lines, want) {
			t.Errorf("%s: %q, %+v", what, lines, r)
		}
	}
	verify("without a state")

	// An import that was cut off has some of the records.
	var id string
	_, err = wal.Verify(t.Context(), dir, wal.InspectOptions{Begin: func(log string, snapshot uint64) error {
		id = log
		if snapshot != 7 {
			t.Errorf("the snapshot is %d", snapshot)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.Open(filepath.Join(dir, StateDir), id, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = st.Write(t.Context(), state.Batch{
		Changes: slices.Values([]state.Change{{Collection: things, Key: "a", Value: []byte("v")}}),
		Counts:  map[store.Collection]state.Counts{things: {Records: 1, Bytes: 2}},
	})
	if err := errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	verify("with a part of it")

	s := opened(t, dir)
	mustClose(t, s)
	r, lines := inspected(t, dir)
	if want := []string{"state a=v", "state b=v", log + " c=v"}; !slices.Equal(lines, want) || r.Refused() || r.State.Sequence != 7 || r.State.Records != 2 {
		t.Errorf("after a start: %q, %+v", lines, r)
	}
}
