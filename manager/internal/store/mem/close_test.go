package mem

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func isStateRead(op faultfs.Op) bool { return ofState(op) && op.Kind == faultfs.Read }

// isTable reports whether an operation creates the table of a flush.
func isTable(op faultfs.Op) bool {
	return ofState(op) && op.Kind == faultfs.Create && path.Ext(op.Path) == ".part"
}

// waitUntil waits for a condition under the store's lock.
func waitUntil(s *Store, cond func() bool) {
	for {
		s.mu.Lock()
		ok := cond()
		s.mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

// onDisk opens a store in which n records of 1 KiB are in the state and nothing is in memory.
func onDisk(t *testing.T, fs *faultfs.FS, opts Options, n int) *Store {
	t.Helper()
	s := mustOpen(t, opts)
	for i := range n {
		mustUpdate(t, s, put(fmt.Sprintf("k%03d", i), strings.Repeat("v", 1024), store.Entry{Index: byName, SortKey: fmt.Sprintf("%03d", i)}))
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	return mustOpen(t, opts)
}

// Close waits for a call that reads from the disk. The call gets its record, or ErrClosed when it needs one more.
func TestCloseWhileRecordsAreRead(t *testing.T) {
	fs := &faultfs.FS{}
	s := onDisk(t, fs, options(fs), 50)
	g := newGate(fs, isStateRead)
	read := start("the call", func() error {
		return s.View(t.Context(), func(tx store.Tx) error {
			return errors.Join(tx.Prefetch([]store.ID{{Collection: things, Key: "k000"}, {Collection: things, Key: "k049"}}))
		})
	})
	<-g.entered
	closed := start("Close", s.Close)
	waitUntil(s, func() bool { return s.closed })
	select {
	case err := <-closed.done:
		t.Fatalf("Close returned %v while a record was read", err)
	default:
	}
	g.release()
	if err := inTime(t, "the call", func() error { return <-read.done }); err != nil && !errors.Is(err, store.ErrClosed) {
		t.Errorf("the call: %v", err)
	}
	if err := inTime(t, "Close", func() error { return <-closed.done }); err != nil {
		t.Errorf("Close: %v", err)
	}
	if s.StateBytes() != 0 {
		t.Error("a closed state has a size")
	}
}

// Close ends calls that wait for a flush, and waits for the flush itself.
func TestCloseWhileFlushing(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.LayerBytes = 1
	s := mustOpen(t, opts)
	g := newGate(fs, isTable)
	flush := start("Flush", func() error { return s.Flush(context.Background()) })
	mustUpdate(t, s, put("a", "1"))
	<-g.entered // of that flush or of the one in the background
	mustUpdate(t, s, put("b", "1"))
	full := start("a call without room", func() error { return s.Update(context.Background(), put("c", "1")) })
	waitUntil(s, func() bool { return s.freeze.over != nil })
	second := start("a second flush", func() error { return s.Flush(context.Background()) })
	copied := start("a copy", func() error { _, err := s.OpenCopy(context.Background()); return err })
	closed := start("Close", s.Close)
	for _, p := range []pending{full, second, copied} {
		if err := inTime(t, p.name, func() error { return <-p.done }); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", p.name, err)
		}
	}
	g.release()
	if err := inTime(t, "Flush", func() error { return <-flush.done }); err != nil && !errors.Is(err, store.ErrClosed) {
		t.Errorf("Flush: %v", err)
	}
	if err := inTime(t, "Close", func() error { return <-closed.done }); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := s.Flush(context.Background()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Flush after Close: %v", err)
	}
	s = mustOpen(t, opts)
	if mustGet(t, s, "a") != "1" || mustGet(t, s, "b") != "1" || mustGet(t, s, "c") != absent {
		t.Error("the wrong records are there")
	}
	mustClose(t, s)
}

// Close ends copies that nobody closed.
func TestCloseEndsCopies(t *testing.T) {
	fs := &faultfs.FS{}
	s := onDisk(t, fs, options(fs), 200)
	c, err := s.OpenCopy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := c.Next(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	mustClose(t, s)
	if _, ok, err := c.Next(); ok || !errors.Is(err, store.ErrClosed) {
		t.Errorf("Next after Close: %v, %v", ok, err)
	}
	c.Close()
}

// Close does not wait for the whole of a Scrub.
func TestCloseWhileScrubbing(t *testing.T) {
	fs := &faultfs.FS{}
	s := onDisk(t, fs, options(fs), 50)
	g := newGate(fs, func(op faultfs.Op) bool {
		return ofState(op) && op.Kind == faultfs.Create && path.Ext(op.Path) == ".sst" // only compactions create them
	})
	scrub := start("Scrub", func() error {
		return s.Scrub(context.Background(), func(ctx context.Context) error {
			return s.Update(ctx, put("k000", "new"))
		})
	})
	<-g.entered
	closed := start("Close", s.Close)
	if err := inTime(t, "Scrub", func() error { return <-scrub.done }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Scrub: %v", err)
	}
	g.release()
	if err := inTime(t, "Close", func() error { return <-closed.done }); err != nil {
		t.Errorf("Close: %v", err)
	}
}
