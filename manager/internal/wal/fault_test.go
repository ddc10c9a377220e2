package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// failOn makes the n-th operation for which match is true fail with err. count returns the number of such operations.
func failOn(fs *faultfs.FS, n int, err error, match func(faultfs.Op) bool) (count func() int) {
	var mu sync.Mutex
	seen := 0
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if !match(op) {
			return nil
		}
		if seen++; seen == n {
			return err
		}
		return nil
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// Any error of a write or a sync is final: every waiter gets it, nothing is tried again, and what was acknowledged
// before is still there.
func TestWriteAndSyncErrorsAreFinal(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		err  error
	}{
		"EIO on sync":                {faultfs.Sync, syscall.EIO},
		"ENOSPC on sync":             {faultfs.Sync, syscall.ENOSPC},
		"EIO on write":               {faultfs.Write, syscall.EIO},
		"ENOSPC on write":            {faultfs.Write, syscall.ENOSPC},
		"short write":                {faultfs.Write, faultfs.ShortWrite{N: 30, Err: syscall.EIO}},
		"short write without errors": {faultfs.Write, faultfs.ShortWrite{N: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := &faultfs.FS{}
			opts := options(fs)
			opts.SegmentBytes = 1 << 20
			l, _ := mustOpen(t, opts)
			mustWait(t, l, appendAll(t, l, 1, 10))

			hold := make(chan struct{})
			entered := make(chan struct{}, 1)
			var mu sync.Mutex
			var after []string
			failed := false
			fs.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if failed && op.Kind != faultfs.Close {
					after = append(after, op.Kind)
				}
				if op.Kind != c.kind || failed {
					return nil
				}
				failed = true
				mu.Unlock()
				entered <- struct{}{}
				<-hold
				mu.Lock()
				return c.err
			})
			inflight := mustAppend(t, l, body(11))
			<-entered
			queued := appendAll(t, l, 12, 20)
			waits := make(chan error)
			for _, seq := range []uint64{inflight, queued, queued - 3} {
				go func() { waits <- l.WaitDurable(t.Context(), seq) }()
			}
			close(hold)
			for range 3 {
				if err := <-waits; !errors.Is(err, wal.ErrFailed) {
					t.Errorf("a waiter got %v, want ErrFailed", err)
				}
			}
			<-l.Failed()
			if err := l.Err(); !errors.Is(err, wal.ErrFailed) {
				t.Errorf("Err is %v", err)
			}
			for what, err := range map[string]error{
				"Append":      second(l.Append(body(1))),
				"WaitRoom":    l.WaitRoom(t.Context(), 10),
				"WaitDurable": l.WaitDurable(t.Context(), inflight),
				"Snapshot":    l.Snapshot(t.Context(), 10, 10+1, body(1)),
			} {
				if !errors.Is(err, wal.ErrFailed) {
					t.Errorf("%s after the failure: %v, want ErrFailed", what, err)
				}
			}
			if err := l.WaitDurable(t.Context(), 10); err != nil {
				t.Errorf("WaitDurable of what was durable before: %v", err)
			}
			if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
				t.Errorf("Close: %v, want ErrFailed", err)
			}
			fs.SetHook(nil)
			if len(after) != 0 {
				t.Errorf("after the failure the disk was asked for %v", after)
			}
			// After a power loss the acknowledged ones are there.
			l, f := mustOpen(t, options(fs.Crash()))
			f.wantBodies(t, 1, 10)
			mustClose(t, l)
		})
	}
}

func second[T any](_ T, err error) error { return err }

// A failed sync leaves pages that can be read but are not on the disk. What
// the next process shows must be on the disk.
func TestOpenAfterAFailedSyncWritesAgain(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 10))
	failOn(fs, 1, syscall.EIO, isSync)
	seq := appendAll(t, l, 11, 11)
	if err := l.WaitDurable(t.Context(), seq); !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("WaitDurable: %v", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("Close: %v", err)
	}
	fs.SetHook(nil)
	l, f := mustOpen(t, options(fs))
	if f.last() <= 10 {
		t.Fatal("the test shows nothing: the unsynced records cannot be read")
	}
	shown := f.last()
	image := fs.Crash()
	mustClose(t, l)
	l, f = mustOpen(t, options(image))
	f.wantBodies(t, 1, shown)
	mustClose(t, l)
}

// Errors while the next segment is prepared: a full disk heals, others fail.
func TestFullDiskHealsAndOtherErrorsFail(t *testing.T) {
	for _, kind := range []string{faultfs.Create, faultfs.Allocate, faultfs.Sync, faultfs.SyncDir} {
		t.Run(kind, func(t *testing.T) {
			fs := &faultfs.FS{}
			l, _ := mustOpen(t, options(fs))
			creating := false
			var mu sync.Mutex
			fs.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				creating = creating || op.Kind == faultfs.Create
				if op.Kind == kind && creating && op.Path != segment(1) {
					return syscall.EIO
				}
				return nil
			})
			for i := uint64(1); ; i++ {
				if _, err := appendWaiting(t.Context(), l, body(i)); err != nil {
					if !errors.Is(err, wal.ErrFailed) {
						t.Errorf("Append: %v, want ErrFailed", err)
					}
					break
				}
			}
			<-l.Failed()
			if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

func TestAppendsFailOnAFullDisk(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	fs.SetCapacity(3 * 4 << 10)
	var last uint64
	var err error
	for i := uint64(1); ; i++ {
		if _, err = appendWaitingForSegment(l, i); err != nil {
			break
		}
		last = i
	}
	if !errors.Is(err, wal.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append on a full disk: %v, want ErrNoSpace", err)
	}
	if fs.Used() > 3*4<<10 || last < 100 {
		t.Errorf("%d records were accepted, %d bytes are used", last, fs.Used())
	}
	if !l.Stats().NoSpace {
		t.Error("the stats do not show that the disk is full")
	}
	mustWait(t, l, last) // what was accepted gets durable on a full disk
	if l.Err() != nil {
		t.Errorf("a full disk made the log fail: %v", l.Err())
	}
	err = l.Snapshot(t.Context(), last, last+1, make([]byte, 4000))
	if !errors.Is(err, wal.ErrNoSpace) {
		t.Errorf("Snapshot on a full disk: %v, want ErrNoSpace", err)
	}
	if names := fs.Names(); slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".tmp") }) {
		t.Errorf("a failed snapshot left %v", names)
	}

	// When space comes back, the log recovers by itself.
	fs.SetCapacity(100 << 10)
	if err := l.WaitRoom(t.Context(), 4000); !errors.Is(err, wal.ErrNoSpace) && err != nil {
		t.Errorf("WaitRoom on a full disk: %v", err)
	}
	waitSpace(t, l, 100)
	end := appendAll(t, l, last+1, last+200)
	mustWait(t, l, end)
	if l.Stats().NoSpace {
		t.Error("the stats still show that the disk is full")
	}
	mustClose(t, l)
	l, f := mustOpen(t, options(fs.Crash()))
	f.wantBodies(t, 1, end)
	mustClose(t, l)
}

// appendWaitingForSegment repeats the append only while the segment is being created.
func appendWaitingForSegment(l *wal.Log, i uint64) (uint64, error) {
	for {
		seq, err := l.Append(body(i))
		if !errors.Is(err, wal.ErrBusy) {
			return seq, err
		}
	}
}

// A caller that waits for the next segment learns that there is no space for it.
func TestDiskFillsWhileWaitingForRoom(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	fs.SetCapacity(4 << 10)
	g := newGate(fs, func(op faultfs.Op) bool { return op.Kind == faultfs.Create })
	var err error
	for i := uint64(1); err == nil; i++ {
		_, err = l.Append(body(i))
	}
	if !errors.Is(err, wal.ErrBusy) {
		t.Fatalf("Append while the segment is in the making: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- l.WaitRoom(t.Context(), 100) }()
	<-g.entered
	g.release()
	if err := <-waited; !errors.Is(err, wal.ErrNoSpace) {
		t.Errorf("WaitRoom: %v, want ErrNoSpace", err)
	}
	mustClose(t, l)
}

func TestNoSpaceForTheFirstSegment(t *testing.T) {
	fs := &faultfs.FS{}
	fs.SetCapacity(1000)
	if _, _, err := openWith(t, options(fs)); !errors.Is(err, wal.ErrNoSpace) {
		t.Errorf("Open on a full disk: %v, want ErrNoSpace", err)
	}
	fs.SetCapacity(0)
	l, _ := mustOpen(t, options(fs))
	mustClose(t, l)
}

// A snapshot gives space back on a disk that the log has filled.
func TestSnapshotFreesAFullDisk(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	fs.SetCapacity(4*4<<10 + 2000)
	var last uint64
	for i := uint64(1); ; i++ {
		if _, err := appendWaitingForSegment(l, i); err != nil {
			break
		}
		last = i
	}
	err := l.Snapshot(t.Context(), last, last+1, []byte("small"))
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	waitSpace(t, l, 50)
	appendAll(t, l, last+1, last+100)
	mustClose(t, l)
}

// The last write may have been cut off at any byte, after a single record and after a batch of several.
func TestTornAtEveryByte(t *testing.T) {
	for _, batch := range []uint64{1, 5} {
		fs := &faultfs.FS{}
		opts := options(fs)
		opts.SegmentBytes = 16 << 10 // no second segment is prepared meanwhile
		l, _ := mustOpen(t, opts)
		const acked = 8
		mustWait(t, l, appendAll(t, l, 1, acked))
		// The batch is appended while a sync is held up, so that it is one,
		// and never gets its own sync.
		g := newGate(fs, isSync)
		mustAppend(t, l, body(acked+1))
		<-g.entered
		last := appendAll(t, l, acked+2, acked+1+batch)
		var images []*faultfs.FS
		var write faultfs.Op
		var mu sync.Mutex
		fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case op.Kind == faultfs.Write && write.Len == 0:
				write = op
			case isSync(op) && write.Len > 0 && images == nil:
				for n := int64(0); n <= write.Len; n++ {
					images = append(images, fs.CrashTorn(n))
				}
			}
			return nil
		})
		g.release()
		mustWait(t, l, last)
		fs.SetHook(nil)
		mustClose(t, l)
		if len(images) < 30*int(batch) {
			t.Fatalf("only %d images of a torn write", len(images))
		}
		for n, image := range images {
			l, f := mustOpen(t, options(image))
			if err := f.checkBodies(1, f.last()); err != nil {
				t.Errorf("cut after %d bytes: %v", n, err)
			}
			if f.last() <= acked || f.last() == last && n < len(images)-1 || f.last() != last && n == len(images)-1 {
				t.Errorf("cut after %d of %d bytes: %d records", n, len(images)-1, f.last())
			}
			next := f.last() + 1
			appendAll(t, l, next, next+3)
			mustClose(t, l)
			l, f = mustOpen(t, options(image))
			f.wantBodies(t, 1, next+3)
			mustClose(t, l)
		}
	}
}

// tornBatch is a log of two records, followed by what is left of a batch of twenty records of the same length, without
// the first.
func tornBatch(t *testing.T) *faultfs.FS {
	t.Helper()
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.SegmentBytes = 16 << 10 // no second segment is prepared meanwhile
	l, _ := mustOpen(t, opts)
	mustWait(t, l, mustAppend(t, l, padded(40, "acked")))
	g := newGate(fs, isSync)
	mustAppend(t, l, padded(40, "first"))
	<-g.entered
	for i := range 20 {
		mustAppend(t, l, padded(40, fmt.Sprint("dead ", i)))
	}
	var image *faultfs.FS
	syncs := 0
	fs.SetHook(func(op faultfs.Op) error {
		if isSync(op) {
			if syncs++; syncs == 1 { // the 20 are written and not synced
				image = fs.Clone()
			}
		}
		return nil
	})
	g.release()
	mustWait(t, l, l.Last())
	fs.SetHook(nil)
	mustClose(t, l)
	data := image.Content(segment(1))
	data[strings.Index(string(data), "dead 0")] ^= 1
	image.SetContent(segment(1), data)
	return image
}

// After a torn tail was wiped, the log continues with records of the same lengths. What followed the tear must not
// reappear.
func TestWipedRecordsStayDead(t *testing.T) {
	image := tornBatch(t)
	l, f := mustOpen(t, options(image))
	if len(f.replayed) != 2 || l.Recovery().TornBytes < 19*60 {
		t.Fatalf("%d records, recovery %+v", len(f.replayed), l.Recovery())
	}
	wantNothingDead(t, l, image)
}

// wantNothingDead appends one more record to the log of tornBatch. After the next power failure that record is the last
// one.
func wantNothingDead(t *testing.T, l *wal.Log, image *faultfs.FS) {
	t.Helper()
	mustWait(t, l, mustAppend(t, l, padded(40, "alive")))
	l2, f := mustOpen(t, options(image.Crash()))
	if len(f.replayed) != 3 || !bytes.Equal(f.replayed[2], padded(40, "alive")) {
		t.Errorf("after the tear: %q", f.replayed)
	}
	mustClose(t, l2)
	mustClose(t, l)
}

// A crash leaves any subset of the sectors of what was not synced, in any
// order. The log must always open, with everything that was acknowledged and
// nothing out of order.
func TestAnySubsetOfUnsyncedSectorsIsReadable(t *testing.T) {
	for seed := range uint64(40) {
		rnd, lost := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
		fs := &faultfs.FS{}
		acked := uint64(0)
		for round := range 6 {
			opts := options(fs)
			opts.FillAhead = []int64{-1, 700, 4 << 10}[rnd.IntN(3)]
			agree(t, fmt.Sprintf("seed %d round %d", seed, round), fs)
			l, f := mustOpen(t, opts)
			if f.last() < acked {
				t.Fatalf("seed %d round %d: %d records, %d were acknowledged", seed, round, f.last(), acked)
			}
			f.wantBodies(t, 1, f.last())
			acked = f.last()
			next := acked + 1
			// Crash at a random change of the disk.
			stop := 1 + rnd.IntN(60)
			var mu sync.Mutex
			var image *faultfs.FS
			changes := 0
			dead := errors.New("the machine is off")
			var durable uint64
			fs.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if image != nil && op.Changes() {
					return dead
				}
				if op.Changes() {
					changes++
				}
				if changes >= stop {
					durable = l.Durable()
					image = fs.CrashRandomly(lost)
					return dead
				}
				return nil
			})
			for l.Err() == nil && next < acked+400 {
				n := uint64(1 + rnd.IntN(12))
				for i := uint64(0); i < n; i++ {
					if _, err := appendWaiting(t.Context(), l, body(next)); err != nil {
						break
					}
					next++
				}
				_ = l.WaitDurable(t.Context(), next-1) // fails once the machine is off
			}
			_ = l.Close()
			mu.Lock()
			if image == nil {
				image, durable = fs.Crash(), l.Durable()
			}
			fs, acked = image, max(acked, durable)
			mu.Unlock()
		}
	}
}
