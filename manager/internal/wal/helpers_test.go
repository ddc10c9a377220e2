package wal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dir = "data"

// found is what an open handed to its owner.
type found struct {
	restored [][]byte
	first    uint64 // sequence number of the first replayed record
	replayed [][]byte
}

// last is the sequence number of the last record.
func (f *found) last() uint64 { return f.first + uint64(len(f.replayed)) - 1 }

// options are small: segments of 4 KiB, so that few records fill one. Nothing
// is filled ahead, so that the first sync is that of the first batch.
func options(fs *faultfs.FS) wal.Options {
	return wal.Options{FS: fs, SegmentBytes: 4 << 10, SpaceRetry: time.Millisecond, FillAhead: -1}
}

// waitSpace waits until the log has found space again for a record of n bytes.
func waitSpace(t *testing.T, l *wal.Log, n int) {
	t.Helper()
	for {
		err := l.WaitRoom(t.Context(), n)
		if err == nil {
			return
		}
		if !errors.Is(err, wal.ErrNoSpace) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// openWith opens a log and checks that its sequence numbers have no gaps.
func openWith(t *testing.T, opts wal.Options) (*wal.Log, *found, error) {
	t.Helper()
	f := &found{first: 1}
	opts.Restore = func(rec []byte) error {
		f.restored = append(f.restored, bytes.Clone(rec))
		return nil
	}
	opts.Replay = func(seq uint64, body []byte) error {
		if len(f.replayed) == 0 {
			f.first = seq
		} else if seq != f.last()+1 {
			t.Errorf("sequence number %d is replayed after %d", seq, f.last())
		}
		f.replayed = append(f.replayed, bytes.Clone(body))
		return nil
	}
	l, err := wal.Open(t.Context(), dir, opts)
	return l, f, err
}

func mustOpen(t *testing.T, opts wal.Options) (*wal.Log, *found) {
	t.Helper()
	l, f, err := openWith(t, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l, f
}

func mustClose(t *testing.T, l *wal.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// body is a record's content, different for each number and of a length that
// depends on it.
func body(i uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, i)
	for n := i * 7 % 90; n > 0; n-- {
		b = append(b, byte(i+n))
	}
	return b
}

// appendAll appends body(from) to body(to), trying again when the log is busy,
// and returns the last sequence number.
func appendAll(t *testing.T, l *wal.Log, from, to uint64) (seq uint64) {
	t.Helper()
	for i := from; i <= to; i++ {
		seq = mustAppend(t, l, body(i))
	}
	return seq
}

func mustAppend(t *testing.T, l *wal.Log, b []byte) uint64 {
	t.Helper()
	seq, err := appendWaiting(t.Context(), l, b)
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	return seq
}

// appendWaiting leads where it can, on a goroutine of its own as the caller may continue to append.
func appendWaiting(ctx context.Context, l *wal.Log, b []byte) (uint64, error) {
	for {
		seq, lead, err := l.AppendLead(b)
		if lead {
			go l.Lead()
		}
		if !errors.Is(err, wal.ErrBusy) {
			return seq, err
		}
		if err := l.WaitRoom(ctx, len(b)); err != nil {
			return 0, err
		}
	}
}

func mustWait(t *testing.T, l *wal.Log, seq uint64) {
	t.Helper()
	if err := l.WaitDurable(t.Context(), seq); err != nil {
		t.Fatalf("WaitDurable(%d): %v", seq, err)
	}
}

// wantBodies checks that the replayed records are body(first) to body(last).
func (f *found) wantBodies(t *testing.T, first, last uint64) {
	t.Helper()
	if err := f.checkBodies(first, last); err != nil {
		t.Error(err)
	}
}

func (f *found) checkBodies(first, last uint64) error {
	if f.first != first || f.last() != last {
		return fmt.Errorf("records %d to %d are replayed, want %d to %d", f.first, f.last(), first, last)
	}
	for i, b := range f.replayed {
		if want := body(f.first + uint64(i)); !bytes.Equal(b, want) {
			return fmt.Errorf("record %d is %x, want %x", f.first+uint64(i), b, want)
		}
	}
	return nil
}

// gate lets a test hold up operations. Closed, it blocks those that its filter
// matches; each signals entered first.
type gate struct {
	mu      sync.Mutex
	match   func(faultfs.Op) bool
	open    chan struct{}
	entered chan faultfs.Op
}

func newGate(fs *faultfs.FS, match func(faultfs.Op) bool) *gate {
	g := &gate{match: match, open: make(chan struct{}), entered: make(chan faultfs.Op, 100)}
	fs.SetHook(func(op faultfs.Op) error {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open != nil && g.match(op) {
			g.entered <- op
			<-open
		}
		return nil
	})
	return g
}

// release opens the gate for good.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
	g.open = nil
}

func isSync(op faultfs.Op) bool { return op.Kind == faultfs.Sync }

// segment is the path of a segment.
func segment(n int) string { return fmt.Sprintf("%s/%020d.wal", dir, n) }

func wantCorruption(t *testing.T, err error, file string) *wal.CorruptionError {
	t.Helper()
	var c *wal.CorruptionError
	if !errors.As(err, &c) {
		t.Fatalf("Open: %v, want a CorruptionError", err)
	}
	if file != "" && c.File != file {
		t.Fatalf("the damage is reported in %s, want %s: %v", c.File, file, c)
	}
	return c
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }
