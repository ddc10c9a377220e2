package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// stateJobs makes a directory with jobs in the state and, when more is not 0, in the log.
func stateJobs(t *testing.T, n, more int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	st := openWal(t, dir)
	enqueue(t, st, 0, n)
	err := st.Update(t.Context(), func(tx store.Tx) error {
		for _, id := range unindexed() {
			if err := tx.Put(id.Collection, id.Key, bytes.Repeat([]byte{1}, 500)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if more > 0 { // without the small layers, of which a flush may still be due
		if st, err = mem.Open(t.Context(), dir, mem.Options{}); err != nil {
			t.Fatal(err)
		}
		enqueue(t, st, n, more)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unindexed are records in no index, of which verify does not look at the value.
func unindexed() (ids []store.ID) {
	for i := range 20 {
		ids = append(ids, store.ID{Collection: downtime.Collection, Key: fmt.Sprintf("record-%02d", i)})
	}
	return ids
}

func openWal(t *testing.T, dir string) *mem.Store {
	t.Helper()
	st, err := mem.Open(t.Context(), dir, mem.Options{LayerBytes: 32 << 10, Log: wal.Options{SegmentBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func jobID(i int) string { return fmt.Sprintf("job-%04d", i) }

func enqueue(t *testing.T, st store.Store, from, n int) {
	t.Helper()
	q, err := jobs.New(st, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for i := range n {
		if _, err := q.Enqueue(t.Context(), jobs.Submission{ID: jobID(from + i), Function: "f", Payload: fmt.Appendf(nil, "%q", strings.Repeat("p", 500))}); err != nil {
			t.Fatal(err)
		}
	}
}

// runWal runs a command on a directory.
func runWal(t *testing.T, command, dir string, more ...string) (code int, out string) {
	t.Helper()
	env, stdout, stderr := testEnv(nil)
	code = Run(t.Context(), env, append([]string{"wal", command, "--data-dir", dir}, more...))
	return code, stdout.String() + stderr.String()
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

// files is what is in a directory and below, with sizes and times.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			list = append(list, fmt.Sprint(path, info.Size(), info.ModTime(), info.Mode()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestWalCommandsReadTheState(t *testing.T) {
	dir := stateJobs(t, 200, 3)
	if err := os.WriteFile(filepath.Join(dir, mem.StateDir, "1.part"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)

	code, text := runWal(t, "stats", dir)
	var stats struct {
		Records  int    `json:"records"`
		Sequence uint64 `json:"state_sequence"`
		State    int    `json:"state_records"`
		Bytes    int64  `json:"state_bytes"`
		Damaged  bool   `json:"damaged"`
		Snapshot string `json:"snapshot"`
	}
	if err := json.Unmarshal([]byte(text), &stats); err != nil || code != 0 {
		t.Fatalf("stats: %d %v: %s", code, err, text)
	}
	if stats.Sequence < 200 || stats.State < 200 || stats.Bytes < 10<<10 || stats.Damaged || stats.Snapshot != "" {
		t.Errorf("stats: %s", text)
	}

	code, text = runWal(t, "verify", dir)
	if want := fmt.Sprintf("ok: %d records in 1 segments, %d in the state\n", stats.Records, stats.State); code != 0 || text != want {
		t.Errorf("verify: %d %s, want %s", code, text, want)
	}

	full, _, stderr := testEnv(nil)
	full.Stdout = fullDisk{}
	if code := Run(t.Context(), full, []string{"wal", "dump", "--data-dir", dir}); code != 1 || !strings.Contains(stderr.String(), "disk is full") {
		t.Errorf("dump into a full disk: %d %s", code, stderr)
	}

	code, text = runWal(t, "dump", dir)
	if code != 0 {
		t.Errorf("dump: %d", code)
	}
	inState := make(map[string]bool)
	var inLog []string
	for line := range strings.Lines(text) {
		var r dumpedRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		state := r.File == filepath.Join(dir, mem.StateDir)
		if state && (r.Sequence != stats.Sequence || !r.At.IsZero() || len(r.Changes) != 1 || len(inLog) > 0) || !state && r.At.IsZero() {
			t.Errorf("dump: %s", line)
		}
		for _, c := range r.Changes {
			switch {
			case c.Collection != string(jobs.Collection):
			case state:
				inState[c.Key] = true
			default:
				inLog = append(inLog, c.Key)
			}
		}
	}
	for i := range 200 {
		if !inState[jobID(i)] {
			t.Errorf("dump has no %s in the state", jobID(i))
		}
	}
	if n := len(inLog); len(inState) != 200 || n < 3 || inLog[n-1] != jobID(202) {
		t.Errorf("dump: %d jobs in the state, %q in the log", len(inState), inLog)
	}
	if after := files(t, dir); !slices.Equal(after, before) {
		t.Errorf("the directory was changed:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}

	st := openWal(t, dir)
	for _, command := range []string{"verify", "dump", "stats"} {
		if code, text := runWal(t, command, dir); code != 1 || !strings.Contains(text, "lock") {
			t.Errorf("%s of a directory that a manager has: %d %s", command, code, text)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWalVerifySaysWhatAManagerDoesOfADamagedState flips bytes of the tables.
func TestWalVerifySaysWhatAManagerDoesOfADamagedState(t *testing.T) {
	dir := stateJobs(t, 100, 0)
	tables, err := filepath.Glob(filepath.Join(dir, mem.StateDir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	codes, named, lost := make(map[int]int), 0, 0
	const flips = 16
	for i := range flips {
		dir := copyDir(t, dir)
		name := filepath.Join(dir, mem.StateDir, filepath.Base(tables[i%len(tables)]))
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := len(b) * (2*i + 1) / (2 * flips)
		b[at] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		code, text := runWal(t, "verify", dir)
		codes[code]++
		if !strings.Contains(text, "unreadable: "+name+": offset ") {
			t.Errorf("byte %d: verify names no block of %s: %s", at, name, text)
		}
		if c, out := runWal(t, "stats", dir); c != 0 || !strings.Contains(out, `"damaged": true`) {
			t.Errorf("byte %d: stats: %d %s", at, c, out)
		}
		if c, out := runWal(t, "dump", dir); c != 1 || !strings.Contains(out, name) {
			t.Errorf("byte %d: dump: %d, %d bytes", at, c, len(out))
		}
		st, err := mem.Open(t.Context(), dir, mem.Options{})
		if (err != nil) != (code == 1) {
			t.Errorf("byte %d: a manager's engine says %v, verify %d %s", at, err, code, text)
		}
		if err != nil {
			continue
		}
		unreadable := 0
		ids := unindexed()
		for i := range 100 {
			ids = append(ids, store.ID{Collection: jobs.Collection, Key: jobID(i)})
		}
		for _, id := range ids {
			err := st.View(t.Context(), func(tx store.Tx) error {
				_, err := tx.Get(id.Collection, id.Key)
				return err
			})
			if err == nil {
				continue
			}
			if unreadable++; strings.Contains(text, fmt.Sprintf("unreadable: %s %q: ", id.Collection, id.Key)) {
				named++
			} else {
				lost++
			}
		}
		says := fmt.Sprintf("cannot be read: %d; a manager starts on it", unreadable)
		if unreadable == 0 {
			says = "has damage in its state, and every record can be read"
		}
		if code != 3 || !strings.Contains(text, says) {
			t.Errorf("byte %d: %d records cannot be read: %d %s", at, unreadable, code, text)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if codes[1] == 0 || codes[3] == 0 || named == 0 || lost == 0 {
		t.Errorf("exit codes %v, %d records were named and %d were not", codes, named, lost)
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestWalVerifyForgetsWhatTheLogReplaced: what a later record replaces need not be readable in the state.
func TestWalVerifyForgetsWhatTheLogReplaced(t *testing.T) {
	dir := stateJobs(t, 5, 0)
	change := func(flush bool, fn func(tx store.Tx, key string) error) {
		t.Helper()
		st := openWal(t, dir)
		for _, key := range []string{jobID(1), jobID(2)} {
			if err := st.Update(t.Context(), func(tx store.Tx) error { return fn(tx, key) }); err != nil {
				t.Fatal(err)
			}
		}
		if flush {
			if err := st.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	change(true, func(tx store.Tx, key string) error { return tx.Put(jobs.Collection, key, []byte{99}) })
	code, text := runWal(t, "verify", dir)
	if code != 3 || !strings.Contains(text, `unreadable: jobs "job-0001": it has version 99`) || !strings.Contains(text, "cannot be read: 2;") {
		t.Errorf("verify: %d %s", code, text)
	}
	change(false, func(tx store.Tx, key string) error { return tx.Delete(jobs.Collection, key) })
	if code, text := runWal(t, "verify", dir); code != 0 {
		t.Errorf("verify after they were deleted: %d %s", code, text)
	}
}

func TestWalVerifyRefusesAStateThatDoesNotFit(t *testing.T) {
	dir := stateJobs(t, 5, 0)
	if err := os.RemoveAll(filepath.Join(dir, mem.StateDir)); err != nil {
		t.Fatal(err)
	}
	const why = "the state does not fit the log"
	for _, command := range []string{"verify", "dump"} {
		if code, text := runWal(t, command, dir); code != 1 || !strings.Contains(text, why) {
			t.Errorf("%s: %d %s", command, code, text)
		}
	}
	if code, text := runWal(t, "verify", dir); code != 1 || !strings.Contains(text, "damage: "+why) || !strings.Contains(text, dir+" is damaged; a manager would refuse to start on it") {
		t.Errorf("verify: %d %s", code, text)
	}
	if code, text := runWal(t, "stats", dir); code != 0 || !strings.Contains(text, `"damaged": true`) {
		t.Errorf("stats: %d %s", code, text)
	}
}

// TestWalVerifyKnowsWhatElseStopsAStart: the files beside the log.
func TestWalVerifyKnowsWhatElseStopsAStart(t *testing.T) {
	for name, want := range map[string]string{
		ship.PartialDir: "was cut off; a manager refuses to start on it", quarantine.File: "a manager refuses to start on ",
	} {
		dir := stateJobs(t, 5, 0)
		if code, text := runWal(t, "verify", dir); code != 0 {
			t.Fatalf("%d %s", code, text)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("torn"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, text := runWal(t, "verify", dir); code != 1 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
}

// TestWalRepair: a damaged record stays refused, and nothing else is damaged any more.
func TestWalRepair(t *testing.T) {
	dir := stateJobs(t, 100, 3)
	if code, text := runWal(t, "repair", dir); code != 0 || text != "ok: nothing is damaged\n" {
		t.Errorf("repair without damage: %d %s", code, text)
	}
	tables, err := filepath.Glob(filepath.Join(dir, mem.StateDir, "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	damaged := ""
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// The first block describes the state.
		if off := bytes.LastIndex(b, bytes.Repeat([]byte("p"), 500)); off >= 8<<10 {
			damaged = name
			b[off] ^= 1
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	st := openWal(t, dir)
	if code, text := runWal(t, "repair", dir); code != 1 || !strings.Contains(text, "lock") {
		t.Errorf("repair of a directory that a manager has: %d %s", code, text)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	code, text := runWal(t, "repair", dir)
	if code != 3 || !strings.Contains(text, "removed: "+damaged+": offset ") || !strings.Contains(text, dir+" has lost records: ") {
		t.Fatalf("repair: %d %s", code, text)
	}
	if code, text := runWal(t, "repair", dir); code != 0 || text != "ok: nothing is damaged\n" {
		t.Errorf("another repair: %d %s", code, text)
	}
	refused := 0
	st = openWal(t, dir)
	var ids []store.ID
	for i := range 100 {
		ids = append(ids, store.ID{Collection: jobs.Collection, Key: jobID(i)})
	}
	for _, id := range ids {
		get := func(tx store.Tx) error { _, err := tx.Get(id.Collection, id.Key); return err }
		if err := st.View(t.Context(), get); err == nil {
			continue
		} else if !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%v: %v", id, err)
		}
		refused++
		if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(id.Collection, id.Key, []byte("again")) }); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%v was replaced: %v", id, err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if says := fmt.Sprintf("cannot be read: %d; a manager starts on it", refused); refused == 0 {
		t.Error("nothing is refused")
	} else if code, text := runWal(t, "verify", dir); code != 3 || !strings.Contains(text, says) || !strings.Contains(text, "it was damaged when the state was repaired") {
		t.Errorf("verify: %d %s, want %s", code, text, says)
	}
	st = openWal(t, dir)
	for _, id := range ids {
		if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Delete(id.Collection, id.Key) }); err != nil {
			t.Error(err)
		}
	}
	if err := st.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if code, text := runWal(t, "verify", dir); code != 0 {
		t.Errorf("verify after the lost records were deleted: %d %s", code, text)
	}
}
