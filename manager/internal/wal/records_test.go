package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// readFrom returns an error unless Records gives body(from) to body(last).
func readFrom(t *testing.T, l *wal.Log, from, last uint64) error {
	t.Helper()
	next := from
	err := l.Records(t.Context(), from, func(seq uint64, b []byte) error {
		if seq != next || !bytes.Equal(b, body(seq)) {
			return fmt.Errorf("record %d with %x, want %d with %x", seq, b, next, body(next))
		}
		next++
		return nil
	})
	if err == nil && next != last+1 {
		err = fmt.Errorf("the records end before %d, want them to %d", next, last)
	}
	return err
}

func mustRead(t *testing.T, l *wal.Log, from, last uint64) {
	t.Helper()
	if err := readFrom(t, l, from, last); err != nil {
		t.Fatalf("Records from %d: %v", from, err)
	}
}

// snapshotKeeping takes an empty snapshot of everything up to seq.
func snapshotKeeping(t *testing.T, l *wal.Log, seq, keep uint64) {
	t.Helper()
	err := l.Snapshot(t.Context(), seq, keep, []byte("state"))
	if err != nil {
		t.Fatalf("Snapshot(%d, %d): %v", seq, keep, err)
	}
}

func TestRecordsReadBack(t *testing.T) {
	fs := new(faultfs.FS)
	l, _ := mustOpen(t, options(fs))
	mustRead(t, l, 1, 0)
	mustWait(t, l, appendAll(t, l, 1, 500))
	for _, from := range []uint64{1, 2, 77, 250, 499, 500, 501} {
		mustRead(t, l, from, 500)
	}
	stop := errors.New("enough")
	for _, from := range []uint64{2, 3, 4} { // before, at and after the record where the last call ended
		if err := l.Records(t.Context(), 3, func(uint64, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("Records: %v, want the error of its function", err)
		}
		mustRead(t, l, from, 500)
	}
	mustClose(t, l)
	if err := readFrom(t, l, 1, 500); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Records of a closed log: %v", err)
	}
	l, _ = mustOpen(t, options(fs))
	defer mustClose(t, l)
	mustRead(t, l, 123, 500)
}

// What a snapshot keeps stays readable, over restarts too, and is not replayed. What it
// gives up is gone, and does not come back.
func TestSnapshotKeepsRecords(t *testing.T) {
	fs := new(faultfs.FS)
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 600))
	snapshotKeeping(t, l, 500, 200)
	check := func(first uint64) {
		t.Helper()
		if got := l.First(); got != first {
			t.Fatalf("First is %d, want %d", got, first)
		}
		mustRead(t, l, first, l.Last())
		if err := readFrom(t, l, first-1, l.Last()); !errors.Is(err, wal.ErrGone) {
			t.Fatalf("Records before the first: %v, want ErrGone", err)
		}
	}
	check(200)
	mustClose(t, l)
	l, f := mustOpen(t, options(fs))
	f.wantBodies(t, 501, 600)
	check(200)
	mustWait(t, l, appendAll(t, l, 601, 700))
	snapshotKeeping(t, l, 650, 100) // what was given up stays so
	check(200)
	snapshotKeeping(t, l, 690, 640)
	check(640)
	if n := len(fs.Names()); n > 8 {
		t.Errorf("%d files are left: %v", n, fs.Names())
	}
	mustClose(t, l)
	l, f = mustOpen(t, options(fs))
	defer mustClose(t, l)
	f.wantBodies(t, 691, 700)
	check(640)
	if err := l.Snapshot(t.Context(), 700, 702); err == nil {
		t.Error("Snapshot takes a record to keep that is after the snapshot")
	}
}

// Kept records are the log's, so a segment of them that is missing is no clean log, and
// one that is damaged gives no record that is wrong.
func TestKeptSegmentIsMissedAndChecked(t *testing.T) {
	fs := new(faultfs.FS)
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 600))
	snapshotKeeping(t, l, 600, 1)
	mustClose(t, l)

	broken := fs.Clone()
	b := bytes.Clone(broken.Content(segment(2)))
	b[len(b)/2] ^= 1
	broken.SetContent(segment(2), b)
	l, _ = mustOpen(t, options(broken))
	err := readFrom(t, l, 1, 600)
	wantCorruption(t, err, segment(2))
	mustClose(t, l)
	if report, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: broken}); err != nil || !report.Damaged() {
		t.Errorf("Verify: %v, %v: the damage is not reported", report, err)
	}

	for _, n := range []int{1, 2} {
		lost := fs.Clone()
		lost.Delete(segment(n))
		if _, _, err := openWith(t, options(lost)); err == nil || !strings.Contains(err.Error(), "missing") {
			t.Errorf("Open without segment %d: %v", n, err)
		}
	}
}

// A crash at any operation of a snapshot that keeps records leaves a log that opens with all of
// those that were to be kept.
func TestKeptRecordsSurviveCrashes(t *testing.T) {
	for n := 0; ; n++ {
		fs := new(faultfs.FS)
		l, _ := mustOpen(t, options(fs))
		mustWait(t, l, appendAll(t, l, 1, 300))
		snapshotKeeping(t, l, 200, 50)
		var mu sync.Mutex // the next segment is prepared meanwhile
		var crashed *faultfs.FS
		ops := 0
		fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Changes() {
				if ops == n && crashed == nil {
					crashed = fs.Crash()
				}
				ops++
			}
			return nil
		})
		snapshotKeeping(t, l, 300, 150)
		fs.SetHook(nil)
		mustClose(t, l)
		if crashed == nil {
			if n < 5 {
				t.Fatalf("a snapshot has %d operations", n)
			}
			return
		}
		l, _ = mustOpen(t, options(crashed))
		if first := l.First(); first != 50 && first != 150 {
			t.Fatalf("crash at operation %d: First is %d", n, first)
		}
		mustRead(t, l, l.First(), 300)
		mustClose(t, l)
	}
}
