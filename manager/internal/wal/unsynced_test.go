package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// padded is a body of n bytes that begins with s.
func padded(n int, s string) []byte { return fmt.Appendf(nil, "%-*s", n, s) }

// noCreate makes it impossible to create a segment, as on a full disk.
func noCreate(op faultfs.Op) error {
	if op.Kind == faultfs.Create {
		return syscall.ENOSPC
	}
	return nil
}

// Power fails during the write of a batch that begins segment 2; the header is lost. The next start declares the batch
// dead and deletes the file. After another power failure the file must not come back: its dead records have the numbers
// of later ones, and a torn write of those would look like damage.
func TestDeletedSegmentStaysDeleted(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	off := 64
	add := func(b []byte) {
		off += 20 + len(b)
		mustWait(t, l, mustAppend(t, l, b))
	}
	for off < 3300 {
		add(padded(80, "acked"))
	}
	if err := l.WaitPrepared(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := newGate(fs, isSync)
	mustAppend(t, l, padded(10, "busy")) // the committer is, with this one
	<-g.entered
	first := mustAppend(t, l, padded(900, "torn 1")) // does not fit into segment 1
	for i := range 30 {
		mustAppend(t, l, padded(40, fmt.Sprint("torn more ", i)))
	}
	var mu sync.Mutex
	var image *faultfs.FS
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if isSync(op) && op.Path == segment(2) && image == nil {
			image = fs.Clone()
		}
		return nil
	})
	g.release()
	mustWait(t, l, l.Last())
	fs.SetHook(nil)
	mustClose(t, l)
	data := image.Content(segment(2))
	clear(data[:512]) // the sector with the header
	image.SetContent(segment(2), data)

	// There is no other segment 2 to replace the old one.
	image.SetHook(noCreate)
	l, f := mustOpen(t, options(image))
	if f.last() != first-1 {
		t.Fatalf("the last record is %d, want %d", f.last(), first-1)
	}
	for range 3 {
		mustWait(t, l, mustAppend(t, l, padded(20, "second use")))
	}
	acked := l.Last()
	var crash *faultfs.FS
	image.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if isSync(op) && crash == nil { // only the first sector of the record is written
			crash = image.Crash()
			d := image.Content(segment(1))
			end := (bytes.Index(d, []byte("in flight")) + 511) / 512 * 512
			clear(d[end : end+512])
			crash.SetContent(segment(1), d)
		}
		return noCreate(op)
	})
	mustWait(t, l, mustAppend(t, l, padded(400, "in flight")))
	image.SetHook(nil)
	mustClose(t, l)

	l, f, err := openWith(t, options(crash))
	if err != nil {
		t.Fatalf("Open refuses a log of which nothing acknowledged is lost: %v", err)
	}
	if f.last() != acked {
		t.Errorf("the last record is %d, want %d", f.last(), acked)
	}
	mustClose(t, l)
}

// A start wipes a torn tail and meets an error of the disk: the wiped bytes read as zeros but are still on the disk.
// The next start sees nothing to wipe. Records written after that must not be followed by dead records when power
// fails.
func TestFailedWipeIsDoneAgain(t *testing.T) {
	for n := range 2 { // the last batch is synced, then the wipe
		t.Run(fmt.Sprint("sync ", n+1), func(t *testing.T) {
			image := tornBatch(t)
			failOn(image, n+1, syscall.EIO, isSync)
			if _, _, err := openWith(t, options(image)); !errors.Is(err, syscall.EIO) {
				t.Fatalf("Open: %v, want EIO", err)
			}
			image.SetHook(nil)
			l, f := mustOpen(t, options(image))
			if len(f.replayed) != 2 {
				t.Fatalf("%d records, want 2", len(f.replayed))
			}
			wantNothingDead(t, l, image)
		})
	}
}

// A start that finds the mark of a clean stop relies on it: it does not rewrite its whole segment.
func TestStartAfterACleanStopWritesLittle(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 10))
	mustClose(t, l)
	var mu sync.Mutex
	written := int64(0)
	count := func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == faultfs.Write {
			written += op.Len
		}
		return nil
	}
	for range 2 {
		fs.SetHook(count)
		l, f := mustOpen(t, options(fs))
		mustClose(t, l)
		f.wantBodies(t, 1, 10)
		if written > 1000 {
			t.Errorf("%d bytes were written", written)
		}
		written = 0
	}
}

// The sync of a segment's first batch fails, so its header can be read but never reached the disk. The next start
// continues in that segment. What it acknowledges must survive a power failure.
func TestHeaderIsWrittenAgain(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	for range 3 { // as many as fit into segment 1
		mustWait(t, l, mustAppend(t, l, padded(1000, "acked")))
	}
	if err := l.WaitPrepared(t.Context()); err != nil {
		t.Fatal(err)
	}
	failOn(fs, 1, syscall.EIO, func(op faultfs.Op) bool { return isSync(op) && op.Path == segment(2) })
	seq := mustAppend(t, l, padded(1000, "not synced"))
	if err := l.WaitDurable(t.Context(), seq); !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("WaitDurable: %v, want ErrFailed", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("Close: %v, want ErrFailed", err)
	}
	fs.SetHook(nil)
	l, f := mustOpen(t, options(fs))
	if f.last() != seq {
		t.Fatal("the test shows nothing: the unsynced record cannot be read")
	}
	wantNextAfterCrash(t, fs, l)
}

// The same for the header of a new log.
func TestHeaderOfANewLogIsWrittenAgain(t *testing.T) {
	fs := &faultfs.FS{}
	failOn(fs, 2, syscall.EIO, isSync) // the first one is that of the empty file
	if _, _, err := openWith(t, options(fs)); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Open: %v, want EIO", err)
	}
	fs.SetHook(nil)
	if bytes.Count(fs.Content(segment(1)), []byte{0}) == 4<<10 {
		t.Fatal("the test shows nothing: the unsynced header cannot be read")
	}
	l, _ := mustOpen(t, options(fs))
	wantNextAfterCrash(t, fs, l)
}

// wantNextAfterCrash checks that the next record is durable when l says so.
func wantNextAfterCrash(t *testing.T, fs *faultfs.FS, l *wal.Log) {
	t.Helper()
	acked := mustAppend(t, l, []byte("acknowledged"))
	mustWait(t, l, acked)
	image := fs.Crash()
	mustClose(t, l)
	l, f, err := openWith(t, options(image))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if f.last() != acked {
		t.Errorf("the last record is %d, want %d", f.last(), acked)
	}
	mustClose(t, l)
}
