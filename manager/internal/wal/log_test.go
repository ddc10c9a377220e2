package wal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

func TestRecordsComeBackInOrder(t *testing.T) {
	fs := &faultfs.FS{}
	next := uint64(1)
	for range 4 {
		l, f := mustOpen(t, options(fs))
		f.wantBodies(t, 1, next-1)
		if l.Last() != next-1 || l.Durable() != next-1 {
			t.Errorf("after opening, last is %d and durable %d, want %d", l.Last(), l.Durable(), next-1)
		}
		seq := appendAll(t, l, next, next+59)
		if seq != next+59 {
			t.Errorf("the last sequence number is %d, want %d", seq, next+59)
		}
		mustWait(t, l, seq)
		next = seq + 1
		mustClose(t, l)
	}
}

func TestCloseMakesEverythingDurable(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	seq := appendAll(t, l, 1, 20)
	mustClose(t, l)
	if err := l.WaitDurable(t.Context(), seq); err != nil {
		t.Errorf("WaitDurable after Close: %v", err)
	}
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantBodies(t, 1, 20)
	if r := l.Recovery(); r.TornBytes != 0 || r.Records != 20 {
		t.Errorf("recovery after a clean stop: %+v", r)
	}
	mustClose(t, l)
	if _, err := l.Append(body(1)); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestRecordsOfAllSizesAreReadBack(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.MaxRecordBytes = 3000
	l, _ := mustOpen(t, opts)
	sizes := []int{1, 2, 3000, 1, 2999, 100, 3000, 3000, 1}
	for i, n := range sizes {
		mustAppend(t, l, []byte(strings.Repeat(string(rune('a'+i)), n)))
	}
	for _, b := range [][]byte{nil, {}, make([]byte, 3001)} {
		if _, err := l.Append(b); !errors.Is(err, wal.ErrTooLarge) {
			t.Errorf("Append of %d bytes: %v, want ErrTooLarge", len(b), err)
		}
	}
	mustClose(t, l)
	l, f := mustOpen(t, opts)
	defer mustClose(t, l)
	for i, n := range sizes {
		if got := string(f.replayed[i]); got != strings.Repeat(string(rune('a'+i)), n) {
			t.Errorf("record %d has %d bytes, want %d", i+1, len(got), n)
		}
	}
}

// While a batch is being synced, everything that arrives becomes the next one.
func TestOneWriteAndOneSyncPerBatch(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.SegmentBytes = 1 << 20
	var batches []wal.Batch
	opts.OnBatch = func(b wal.Batch) { batches = append(batches, b) }
	l, _ := mustOpen(t, opts)
	var mu sync.Mutex
	counts := make(map[string]int)
	g := newGate(fs, func(op faultfs.Op) bool {
		mu.Lock()
		defer mu.Unlock()
		counts[op.Kind]++
		return isSync(op)
	})
	mustAppend(t, l, body(1))
	<-g.entered
	seq := appendAll(t, l, 2, 1000)
	if l.Durable() != 0 {
		t.Errorf("durable is %d before any sync was done", l.Durable())
	}
	mu.Lock()
	clear(counts)
	mu.Unlock()
	g.mu.Lock()
	open := g.open
	g.open = nil // count from here on, block nothing
	g.match = nil
	g.mu.Unlock()
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		counts[op.Kind]++
		return nil
	})
	close(open)
	mustWait(t, l, seq)
	fs.SetHook(nil)
	mu.Lock()
	if counts[faultfs.Write] != 1 || counts[faultfs.Sync] != 1 {
		t.Errorf("999 queued records took %d writes and %d syncs", counts[faultfs.Write], counts[faultfs.Sync])
	}
	mu.Unlock()
	mustClose(t, l)
	if len(batches) != 2 || batches[0].Records != 1 || batches[1].Records != 999 || batches[1].Bytes < 999*20 {
		t.Errorf("batches were %+v", batches)
	}
	if st := l.Stats(); st.Batches != 2 || st.Records != 1000 || st.QueueBytes != 0 {
		t.Errorf("stats are %+v", st)
	}
}

func TestWaitDurableWaitsForTheSync(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	g := newGate(fs, isSync)
	first := mustAppend(t, l, body(1))
	<-g.entered
	second := mustAppend(t, l, body(2))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, seq := range []uint64{first, second} {
		if err := l.WaitDurable(ctx, seq); !errors.Is(err, context.Canceled) {
			t.Errorf("WaitDurable(%d) with an ended context before the sync: %v", seq, err)
		}
	}
	if err := l.WaitDurable(t.Context(), 3); !errors.Is(err, wal.ErrSequence) {
		t.Errorf("WaitDurable of the future: %v", err)
	}
	done := make(chan error, 2)
	for _, seq := range []uint64{first, second} {
		go func() { done <- l.WaitDurable(t.Context(), seq) }()
	}
	select {
	case err := <-done:
		t.Errorf("WaitDurable returned %v before the sync", err)
	default:
	}
	g.release()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := l.WaitDurable(ctx, second); err != nil {
		t.Errorf("WaitDurable of a durable record with an ended context: %v", err)
	}
	mustClose(t, l)
}

func TestConcurrentAppendsAreAllKept(t *testing.T) {
	const callers, each = 32, 200
	opts := wal.Options{SegmentBytes: 64 << 10}
	at := t.TempDir()
	l, err := wal.Open(t.Context(), at, opts)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	want := make(map[uint64]string)
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				b := fmt.Sprintf("caller %d record %d", c, i)
				seq, err := appendWaiting(t.Context(), l, []byte(b))
				if err == nil {
					err = l.WaitDurable(t.Context(), seq)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				want[seq] = b
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	opts.Replay = func(seq uint64, b []byte) error {
		if want[seq] != string(b) {
			t.Errorf("record %d is %q, want %q", seq, b, want[seq])
		}
		delete(want, seq)
		return nil
	}
	l, err = wal.Open(t.Context(), at, opts)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	if len(want) != 0 {
		t.Errorf("%d records are missing", len(want))
	}
}

// Large records roll over segments that are filled with zeros meanwhile.
func TestFillingDoesNotOverwrite(t *testing.T) {
	opts := wal.Options{SegmentBytes: 16 << 20}
	at := t.TempDir()
	l, err := wal.Open(t.Context(), at, opts)
	if err != nil {
		t.Fatal(err)
	}
	const n = 600
	size := func(i int) int { return 1 + i*7919%(128<<10) }
	for i := range n {
		b := make([]byte, size(i))
		for j := range b {
			b[j] = byte(i + j)
		}
		mustAppend(t, l, b)
	}
	mustClose(t, l)
	count := 0
	opts.Replay = func(seq uint64, b []byte) error {
		i := int(seq) - 1
		if len(b) != size(i) {
			return fmt.Errorf("record %d has %d bytes, want %d", seq, len(b), size(i))
		}
		for j := range b {
			if b[j] != byte(i+j) {
				return fmt.Errorf("record %d differs at byte %d", seq, j)
			}
		}
		count++
		return nil
	}
	l, err = wal.Open(t.Context(), at, opts)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	if count != n {
		t.Errorf("%d records are replayed, want %d", count, n)
	}
}

func TestQueueIsBounded(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.SegmentBytes, opts.MaxQueueBytes, opts.MaxRecordBytes = 1<<20, 1000, 5000
	l, _ := mustOpen(t, opts)
	g := newGate(fs, isSync)
	seq := mustAppend(t, l, make([]byte, 5000)) // an empty queue takes any record
	<-g.entered
	if _, err := l.Append(body(1)); !errors.Is(err, wal.ErrBusy) {
		t.Fatalf("Append to a full queue: %v, want ErrBusy", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.WaitRoom(ctx, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitRoom with an ended context: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- l.WaitRoom(t.Context(), 10) }()
	g.release()
	if err := <-waited; err != nil {
		t.Errorf("WaitRoom: %v", err)
	}
	mustWait(t, l, seq)
	mustAppend(t, l, body(1))
	mustClose(t, l)
}

// A record that needs the next segment before it exists is busy, not lost.
func TestNextSegmentInTheMaking(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	g := newGate(fs, func(op faultfs.Op) bool { return op.Kind == faultfs.Create })
	var n uint64
	var err error
	for n = 1; ; n++ {
		if _, err = l.Append(body(n)); err != nil {
			break
		}
	}
	if !errors.Is(err, wal.ErrBusy) {
		t.Fatalf("Append without a next segment: %v, want ErrBusy", err)
	}
	if n < 40 {
		t.Errorf("only %d records fit into the first segment", n-1)
	}
	waited := make(chan error)
	go func() { waited <- l.WaitRoom(t.Context(), len(body(n))) }()
	<-g.entered
	g.release()
	if err := <-waited; err != nil {
		t.Fatalf("WaitRoom: %v", err)
	}
	appendAll(t, l, n, n+50)
	mustClose(t, l)
	l, f := mustOpen(t, options(fs))
	f.wantBodies(t, 1, n+50)
	mustClose(t, l)
}

func TestClosedWhileWaiting(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.MaxQueueBytes = 100
	l, _ := mustOpen(t, opts)
	g := newGate(fs, isSync)
	seq := mustAppend(t, l, make([]byte, 90))
	<-g.entered
	room, durable, closed := make(chan error), make(chan error), make(chan error)
	go func() { room <- l.WaitRoom(t.Context(), 90) }()
	go func() { durable <- l.WaitDurable(t.Context(), seq) }()
	go func() { closed <- l.Close() }()
	if err := <-room; !errors.Is(err, wal.ErrClosed) {
		t.Errorf("WaitRoom while the log is closed: %v", err)
	}
	g.release()
	if err := <-durable; err != nil {
		t.Errorf("WaitDurable while the log is closed: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	at := filepath.Join(t.TempDir(), "new", "data")
	l, err := wal.Open(t.Context(), at, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = wal.Open(t.Context(), at, wal.Options{})
	var locked *vfs.LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second Open: %v, want a LockedError with this process", err)
	}
	if err != nil && !strings.Contains(err.Error(), fmt.Sprint("locked by process ", os.Getpid())) {
		t.Errorf("the error does not name the holder: %v", err)
	}
	if _, err := wal.Verify(t.Context(), at, wal.InspectOptions{}); !errors.As(err, &locked) {
		t.Errorf("Verify of a log in use: %v", err)
	}
	mustClose(t, l)
	if l, err = wal.Open(t.Context(), at, wal.Options{}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
}

func TestBadOptionsAreRefused(t *testing.T) {
	for want, o := range map[string]wal.Options{
		"SegmentBytes is 4095":    {SegmentBytes: 4095},
		"SegmentBytes is -1":      {SegmentBytes: -1},
		"MaxRecordBytes is 4096":  {SegmentBytes: 4096, MaxRecordBytes: 4096},
		"MaxRecordBytes is -1":    {MaxRecordBytes: -1},
		"MaxQueueBytes is -1":     {MaxQueueBytes: -1},
		"SpaceRetry is -1ns":      {SpaceRetry: -1},
		"SegmentBytes is 1073741": {SegmentBytes: 1<<30 + 1},
	} {
		o.FS = &faultfs.FS{}
		if _, err := wal.Open(t.Context(), dir, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestOpenStopsWithItsCaller(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	appendAll(t, l, 1, 3000)
	mustClose(t, l)
	refused := errors.New("refused")
	opts := options(fs)
	opts.Replay = func(seq uint64, _ []byte) error {
		if seq == 7 {
			return refused
		}
		return nil
	}
	if _, err := wal.Open(t.Context(), dir, opts); err != refused {
		t.Errorf("Open returned %v, want the error of Replay", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	opts.Replay = func(uint64, []byte) error { cancel(); return nil }
	if _, err := wal.Open(ctx, dir, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("Open with an ended context: %v", err)
	}
	l, f := mustOpen(t, options(fs)) // neither kept the lock or changed anything
	f.wantBodies(t, 1, 3000)
	mustClose(t, l)
}

func TestLogWorksWithoutAllocate(t *testing.T) {
	fs := (&faultfs.FS{}).WithoutAllocate()
	l, _ := mustOpen(t, options(fs))
	appendAll(t, l, 1, 300)
	mustClose(t, l)
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantBodies(t, 1, 300)
	mustClose(t, l)
}

// While Close waits for the disk, the log is closed for a snapshot as well.
func TestSnapshotDuringClose(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	last := appendAll(t, l, 1, 50)
	g := newGate(fs, isSync)
	mustAppend(t, l, body(last+1))
	<-g.entered
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	awaitClosed(t, l)
	snapshots := make(chan error, 1)
	go func() { snapshots <- l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...) }()
	g.release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := <-snapshots; !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Snapshot: %v, want ErrClosed", err)
	}
}
