package mem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// pending starts call and checks that it does not return while the disk is
// held up: it must have reached the wait for durability.
type pending struct {
	name string
	done chan error
}

func start(name string, call func() error) pending {
	p := pending{name, make(chan error, 1)}
	go func() { p.done <- call() }()
	return p
}

// Nobody sees a change before it is durable, in whichever way it looks; callers
// that look at something else are not kept waiting.
func TestUndurableStateIsNotShown(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	ctx := t.Context()
	mustUpdate(t, s, put("old", "1", store.Entry{Index: byName, SortKey: "o"}))
	mustUpdate(t, s, put("gone", "1", store.Entry{Index: "other", SortKey: "g"}))
	mustUpdate(t, s, put("moved", "1", store.Entry{Index: "third", SortKey: "m"}))

	g := newGate(fs, isSync)
	refused := errors.New("refused on what it saw")
	writer := start("the writer", func() error {
		return s.Update(ctx, func(tx store.Tx) error {
			return errors.Join(
				tx.Put(things, "new", []byte("2"), store.Entry{Index: byName, SortKey: "n"}),
				tx.Put(things, "moved", []byte("2"), store.Entry{Index: "third", SortKey: "n"}),
				tx.Delete(things, "gone"))
		})
	})
	<-g.entered

	look := func(key, want string) func(store.Tx) error {
		return func(tx store.Tx) error {
			v, err := get(tx, key)
			if err == nil && v != want {
				err = fmt.Errorf("%q is %q, want %q", key, v, want)
			}
			return err
		}
	}
	scan := func(index string, want int) func(store.Tx) error {
		return func(tx store.Tx) error {
			hits, err := tx.Scan(things, index, store.Range{Limit: 10})
			if err == nil && len(hits) != want {
				err = fmt.Errorf("%d hits in %s, want %d", len(hits), index, want)
			}
			return err
		}
	}
	view := func(fn func(store.Tx) error) func() error {
		return func() error { return s.View(ctx, fn) }
	}
	update := func(fn func(store.Tx) error) func() error {
		return func() error { return s.Update(ctx, fn) }
	}
	waiting := []pending{
		writer,
		start("View of a new record", view(look("new", "2"))),
		start("View of a changed record", view(look("moved", "2"))),
		start("View of a deleted record", view(look("gone", absent))),
		start("Scan that finds a new record", view(scan(byName, 2))),
		start("Scan that misses a deleted one", view(scan("other", 0))),
		start("Update without writes", update(look("new", "2"))),
		start("Update that writes elsewhere", update(func(tx store.Tx) error {
			return errors.Join(look("new", "2")(tx), tx.Put(things, "elsewhere", nil))
		})),
		start("View that fails on what it saw", func() error {
			err := s.View(ctx, func(tx store.Tx) error { return errors.Join(look("new", "2")(tx), refused) })
			if !errors.Is(err, refused) {
				return err
			}
			return nil
		}),
		start("Update that fails on what it saw", func() error {
			err := s.Update(ctx, func(tx store.Tx) error { return errors.Join(look("gone", absent)(tx), refused) })
			if !errors.Is(err, refused) {
				return err
			}
			return nil
		}),
	}
	// A caller that looks at durable state only gets its answer now. By then the
	// others have looked and wait, as far as the scheduler let them; that they
	// do not return is checked again below.
	if err := s.View(ctx, look("old", "1")); err != nil {
		t.Error(err)
	}
	if err := s.View(ctx, look("never there", absent)); err != nil {
		t.Error(err)
	}
	if err := s.Update(ctx, func(tx store.Tx) error { return errors.Join(look("old", "1")(tx), refused) }); !errors.Is(err, refused) {
		t.Error(err)
	}
	if n, err := s.Len(ctx, things, ""); n != 3 || err != nil {
		t.Errorf("Len is %d, %v, want the 3 that are durable", n, err)
	}
	if n, err := s.Len(ctx, things, byName); n != 1 || err != nil {
		t.Errorf("Len of the index is %d, %v, want the 1 that is durable", n, err)
	}
	ended, cancel := context.WithCancel(ctx)
	err := s.View(ended, func(tx store.Tx) error { cancel(); return look("new", "2")(tx) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("View of undurable state with an ended context: %v", err)
	}
	// A crash now brings the old state back, which is why nobody may know.
	crashed := mustOpen(t, options(fs.Crash()))
	if v := mustGet(t, crashed, "new"); v != absent {
		t.Errorf("after a crash the new record is %q", v)
	}
	mustClose(t, crashed)
	for _, p := range waiting {
		select {
		case err := <-p.done:
			t.Errorf("%s returned %v before the sync", p.name, err)
			p.done <- err
		default:
		}
	}
	g.release()
	for _, p := range waiting {
		if err := <-p.done; err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	if n, err := s.Len(ctx, things, ""); n != 4 || err != nil {
		t.Errorf("Len is %d, %v, want 4", n, err)
	}
	s.mu.Lock()
	for _, c := range s.collections {
		if len(c.deleted) != 0 {
			t.Errorf("deletions are remembered forever: %v", c.deleted)
		}
	}
	s.mu.Unlock()
	mustClose(t, s)
}

// A failed sync is the end: waiters and all later calls get ErrFailed, and no
// reader gets what was not durable.
func TestFailedSyncIsTheEnd(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	ctx := t.Context()
	mustUpdate(t, s, put("acked", "1"))
	hold := make(chan struct{})
	entered := make(chan struct{}, 1)
	var once sync.Once
	fs.SetHook(func(op faultfs.Op) error {
		if !isSync(op) {
			return nil
		}
		once.Do(func() { entered <- struct{}{} })
		<-hold
		return syscall.EIO
	})
	writer := start("writer", func() error { return s.Update(ctx, put("lost", "1")) })
	<-entered
	reader := start("reader", func() error {
		return s.View(ctx, func(tx store.Tx) error { _, err := tx.Get(things, "lost"); return err })
	})
	mustGet(t, s, "acked")
	close(hold)
	for _, p := range []pending{writer, reader} {
		if err := <-p.done; !errors.Is(err, store.ErrFailed) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want ErrFailed with its cause", p.name, err)
		}
	}
	<-s.Failed()
	if !errors.Is(s.Err(), store.ErrFailed) {
		t.Errorf("Err is %v", s.Err())
	}
	ran := false
	fn := func(store.Tx) error { ran = true; return nil }
	_, lenErr := s.Len(ctx, things, "")
	for name, err := range map[string]error{"Update": s.Update(ctx, fn), "View": s.View(ctx, fn), "Len": lenErr, "Flush": s.Flush(ctx)} {
		if !errors.Is(err, store.ErrFailed) {
			t.Errorf("%s after the failure: %v", name, err)
		}
	}
	if ran {
		t.Error("a function was run after the failure")
	}
	if err := s.Close(); !errors.Is(err, store.ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	fs.SetHook(nil)
	s = mustOpen(t, options(fs.Crash()))
	if mustGet(t, s, "acked") != "1" || mustGet(t, s, "lost") != absent {
		t.Error("after the restart something is wrong")
	}
	mustClose(t, s)
}

// On a full disk writes are refused without a trace and reads continue; once
// there is space writes work again, without a restart.
func TestFullDiskRefusesWritesOnly(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	ctx := t.Context()
	fs.SetCapacity(2 * 16 << 10)
	n := 0
	var err error
	for ; ; n++ {
		if err = s.Update(ctx, put(fmt.Sprintf("k%03d", n), "value", store.Entry{Index: byName, SortKey: fmt.Sprint(n)})); err != nil {
			break
		}
	}
	if !errors.Is(err, store.ErrNoSpace) || n < 100 {
		t.Fatalf("after %d updates: %v, want ErrNoSpace", n, err)
	}
	if v := mustGet(t, s, fmt.Sprintf("k%03d", n)); v != absent {
		t.Errorf("the refused record is %q", v)
	}
	if v := mustGet(t, s, "k000"); v != "value" {
		t.Errorf("a read on a full disk gives %q", v)
	}
	if got, err := s.Len(ctx, things, byName); got != n || err != nil {
		t.Errorf("Len is %d, %v, want %d", got, err, n)
	}
	if s.Err() != nil {
		t.Errorf("the engine failed: %v", s.Err())
	}
	before := dumped(t, s)
	fs.SetCapacity(0)
	for err = s.log.WaitRoom(ctx, 100); errors.Is(err, wal.ErrNoSpace); err = s.log.WaitRoom(ctx, 100) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, put("after", "1"))
	mustUpdate(t, s, func(tx store.Tx) error { return tx.Delete(things, "after") })
	mustClose(t, s)
	s = mustOpen(t, options(fs.Crash()))
	if after := dumped(t, s); !slices.Equal(before, after) {
		t.Errorf("after a crash there are %d records, want %d", len(after), len(before))
	}
	mustClose(t, s)
}

// A full queue makes updates wait and run again, not fail.
func TestBusyLogMakesFunctionsRunAgain(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.Log.MaxQueueBytes = 300
	s := mustOpen(t, opts)
	g := newGate(fs, isSync)
	first := start("first", func() error { return s.Update(t.Context(), put("a", string(make([]byte, 250)))) })
	<-g.entered
	runs := make(chan int, 10)
	n := 0
	second := start("second", func() error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			n++
			runs <- n
			return tx.Put(things, "b", make([]byte, 250))
		})
	})
	<-runs
	ctx, cancel := context.WithCancel(t.Context())
	third := start("third", func() error {
		return s.Update(ctx, func(tx store.Tx) error { runs <- 0; return tx.Put(things, "c", make([]byte, 250)) })
	})
	<-runs
	cancel()
	if err := <-third.done; !errors.Is(err, context.Canceled) {
		t.Errorf("an update whose context ends while the log is busy: %v", err)
	}
	g.release()
	for _, p := range []pending{first, second} {
		if err := <-p.done; err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	if n < 2 {
		t.Errorf("the function ran %d times, so the queue was never full", n)
	}
	if len(mustGet(t, s, "b")) != 250 || mustGet(t, s, "c") != absent {
		t.Error("the wrong records are there")
	}
	mustClose(t, s)
}

// Watchers are woken when the transaction is durable and not before, even if
// its caller has left by then.
func TestNotifyWhenDurable(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	w := s.Watch("topic")
	defer w.Stop()
	g := newGate(fs, isSync)
	ctx, cancel := context.WithCancel(t.Context())
	// One that is alone may be the one who writes, and that does not end early.
	first := start("first", func() error { return s.Update(t.Context(), put("b", "v")) })
	<-g.entered
	left := start("caller", func() error {
		return s.Update(ctx, func(tx store.Tx) error { tx.Notify("topic"); return tx.Put(things, "a", nil) })
	})
	for s.log.Last() < 2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-left.done; !errors.Is(err, context.Canceled) {
		t.Errorf("Update with an ended context: %v", err)
	}
	select {
	case <-w.C():
		t.Error("the watcher was woken before the sync")
	default:
	}
	g.release()
	<-w.C()
	if err := <-first.done; err != nil {
		t.Error(err)
	}
	if v := mustGet(t, s, "a"); v != "" {
		t.Errorf("the record is %q", v)
	}
	mustClose(t, s)
}

// Replaying the log gives the state that the transactions made, whatever they
// did, with and without flushes in between.
func TestRecoveryIsExact(t *testing.T) {
	deep.Quick(t)
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		fs := &faultfs.FS{}
		s := mustOpen(t, options(fs))
		for round := range 5 {
			for range 60 {
				mustUpdate(t, s, randomWrites(rnd, 40))
			}
			if rnd.IntN(2) == 0 {
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			want := dumped(t, s)
			wantLen, err := s.Len(t.Context(), things, "i1")
			if err != nil {
				t.Fatal(err)
			}
			image := fs.Crash()
			mustClose(t, s)
			if rnd.IntN(2) == 0 {
				fs = image
			}
			s = mustOpen(t, options(fs))
			if got := dumped(t, s); !slices.Equal(got, want) {
				t.Fatalf("seed %d round %d: recovered\n%q\nwant\n%q", seed, round, got, want)
			}
			if n, err := s.Len(t.Context(), things, "i1"); n != wantLen || err != nil {
				t.Errorf("seed %d round %d: Len is %d, %v, want %d", seed, round, n, err, wantLen)
			}
		}
		mustClose(t, s)
	}
}

// A machine that stops anywhere leaves a state that some number of whole
// transactions made, with all that were acknowledged.
func TestCrashLeavesWholeTransactions(t *testing.T) {
	deep.Quick(t)
	for seed := range uint64(60) {
		rnd, lost := rand.New(rand.NewPCG(seed, 4)), rand.New(rand.NewPCG(seed, 5))
		fs := &faultfs.FS{}
		opts := options(fs)
		opts.Log.SegmentBytes = 4 << 10
		opts.FlushBytes = 3 << 10
		s := mustOpen(t, opts)
		stop := 20 + rnd.IntN(200)
		var mu sync.Mutex
		var image *faultfs.FS
		fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if image == nil && op.N >= stop {
				image = fs.CutPower(lost)
			}
			if image != nil && op.Kind != faultfs.Close {
				return errors.New("the machine is off")
			}
			return nil
		})
		states := [][]string{nil} // after how many transactions
		acked := 0
		model := New(Options{})
		for {
			fn := randomWrites(rnd, 30)
			err := s.Update(t.Context(), fn)
			mustUpdate(t, model, fn)
			states = append(states, dumped(t, model))
			if err != nil {
				break
			}
			acked = len(states) - 1
		}
		_ = s.Close()
		opts.Log.FS, opts.State = image, image.Pebble()
		s = mustOpen(t, opts)
		got := dumped(t, s)
		n := slices.IndexFunc(states[acked:], func(st []string) bool { return slices.Equal(st, got) })
		if n < 0 {
			t.Errorf("seed %d: after %d acknowledged transactions the state is one that never was:\n%q", seed, acked, got)
		}
		mustClose(t, s)
	}
}

func TestOptionsAreTheEngines(t *testing.T) {
	opts := options(&faultfs.FS{})
	opts.Log.Replay = func(uint64, []byte) error { return nil }
	if _, err := Open(t.Context(), at, opts); err == nil {
		t.Error("Open takes a Replay of the caller's")
	}
}

// A log of something else is refused with the record's number.
func TestForeignLogIsRefused(t *testing.T) {
	fs := &faultfs.FS{}
	log, err := wal.Open(t.Context(), at, options(fs).Log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append([]byte("not a write set")); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), at, options(fs)); !errors.Is(err, errWriteSet) {
		t.Errorf("Open: %v", err)
	}
}

// A caller that leaves while the store is being closed starts nothing
// that Close would have to wait for: it may have waited already.
func TestNothingIsStartedAfterClose(t *testing.T) {
	s := mustOpen(t, options(&faultfs.FS{}))
	mustUpdate(t, s, put("a", "1"))
	w := s.Watch("topic")
	defer w.Stop()
	mustClose(t, s)
	var woken topics
	woken.add("topic")
	s.notifyLater(woken, 1)
	s.background.Wait()
	select {
	case <-w.C():
		t.Error("a goroutine was started")
	default:
	}
}
