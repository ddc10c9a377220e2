package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// snapshotContent decodes the snapshot in force.
func snapshotContent(t *testing.T, fs *faultfs.FS) (records map[string]string, twice int) {
	t.Helper()
	records = make(map[string]string)
	err := wal.Dump(t.Context(), at, wal.InspectOptions{FS: fs}, func(e wal.Entry) error {
		if e.Segment != 0 {
			return nil
		}
		_, err := DecodeWriteSet(e.Body, func(c *Change) error {
			if c.Delete {
				return errors.New("a deletion in a snapshot")
			}
			key, value := string(c.Key), string(c.Value)
			if old, ok := records[key]; ok {
				twice++
				if old != value {
					return fmt.Errorf("%q is in the snapshot as %q and as %q", key, old, value)
				}
			}
			records[key] = value
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, twice
}

// A snapshot shows one state, whatever transactions do while it is written:
// here amounts move between accounts, accounts come and go, and their sum and
// number in the snapshot must be those of every state.
func TestSnapshotIsConsistent(t *testing.T) {
	const accounts, names, each, movers = 20000, 40000, 10, 4
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.Log.SegmentBytes = 4 << 20
	s := mustOpen(t, opts)
	name := func(i int) string { return fmt.Sprintf("account%05d", i) }
	for from := 0; from < accounts; from += 500 {
		mustUpdate(t, s, func(tx store.Tx) error {
			for i := from; i < from+500; i++ {
				if err := tx.Put(things, name(i), []byte(strconv.Itoa(each)), store.Entry{Index: byName, SortKey: name(i)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var moves atomic.Int64
	for m := range movers {
		wg.Go(func() {
			for i := m; ; i += movers {
				select {
				case <-stop:
					return
				default:
				}
				// Empty one account under its name and fill another under a new
				// name, so that records are deleted and created as well.
				from, to := name(i*7919%names), name(i*104729%names)
				moved := false
				err := s.Update(context.Background(), func(tx store.Tx) error {
					moved = false
					a, err := get(tx, from)
					if err != nil || a == absent || from == to {
						return err
					}
					moved = true
					b, err := get(tx, to)
					if err != nil {
						return err
					}
					if b == absent {
						return errors.Join(tx.Delete(things, from), tx.Put(things, to, []byte(a)))
					}
					n, err := strconv.Atoi(a)
					if err != nil {
						return err
					}
					n2, err := strconv.Atoi(b)
					if err != nil {
						return err
					}
					return errors.Join(
						tx.Put(things, from, []byte(strconv.Itoa(n+1))),
						tx.Put(things, to, []byte(strconv.Itoa(n2-1)), store.Entry{Index: fmt.Sprint("i", i%200), SortKey: "new indexes come up meanwhile"}))
				})
				if err != nil {
					t.Error(err)
					return
				}
				if moved {
					moves.Add(1)
				}
			}
		})
	}
	during := int64(0)
	for range 8 {
		before := moves.Load()
		if err := s.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		during += moves.Load() - before
		records, twice := snapshotContent(t, unlocked(fs))
		sum := 0
		for _, v := range records {
			n, err := strconv.Atoi(v)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != accounts*each || len(records) != accounts {
			t.Errorf("the snapshot has %d accounts with %d in all, want %d with %d", len(records), sum, accounts, accounts*each)
		}
		t.Logf("%d records are in the snapshot twice", twice)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d moves, %d of them during a snapshot", moves.Load(), during)
	if during == 0 {
		t.Error("nothing moved while a snapshot was written")
	}
	want := dumped(t, s)
	mustClose(t, s)
	s = mustOpen(t, opts)
	if got := dumped(t, s); !slices.Equal(got, want) {
		t.Errorf("recovered %d records, want %d", len(got), len(want))
	}
	mustClose(t, s)
}

// unlocked is a copy that can be inspected while the original is in use.
func unlocked(fs *faultfs.FS) *faultfs.FS { return fs.Clone() }

// The engine takes snapshots by itself when the log has grown, again after one
// failed, and so bounds both the disk and the next start.
func TestSnapshotsBoundTheLog(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.SnapshotBytes = 20 << 10
	opts.SnapshotRetry = time.Millisecond
	results := make(chan SnapshotResult, 1000)
	opts.OnSnapshot = func(r SnapshotResult) { results <- r }
	var failed atomic.Bool
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Rename && failed.CompareAndSwap(false, true) {
			return syscall.EIO
		}
		return nil
	})
	s := mustOpen(t, opts)
	ok, bad := 0, 0
	for i := 0; ok < 5; i++ {
		mustUpdate(t, s, put(fmt.Sprint(i%50), fmt.Sprintf("%0200d", i)))
		select {
		case r := <-results:
			if r.Err != nil {
				bad++
			} else if ok++; r.Records < 50 || r.Sequence == 0 || r.Took <= 0 {
				t.Errorf("snapshot %+v", r)
			}
		default:
		}
		if i > 100000 {
			t.Fatal("no snapshots are taken")
		}
	}
	if bad != 1 {
		t.Errorf("%d snapshots failed, want the one", bad)
	}
	mustClose(t, s)
	if used := fs.Used(); used > 200<<10 {
		t.Errorf("the log takes %d bytes", used)
	}
	s = mustOpen(t, opts)
	if r := s.log.Recovery(); r.SnapshotSequence == 0 || r.LogBytes > 200<<10 {
		t.Errorf("recovery %+v", r)
	}
	mustClose(t, s)
}

// The engine takes and reports no snapshot if the last one has all of the log.
func TestSnapshotWithoutNewRecords(t *testing.T) {
	opts := options(&faultfs.FS{})
	taken := make(chan SnapshotResult, 10)
	opts.SnapshotBytes = 1 << 20
	opts.OnSnapshot = func(r SnapshotResult) { taken <- r }
	s := mustOpen(t, opts)
	mustUpdate(t, s, put("k", "v"))
	if err := s.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sinceSnap.Store(s.snapshotLimit()) // bytes of a record that the snapshot has, counted late
	s.wantSnapshot()
	for deadline := time.Now().Add(time.Minute); s.sinceSnap.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the snapshot stays due")
		}
	}
	mustClose(t, s)
	if len(taken) > 0 {
		t.Errorf("a snapshot: %+v", <-taken)
	}
}

// A log that is already long when it is opened gets its snapshot at once.
func TestSnapshotAtStart(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	s := mustOpen(t, opts)
	for i := range 200 {
		mustUpdate(t, s, put(fmt.Sprint(i%10), fmt.Sprintf("%0200d", i)))
	}
	mustClose(t, s)
	opts.SnapshotBytes = 10 << 10
	results := make(chan SnapshotResult, 10)
	opts.OnSnapshot = func(r SnapshotResult) { results <- r }
	s = mustOpen(t, opts)
	if r := <-results; r.Err != nil || r.Records != 10 || r.Sequence != 200 {
		t.Errorf("snapshot %+v", r)
	}
	mustClose(t, s)
}

// Closing a store does not wait for a snapshot to be complete.
func TestCloseInterruptsSnapshot(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	s := mustOpen(t, opts)
	for i := range 100 {
		mustUpdate(t, s, put(fmt.Sprint(i), fmt.Sprintf("%0200d", i)))
	}
	mustClose(t, s)
	opts.SnapshotBytes = 1 << 10
	entered, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Create {
			once.Do(func() {
				close(entered)
				<-hold
			})
		}
		return nil
	})
	s = mustOpen(t, opts)
	<-entered
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for s.Update(t.Context(), func(store.Tx) error { return nil }) == nil {
	}
	close(hold)
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	s = mustOpen(t, options(fs))
	if n := len(dumped(t, s)); n != 100 {
		t.Errorf("%d records, want 100", n)
	}
	mustClose(t, s)
}

func TestSnapshotOfTheVolatileEngine(t *testing.T) {
	s := New(Options{})
	if err := s.Snapshot(t.Context()); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
}

// Once a snapshot has looked at everything, transactions owe it nothing any
// more, however long the disk takes to store it.
func TestNothingIsKeptAfterTheWalk(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, roomy(fs))
	for i := range 300 {
		mustUpdate(t, s, put(fmt.Sprint(i), "v"))
	}
	g := newGate(fs, func(op faultfs.Op) bool { return isSync(op) && strings.HasSuffix(op.Path, ".tmp") })
	taken := make(chan error)
	go func() { taken <- s.Snapshot(t.Context()) }()
	<-g.entered // all of it is written
	for i := range 300 {
		mustUpdate(t, s, put(fmt.Sprint(i), "w"))
	}
	s.mu.Lock()
	if s.snap != nil {
		t.Errorf("%d versions are kept for a snapshot that needs none any more", len(s.snap.displaced))
	}
	s.mu.Unlock()
	g.release()
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if records, _ := snapshotContent(t, unlocked(fs)); len(records) != 300 || records["299"] != "v" {
		t.Errorf("the snapshot has %d records, the last one is %q", len(records), records["299"])
	}
	mustClose(t, s)
}

// A caller that waits for another caller's snapshot may leave.
func TestSnapshotBehindAnother(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	mustUpdate(t, s, put("k", "v"))
	g := newGate(fs, func(op faultfs.Op) bool { return op.Kind == faultfs.Write && strings.HasSuffix(op.Path, ".tmp") })
	first := make(chan error, 1)
	go func() { first <- s.Snapshot(t.Context()) }()
	<-g.entered
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- s.Snapshot(ctx) }()
	cancel() // whether it waits by then or not
	select {
	case err := <-second:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a snapshot whose context has ended: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a snapshot whose context has ended waits for another one")
	}
	g.release()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := s.Snapshot(t.Context()); err != nil {
		t.Errorf("the next snapshot: %v", err)
	}
	mustClose(t, s)
}
