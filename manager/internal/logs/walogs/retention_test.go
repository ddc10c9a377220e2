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

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// TestRetention deletes what is too old or too much, gives the disk back, tells a reader that it was
// overtaken, and keeps the ids of the window.
func TestRetention(t *testing.T) {
	retain := time.Minute
	r := newRig(t, logs.Change{Retain: &retain})
	id := func(i int) logs.Item { return entry(fmt.Sprint(i), strings.Repeat("p", 2000)) }
	for i := 1; i <= 200; i++ {
		r.put(id(i))
	}
	before := r.log().info().DiskBytes
	r.clock.advance(30 * time.Second)
	for i := 201; i <= 300; i++ {
		r.put(id(i))
	}
	r.log().duty(t.Context())
	if first := r.log().info().First; first != 1 {
		t.Errorf("the first entry is %d before anything is too old", first)
	}
	r.clock.advance(30 * time.Second)
	r.log().duty(t.Context())
	info := r.log().info()
	if info.First < 100 || info.First > 201 || info.DiskBytes >= before {
		t.Errorf("the first entry is %d, the log takes %d bytes, it took %d", info.First, info.DiskBytes, before)
	}
	if _, err := r.Read(t.Context(), "log", logs.Query{After: 0}); code(err) != "cursor-gone" {
		t.Errorf("a reader that was overtaken: %v", err)
	}
	if _, err := r.ByID(t.Context(), "log", "1"); code(err) != "not-found" {
		t.Errorf("by-id of an entry that was deleted: %v", err)
	}
	r.crash()
	r.expect("1 again, 300 again", id(1), id(300))
	if all := r.all(); all[0].Number != info.First || all[len(all)-1].Number != 300 {
		t.Errorf("the log holds %d to %d", all[0].Number, all[len(all)-1].Number)
	}
	r.clock.advance(time.Minute)
	r.log().duty(t.Context())
	if info := r.log().info(); info.First != 301 || info.Last != 300 {
		t.Errorf("the log holds %d to %d when all is too old", info.First, info.Last)
	}
	r.restart()
	r.expect("301", entry("new", ""))
	if got := r.ids(); !strings.HasSuffix(got, "new") {
		t.Errorf("the log holds %s", got)
	}
}

// TestOnlyAnUnmadeLogIsRemoved: a directory with anything but the files of a log that was never made
// stays, and stops the start with its name.
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
	// A log that somebody puts there while the manager runs is not the manager's to remove either.
	if err := os.MkdirAll(filepath.Join(dir, "back", "in", "time"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Put(t.Context(), "back", logs.Change{}); err == nil || code(err) != "conflict" {
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
		if e, err := open(); err == nil || !strings.Contains(err.Error(), `"old"`) || !strings.Contains(err.Error(), `"orders"`) {
			t.Errorf("with %q beside it: %v", file, err)
			if err == nil {
				_ = e.Close()
			}
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

// TestRemovedWriterStaysFenced: a writer that is removed makes room, and its epochs never come back.
func TestRemovedWriterStaysFenced(t *testing.T) {
	r := newRig(t, logs.Change{})
	ctx := t.Context()
	item := func(epoch uint64) logs.Item { return logs.Item{Writer: "w", Epoch: epoch} }
	for range 3 {
		if _, err := r.OpenWriter(ctx, "log", "w"); err != nil {
			t.Fatal(err)
		}
	}
	state := r.log().state
	for i := 1; i < logs.MaxWriters; i++ {
		state.SetEpoch(fmt.Sprint("pod", i), 1)
	}
	if _, err := r.OpenWriter(ctx, "log", "one more"); code(err) != "too-many-writers" {
		t.Errorf("a writer too many: %v", err)
	}
	if err := r.RemoveWriter(ctx, "log", "w"); err != nil {
		t.Fatal(err)
	}
	if epoch, err := r.OpenWriter(ctx, "log", "one more"); err != nil || epoch != 4 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	for _, restart := range []func(){func() {}, r.restart, func() { r.snapshot(); r.restart() }} {
		restart()
		r.expect("fenced", item(3))
	}
	if epoch, err := r.OpenWriter(ctx, "log", "w"); err != nil || epoch != 4 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	r.expect("fenced, 1", item(3), item(4))
}

// A snapshot is taken when records have lain behind the last one for the interval, and not without any.
func TestSnapshotByTime(t *testing.T) {
	window := 24 * time.Hour
	r := newRig(t, logs.Change{Window: &window})
	r.put(entry("a", "x"))
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
	r.put(entry("b", "y"))
	r.log().duty(t.Context())
	if seq() == first {
		t.Error("no snapshot after an hour and a new entry")
	}
	r.put(entry("c", "z"))
	r.log().took = time.Minute // it takes long: the next one must wait for longer than the interval
	r.clock.advance(time.Hour)
	before := seq()
	r.log().duty(t.Context())
	if seq() != before {
		t.Error("a snapshot that takes a minute is taken again after an hour")
	}
	r.crash()
	for i, item := range []logs.Item{entry("a", "x"), entry("b", "y"), entry("c", "z")} {
		o, err := r.Append(t.Context(), "log", []logs.Item{item}, false)
		if err != nil || !o[0].Duplicate || o[0].Number != uint64(i+1) {
			t.Errorf("%s after a crash: %+v, %v", item.ID, o, err)
		}
	}
}

func TestQuarantine(t *testing.T) {
	r := newRig(t, logs.Change{})
	known := r.put(entry("a", "x"))
	left := time.Minute
	r.opts.Quarantine = func(name string) time.Duration {
		if name != "log" {
			t.Errorf("asked about %q", name)
		}
		return left
	}
	r.restart()
	outcomes := func(atomic bool, items ...logs.Item) []logs.Outcome {
		t.Helper()
		o, err := r.Append(t.Context(), "log", items, atomic)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	quarantined := func(o logs.Outcome) bool {
		var e *logs.Error
		return errors.As(o.Err, &e) && e.P.Code == api.CodeQuarantine && e.P.Status == 503 && e.P.RetryAfterSeconds == 60
	}
	o := outcomes(false, entry("a", "x"), entry("b", "y"), entry("a", "other"), logs.Item{Payload: []byte("z")}, logs.Item{Derive: logs.DeriveMD5, Payload: []byte("z")})
	if !o[0].Duplicate || o[0].Number != 1 || !quarantined(o[1]) || o[2].Err == nil || quarantined(o[2]) || o[3].Number != 2 || o[3].Err != nil || !quarantined(o[4]) {
		t.Errorf("%s; %+v", known, o)
	}
	if o := outcomes(true, logs.Item{Payload: []byte("z")}, entry("b", "y")); o[0].Err == nil || !quarantined(o[1]) {
		t.Errorf("atomic: %+v", o)
	}
	left = 0
	if o := outcomes(false, entry("b", "y")); o[0].Err != nil || o[0].Number != 3 || o[0].Duplicate {
		t.Errorf("after the quarantine: %+v", o)
	}
}
