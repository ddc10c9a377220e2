package wal_test

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// The sync of zeros consumes the error of a record that was written meanwhile. The committer must get the error too:
// the system reports it once to each open file.
func TestFillersSyncHidesNoError(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.SegmentBytes, opts.FillAhead = 1<<20, 64<<10
	fill, commit := make(chan struct{}), make(chan struct{})
	entered := make(chan string, 8)
	var mu sync.Mutex
	syncs := 0
	fs.SetHook(func(op faultfs.Op) error {
		if !isSync(op) {
			return nil
		}
		mu.Lock()
		syncs++
		n := syncs
		mu.Unlock()
		switch n { // the first two create the segment and put it into use
		case 3:
			entered <- "fill"
			<-fill
			return syscall.EIO
		case 4:
			entered <- "commit"
			<-commit
		}
		return nil
	})
	l, _ := mustOpen(t, opts)
	if what := <-entered; what != "fill" {
		t.Fatalf("the first sync is that of a %s", what)
	}
	seq := mustAppend(t, l, body(1))
	<-entered
	close(fill)
	<-l.Failed()
	close(commit)
	if err := l.WaitDurable(t.Context(), seq); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("a record that never reached the disk: %v, want ErrFailed", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	l, f := mustOpen(t, options(fs.Crash()))
	if f.last() != 0 {
		t.Error("the test shows nothing: the record is on the disk")
	}
	mustClose(t, l)
}

// After the preparer failed the log, closing it writes nothing.
func TestCloseAfterThePreparerFailed(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	creating, fail := make(chan struct{}), make(chan struct{})
	marked := make(chan struct{})
	tail := int64(64)
	for i := range uint64(30) {
		tail += 20 + int64(len(body(i+1)))
	}
	fs.SetHook(func(op faultfs.Op) error {
		switch {
		case op.Kind == faultfs.Create:
			close(creating)
			<-fail
			return syscall.EIO
		case op.Kind == faultfs.Write && op.Off == tail:
			close(marked)
		}
		return nil
	})
	mustWait(t, l, appendAll(t, l, 1, 30))
	<-creating
	<-marked // from here on the committer has nothing to do
	var mu sync.Mutex
	var after []string
	close(fail)
	<-l.Failed()
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Changes() {
			after = append(after, op.Kind)
		}
		return nil
	})
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	if len(after) != 0 {
		t.Errorf("after the failure the disk was asked for %v", after)
	}
}

// Too many open files, or too little memory, does not fail the log: nothing was written, and the shortage passes.
func TestShortageIsWaitedOut(t *testing.T) {
	for _, kind := range []string{faultfs.Create, faultfs.SyncDir} {
		for _, shortage := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
			fs := &faultfs.FS{}
			l, _ := mustOpen(t, options(fs))
			var mu sync.Mutex
			tries := 0
			fs.SetHook(func(op faultfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if op.Kind != kind {
					return nil
				}
				if tries++; tries <= 3 {
					return shortage
				}
				return nil
			})
			mustWait(t, l, appendAll(t, l, 1, 300))
			if l.Stats().NoSpace {
				t.Errorf("%v passes for a full disk", shortage)
			}
			mustClose(t, l)
			if tries < 4 {
				t.Errorf("%v: %d tries", shortage, tries)
			}
			fs.SetHook(nil)
			l, f := mustOpen(t, options(fs.Crash()))
			f.wantBodies(t, 1, 300)
			mustClose(t, l)
		}
	}
}

// OnSpace is called once when the disk fills up, and once when it has space again.
func TestOwnerIsToldAboutSpace(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	calls := make(chan error, 100)
	opts.OnSpace = func(err error) { calls <- err }
	l, _ := mustOpen(t, opts)
	var last uint64
	for i := range uint64(2) {
		fs.SetCapacity(fs.Used() + 1)
		for {
			if _, err := appendWaitingForSegment(l, last+1); errors.Is(err, wal.ErrNoSpace) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			last++
		}
		if err := <-calls; !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("round %d: called with %v", i, err)
		}
		fs.SetCapacity(0)
		waitSpace(t, l, 100)
		if err := <-calls; err != nil {
			t.Errorf("round %d: called with %v", i, err)
		}
		last = appendAll(t, l, last+1, last+100)
	}
	mustClose(t, l)
	if len(calls) != 0 {
		t.Errorf("called %d times more", len(calls))
	}
}

// dirSyncs records which directories are synced. The sync of fail is an error.
type dirSyncs struct {
	vfs.FS
	fail   string
	err    error
	synced []string
}

func (d *dirSyncs) SyncDir(dir string) error {
	if dir == d.fail {
		return d.err
	}
	d.synced = append(d.synced, dir)
	return d.FS.SyncDir(dir)
}

func (d *dirSyncs) options() wal.Options {
	return wal.Options{FS: d, SegmentBytes: 4 << 10, SpaceRetry: time.Millisecond}
}

// The names of all directories that were created are durable, not that of the
// last one alone.
func TestCreatedDirectoriesAreDurable(t *testing.T) {
	for _, end := range []string{"", "/"} {
		top := t.TempDir()
		fs := &dirSyncs{FS: vfs.OS()}
		l, err := wal.Open(t.Context(), top+"/a/b/c"+end, fs.options())
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		for _, dir := range []string{top, top + "/a", top + "/a/b"} {
			if !slices.Contains(fs.synced, dir) {
				t.Errorf("%s was not synced, only %v", dir, fs.synced)
			}
		}
	}
}

// A start that created a directory but failed to make its name durable leaves that to the next start, which finds the
// directory already there.
func TestDirectoriesOfAFailedStartAreDurable(t *testing.T) {
	top := t.TempDir()
	for _, failed := range []string{top, top + "/a", top + "/a/b"} {
		if err := os.RemoveAll(top + "/a"); err != nil {
			t.Fatal(err)
		}
		fs := &dirSyncs{FS: vfs.OS(), fail: failed, err: syscall.EIO}
		if _, err := wal.Open(t.Context(), top+"/a/b/c/", fs.options()); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Open when %s cannot be synced: %v, want EIO", failed, err)
		}
		fs.fail, fs.synced = "", nil
		l, err := wal.Open(t.Context(), top+"/a/b/c/", fs.options())
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		if !slices.Contains(fs.synced, failed) {
			t.Errorf("%s was not synced, only %v", failed, fs.synced)
		}
	}
}

// The directory may lie in one that only its creator may open.
func TestDirectoryInAnUnreadableOne(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(top+"/a", 0o700); err != nil {
		t.Fatal(err)
	}
	fs := &dirSyncs{FS: vfs.OS(), fail: top, err: os.ErrPermission}
	for _, dir := range []string{top + "/a", top + "/a/b"} {
		l, err := wal.Open(t.Context(), dir, fs.options())
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
	}
}
