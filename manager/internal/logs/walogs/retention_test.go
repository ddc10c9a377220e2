package walogs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
)

// TestOnlyAnUnmadeLogIsRemoved: a directory with anything but the files of a log that was never made
// stays, and its name is refused.
func TestOnlyAnUnmadeLogIsRemoved(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Engine, error) {
		return Open(t.Context(), dir, Options{SegmentBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	}
	e, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Put(t.Context(), "orders", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	// A log that another program puts there while the manager runs is not the manager's to remove either.
	if err := os.MkdirAll(filepath.Join(dir, "back", "in", "time"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Put(t.Context(), "back", logs.Change{}); err == nil || logstest.Code(err) != "conflict" {
		t.Errorf("a log over a directory with something in it: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "back")); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "orders"), filepath.Join(old, "orders")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"", "lock", "00000000000000000001.wal"} { // also where an earlier start left its own
		if file != "" {
			if err := os.WriteFile(filepath.Join(old, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if e, err = open(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Put(t.Context(), "old", logs.Change{}); logstest.Code(err) != "unavailable" {
			t.Errorf("with %q beside it: %v", file, err)
		}
		if infos, err := e.List(t.Context(), "", 1); err != nil || infos[0].Name != "old" || !strings.Contains(infos[0].Failed, `"orders"`) {
			t.Errorf("with %q beside it: %+v, %v", file, infos, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.Rename(filepath.Join(old, "orders"), filepath.Join(dir, "orders")); err != nil {
		t.Fatalf("the log is gone: %v", err)
	}
	if e, err = open(); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if infos, err := e.List(t.Context(), "", 10); err != nil || len(infos) != 1 || infos[0].Name != "orders" {
		t.Errorf("%v, %v", infos, err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was never made stays: %v", err)
	}
}

// TestRetentionGivesTheDiskBack: what retention deletes leaves the disk.
func TestRetentionGivesTheDiskBack(t *testing.T) {
	retain := time.Minute
	r := newRig(t, logs.Change{Retain: &retain})
	for i := range 100 {
		r.Say(logstest.Entry(fmt.Sprint(i), strings.Repeat("p", 2000)))
	}
	before := r.Info().DiskBytes
	r.clock.advance(time.Minute)
	r.log().duty(t.Context())
	if after := r.Info().DiskBytes; after >= before {
		t.Errorf("the log takes %d bytes, it took %d", after, before)
	}
}

// TestWritersAreBounded: a writer too many is refused, and one that is removed makes room.
func TestWritersAreBounded(t *testing.T) {
	r := newRig(t, logs.Change{})
	state := r.log().state
	for i := range logs.MaxWriters {
		state.SetEpoch(fmt.Sprint("pod", i), 1)
	}
	if _, err := r.OpenWriter(t.Context(), "log", "one more"); logstest.Code(err) != "too-many-writers" {
		t.Errorf("a writer too many: %v", err)
	}
	if err := r.RemoveWriter(t.Context(), "log", "pod1"); err != nil {
		t.Fatal(err)
	}
	if epoch, err := r.OpenWriter(t.Context(), "log", "one more"); err != nil || epoch != 2 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
}

// A snapshot is taken when records have followed the last one for the interval, and not without any.
func TestSnapshotByTime(t *testing.T) {
	window := 24 * time.Hour
	r := newRig(t, logs.Change{Window: &window})
	r.Say(logstest.Entry("a", "x"))
	seq := func() uint64 { return r.log().wal.Stats().SnapshotSequence }
	r.log().duty(t.Context())
	if seq() != 0 {
		t.Fatal("a snapshot was taken at once")
	}
	r.clock.advance(time.Minute)
	r.log().duty(t.Context())
	first := seq()
	if first != r.log().wal.Last() {
		t.Fatalf("after a minute the snapshot is of record %d, the last one is %d", first, r.log().wal.Last())
	}
	r.clock.advance(time.Hour)
	r.log().duty(t.Context())
	if seq() != first {
		t.Error("a snapshot of nothing new was taken")
	}
	r.Say(logstest.Entry("b", "y"))
	r.log().duty(t.Context())
	if seq() == first {
		t.Error("no snapshot after an hour and a new entry")
	}
	r.Say(logstest.Entry("c", "z"))
	r.log().took = time.Minute // it takes long: the next one must wait for longer than the interval
	r.clock.advance(time.Hour)
	before := seq()
	r.log().duty(t.Context())
	if seq() != before {
		t.Error("a snapshot that takes a minute is taken again after an hour")
	}
	r.crash()
	for i, item := range []logs.Item{logstest.Entry("a", "x"), logstest.Entry("b", "y"), logstest.Entry("c", "z")} {
		o, err := r.Append(t.Context(), "log", []logs.Item{item}, false)
		if err != nil || !o[0].Duplicate || o[0].Number != uint64(i+1) {
			t.Errorf("%s after a crash: %+v, %v", item.ID, o, err)
		}
	}
}
