package wal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// state is what a store would have: here just how many records there were.
func state(n uint64) []byte { return []byte(fmt.Sprintf("state after %d", n)) }

func snapshotOf(n uint64) [][]byte { return [][]byte{state(n), []byte("the rest of it")} }

func isSnapshotWrite(op faultfs.Op) bool {
	return op.Kind == faultfs.Write && strings.HasSuffix(op.Path, ".tmp")
}

// wantState checks that the snapshot of n and the records after it come back.
func (f *found) wantState(t *testing.T, n, last uint64) {
	t.Helper()
	if len(f.restored) != 2 || string(f.restored[0]) != string(state(n)) {
		t.Errorf("restored %q, want the state after %d", f.restored, n)
	}
	if last > n {
		f.wantBodies(t, n+1, last)
	} else if len(f.replayed) != 0 {
		t.Errorf("%d records are replayed after the snapshot", len(f.replayed))
	}
}

func countSuffix(names []string, suffix string) (n int) {
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			n++
		}
	}
	return n
}

func TestSnapshotReplacesSegments(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	last := appendAll(t, l, 1, 300)
	before := countSuffix(fs.Names(), ".wal")
	for _, n := range []uint64{0, 250, 100, 250} { // nothing new in the first and the last two
		if err := l.Snapshot(t.Context(), n, n+1, snapshotOf(n)...); err != nil {
			t.Fatalf("Snapshot(%d): %v", n, err)
		}
	}
	after := countSuffix(fs.Names(), ".wal")
	if before < 5 || after > before-3 {
		t.Errorf("%d segments before the snapshot, %d after", before, after)
	}
	st := l.Stats()
	if st.SnapshotSequence != 250 || st.SnapshotBytes == 0 || st.SnapshotTime.IsZero() || st.Segments+st.Prepared != after {
		t.Errorf("stats are %+v with %d segment files", st, after)
	}
	last = appendAll(t, l, last+1, last+10)
	mustClose(t, l)
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantState(t, 250, last)
	if r := l.Recovery(); r.SnapshotSequence != 250 || r.SnapshotRecords != 2 || r.Records != int(last-250) || r.LogBytes == 0 {
		t.Errorf("recovery %+v", r)
	}
	if err := l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...); err != nil {
		t.Fatal(err)
	}
	if b := l.Stats().LogBytes; b != 0 {
		t.Errorf("%d bytes of log after a snapshot of everything", b)
	}
	mustClose(t, l)
	if names := fs.Names(); countSuffix(names, ".snap") != 1 || countSuffix(names, ".tmp") != 0 {
		t.Errorf("files are %v", names)
	}
}

func TestSnapshotOfEverythingThenNothing(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	for round := uint64(1); round <= 5; round++ {
		last := appendAll(t, l, 1, 100)
		if err := l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		var f *found
		l, f = mustOpen(t, options(fs.Clone()))
		f.wantState(t, last, last)
		if l.Last() != last {
			t.Errorf("last is %d, want %d", l.Last(), last)
		}
		mustClose(t, l)
		l, _ = mustOpen(t, options(fs))
	}
	mustClose(t, l)
}

// Appends continue while a snapshot is written, and the snapshot is not in force before its last record is durable.
func TestSnapshotWhileAppending(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	appendAll(t, l, 1, 100)
	g := newGate(fs, isSnapshotWrite)
	done := make(chan error)
	go func() { done <- l.Snapshot(t.Context(), 100, 100+1, snapshotOf(100)...) }()
	<-g.entered
	mustWait(t, l, appendAll(t, l, 101, 200))
	go func() { done <- l.Snapshot(t.Context(), 100, 100+1, snapshotOf(100)...) }() // waits for the first one
	g.release()
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan struct{}, 2)
	g = newGate(fs, func(op faultfs.Op) bool {
		if isSync(op) && strings.HasSuffix(op.Path, ".tmp") {
			wrote <- struct{}{}
		}
		return isSync(op) && strings.HasSuffix(op.Path, ".wal")
	})
	mustAppend(t, l, body(201))
	<-g.entered
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- l.Snapshot(ctx, 201, 201+1, snapshotOf(201)...) }()
	<-wrote
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a snapshot of a record that is not durable: %v", err)
	}
	if countSuffix(fs.Names(), ".tmp") != 0 {
		t.Errorf("files are %v", fs.Names())
	}
	go func() { done <- l.Snapshot(t.Context(), 201, 201+1, snapshotOf(201)...) }()
	<-wrote
	image := fs.Crash()
	if countSuffix(image.Names(), ".snap") != 1 {
		t.Errorf("files are %v", image.Names())
	}
	l2, f := mustOpen(t, options(image))
	f.wantState(t, 100, 200)
	mustClose(t, l2)
	g.release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	l, f = mustOpen(t, options(fs.Crash()))
	f.wantState(t, 201, 201)
	mustClose(t, l)
}

func TestFailedSnapshotKeepsTheLog(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	last := appendAll(t, l, 1, 100)
	mustWait(t, l, last)
	for name, c := range map[string]struct {
		want    error
		records [][]byte
		seq     uint64
		kind    string
	}{
		"empty record":    {want: wal.ErrTooLarge, records: [][]byte{state(last), nil}},
		"of the future":   {want: wal.ErrSequence, seq: last + 1},
		"EIO on create":   {want: syscall.EIO, kind: faultfs.Create},
		"EIO on write":    {want: syscall.EIO, kind: faultfs.Write},
		"EIO on sync":     {want: syscall.EIO, kind: faultfs.Sync},
		"EIO on rename":   {want: syscall.EIO, kind: faultfs.Rename},
		"EIO on syncdir":  {want: syscall.EIO, kind: faultfs.SyncDir},
		"EIO on deletion": {kind: faultfs.Remove},
	} {
		image := fs.Clone()
		l, _ := mustOpen(t, options(image))
		if c.records == nil {
			c.records = snapshotOf(last)
		}
		if c.seq == 0 {
			c.seq = last
		}
		if c.kind != "" {
			// What the log does on its own, preparing a segment, must not meet
			// the fault.
			if err := l.WaitPrepared(t.Context()); err != nil {
				t.Fatal(err)
			}
			renamed := false
			failOn(image, 1, syscall.EIO, func(op faultfs.Op) bool {
				renamed = renamed || op.Kind == faultfs.Rename
				switch {
				case op.Kind != c.kind:
					return false
				case c.kind == faultfs.SyncDir:
					return renamed
				case c.kind == faultfs.Remove:
					return op.Path == segment(1)
				}
				return strings.HasSuffix(op.Path, ".tmp")
			})
		}
		if err := l.Snapshot(t.Context(), c.seq, c.seq+1, c.records...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		image.SetHook(nil)
		if l.Err() != nil {
			t.Errorf("%s: the log failed: %v", name, l.Err())
		}
		if n := countSuffix(image.Names(), ".tmp"); n != 0 {
			t.Errorf("%s: files are %v", name, image.Names())
		}
		// The log continues, and finds everything again, with or without what
		// the next snapshot does.
		next := appendAll(t, l, last+1, last+20)
		mustWait(t, l, next)
		for _, crash := range []*faultfs.FS{image.Crash(), image.Clone()} {
			l, f := mustOpen(t, options(crash))
			if len(f.restored) > 0 {
				f.wantState(t, last, next)
			} else {
				f.wantBodies(t, 1, next)
			}
			mustClose(t, l)
		}
		if err := l.Snapshot(t.Context(), next, next+1, snapshotOf(next)...); err != nil {
			t.Errorf("%s: the next snapshot: %v", name, err)
		}
		if image.Content(segment(1)) != nil {
			t.Errorf("%s: the next snapshot left %v", name, image.Names())
		}
		mustClose(t, l)
		l, f := mustOpen(t, options(image))
		f.wantState(t, next, next)
		mustClose(t, l)
		if names := image.Names(); countSuffix(names, ".snap") != 1 {
			t.Errorf("%s: files are %v", name, names)
		}
	}
	mustClose(t, l)
}

// The segment after the snapshot may be in use but not yet on the disk. Until it is, the previous one must stay: a log
// needs a segment to open.
func TestSnapshotKeepsTheLastSegmentOnDisk(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	big := make([]byte, 3900) // one to a segment
	last := mustAppend(t, l, big)
	mustWait(t, l, last)
	if err := l.WaitRoom(t.Context(), len(big)); err != nil { // the next segment is prepared
		t.Fatal(err)
	}
	g := newGate(fs, func(op faultfs.Op) bool { return isSync(op) && op.Path == segment(2) })
	mustAppend(t, l, big)
	<-g.entered
	if err := l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...); err != nil {
		t.Fatal(err)
	}
	image := fs.Crash()
	g.release()
	mustClose(t, l)
	l, f := mustOpen(t, options(image))
	f.wantState(t, last, last)
	mustClose(t, l)
}

// A snapshot whose name could not be made durable has failed, but may still be in force after a crash. It stays until a
// later snapshot is durable; a snapshot written over it is such a later one.
func TestSnapshotWithoutADurableName(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	for _, c := range []struct {
		last  uint64
		fails bool
	}{{100, true}, {200, true}, {200, true}, {200, false}, {300, true}, {400, false}} {
		if c.last > l.Last() {
			mustWait(t, l, appendAll(t, l, l.Last()+1, c.last))
		}
		if err := l.WaitPrepared(t.Context()); err != nil {
			t.Fatal(err)
		}
		failed := 0 // is the first sync of the directory after the rename
		fs.SetHook(func(op faultfs.Op) error {
			if c.fails && op.Kind == faultfs.SyncDir {
				failed++
				return syscall.EMFILE
			}
			return nil
		})
		err := l.Snapshot(t.Context(), c.last, c.last+1, snapshotOf(c.last)...)
		fs.SetHook(nil)
		if (err != nil) != c.fails || c.fails && failed != 1 {
			t.Fatalf("Snapshot(%d): %v", c.last, err)
		}
		if n := countSuffix(fs.Names(), ".snap"); !c.fails && n != 1 {
			t.Errorf("%d snapshots after the one of %d: %v", n, c.last, fs.Names())
		}
		for _, image := range []*faultfs.FS{fs.Crash(), fs.Clone()} {
			l, _, err := openWith(t, options(image))
			if err != nil {
				t.Fatalf("Open after the snapshot of %d: %v", c.last, err)
			}
			if l.Last() != c.last {
				t.Errorf("after the snapshot of %d the last record is %d", c.last, l.Last())
			}
			mustClose(t, l)
		}
	}
	mustClose(t, l)
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantState(t, 400, 400)
	mustClose(t, l)
}

// Close waits for a snapshot.
func TestCloseWaitsForASnapshot(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	last := appendAll(t, l, 1, 50)
	g := newGate(fs, isSnapshotWrite)
	done, closed := make(chan error, 1), make(chan error, 1)
	go func() { done <- l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...) }()
	<-g.entered
	go func() { closed <- l.Close() }()
	awaitClosed(t, l)
	g.release()
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	if names := fs.Names(); countSuffix(names, ".tmp") != 0 || countSuffix(names, ".snap") != 1 {
		t.Errorf("after Close there are %v", names)
	}
	if err := <-done; err != nil {
		t.Errorf("Snapshot: %v", err)
	}
	if err := l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Snapshot of a closed log: %v", err)
	}
}

// The machine may stop at any operation of a run with appends, new segments and snapshots. Whatever unsynced state
// survives, everything acknowledged is there, and what is there is a prefix of what was appended.
func TestCrashAtEveryStep(t *testing.T) {
	steps := 0
	for stop := 1; ; stop++ {
		fs := &faultfs.FS{}
		var acked, appended, snapshots uint64
		died := false
		dead := errors.New("the machine is off")
		fs.SetHook(func(op faultfs.Op) error {
			if op.N >= stop && op.Kind != faultfs.Close {
				return dead
			}
			return nil
		})
		run := func() error {
			for range 2 {
				l, _, err := openWith(t, options(fs))
				if err != nil {
					return err
				}
				err = func() error {
					for range 6 {
						for range 12 {
							if _, err := appendWaiting(t.Context(), l, body(appended+1)); err != nil {
								return err
							}
							appended++
						}
						if err := l.WaitDurable(t.Context(), appended); err != nil {
							return err
						}
						acked = appended
						if appended%36 == 0 {
							if err := l.Snapshot(t.Context(), appended, appended+1, snapshotOf(appended)...); err != nil {
								return err
							}
							snapshots++
						}
					}
					return nil
				}()
				if err := errors.Join(err, l.Close()); err != nil {
					return err
				}
			}
			return nil
		}
		if err := run(); err != nil {
			died = true
		}
		fs.SetHook(nil)
		images := map[string]*faultfs.FS{"nothing unsynced": fs.Crash(), "everything": fs.Clone()}
		for seed := range uint64(3) {
			images[fmt.Sprint("random ", seed)] = fs.CrashRandomly(random(seed))
		}
		for name, image := range images {
			agree(t, fmt.Sprintf("stopped at operation %d, %s", stop, name), image)
			l, f, err := openWith(t, options(image))
			if err != nil {
				t.Fatalf("stopped at operation %d, %s: %v", stop, name, err)
			}
			if l.Last() < acked || l.Last() > appended {
				t.Errorf("stopped at operation %d, %s: %d records, %d were acknowledged and %d appended", stop, name, l.Last(), acked, appended)
			}
			if len(f.restored) > 0 {
				var n uint64
				if _, err := fmt.Sscanf(string(f.restored[0]), "state after %d", &n); err != nil {
					t.Fatal(err)
				}
				f.wantState(t, n, l.Last())
			} else {
				f.wantBodies(t, 1, l.Last())
			}
			next := l.Last()
			appendAll(t, l, next+1, next+2)
			mustClose(t, l)
			if names := image.Names(); countSuffix(names, ".snap") > 1 || countSuffix(names, ".tmp") > 0 {
				t.Errorf("stopped at operation %d, %s: files are %v", stop, name, slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, ".wal") }))
			}
		}
		if !died {
			if snapshots != 4 || appended != 144 {
				t.Errorf("the whole run took %d snapshots and %d records", snapshots, appended)
			}
			break
		}
		steps = stop
	}
	if steps < 100 {
		t.Errorf("the run has only %d operations", steps)
	}
}

// TestRollLetsASnapshotDeleteEverythingBefore: after Roll and one more record a snapshot leaves only that record's segment.
// Without the record, and in a log whose segment is empty, Roll changes nothing.
func TestRollLetsASnapshotDeleteEverythingBefore(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	roll := func() {
		t.Helper()
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	roll()
	mustWait(t, l, appendAll(t, l, 1, 3))
	if n := l.Stats().Segments; n != 1 {
		t.Fatalf("%d segments", n)
	}
	roll()
	roll()
	mustWait(t, l, appendAll(t, l, 4, 5))
	if n := l.Stats().Segments; n != 2 {
		t.Fatalf("%d segments after a roll", n)
	}
	if err := l.Snapshot(t.Context(), 5, 5+1, snapshotOf(5)...); err != nil {
		t.Fatal(err)
	}
	if n := l.Stats().Segments; n != 1 {
		t.Errorf("%d segments after the snapshot", n)
	}
	mustWait(t, l, appendAll(t, l, 6, 6))
	mustClose(t, l)
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantState(t, 5, 6)
	mustClose(t, l)
	if err := l.Roll(t.Context()); err == nil {
		t.Error("a closed log rolls")
	}
}
