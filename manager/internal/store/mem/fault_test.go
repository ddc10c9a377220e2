package mem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// ofState reports whether an operation is one of the state.
func ofState(op faultfs.Op) bool {
	return strings.HasPrefix(op.Path+"/", path.Join(at, StateDir)+"/")
}

// inTime fails the test when a call does not return.
func inTime(t *testing.T, name string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s does not return", name)
		return nil
	}
}

// workload changes and reads records, with flushes in between, until a call fails for good. It returns the state that was
// acknowledged last and, when the outcome of a call is unknown, also the state with that call.
func workload(t *testing.T, s *Store, check func(call string, err error)) (states [][]string) {
	t.Helper()
	rnd, model := rand.New(rand.NewPCG(1, 1)), New(Options{})
	defer mustClose(t, model)
	states = [][]string{nil}
	for i := range 120 {
		fn := randomWrites(rnd, 60)
		err := inTime(t, "Update", func() error { return s.Update(t.Context(), fn) })
		check("Update", err)
		if err == nil || errors.Is(err, store.ErrFailed) {
			mustUpdate(t, model, fn)
			states = append(states, dumped(t, model))
			if err != nil {
				return states[len(states)-2:]
			}
			states = states[1:]
		}
		switch i % 6 {
		case 0:
			check("Flush", inTime(t, "Flush", func() error { return s.Flush(t.Context()) }))
		case 3:
			key := fmt.Sprintf("k%03d", rnd.IntN(60))
			check("View", inTime(t, "View", func() error {
				return s.View(t.Context(), func(tx store.Tx) error {
					if _, err := get(tx, key); err != nil {
						return err
					}
					_, err := tx.Scan(things, "i1", store.Range{Limit: 5})
					return err
				})
			}))
		}
	}
	return states
}

// Whichever operation of the state's files fails, once or forever, calls end, with an error that has the cause, and
// what was acknowledged is there after a restart.
func TestAnyFaultOfTheState(t *testing.T) {
	faulty := func(fs *faultfs.FS) Options {
		opts := options(fs)
		opts.LayerBytes, opts.FlushBytes, opts.FlushRetry = 3<<10, 1<<20, time.Millisecond
		return opts
	}
	var mu sync.Mutex
	met := make(map[string]int) // operations of each class
	fs := &faultfs.FS{}
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if ofState(op) {
			met[classOf(op)]++
		}
		return nil
	})
	s := mustOpen(t, faulty(fs))
	workload(t, s, func(call string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
	})
	mustClose(t, s)
	causes := []syscall.Errno{syscall.EIO, syscall.ENOSPC}
	if deep.Race { // which goroutines meet does not depend on the error
		causes = causes[:1]
	}
	outcomes := make(map[string]int)
	for _, class := range slices.Sorted(maps.Keys(met)) {
		n, step := 1+met[class]/2, met[class]
		switch {
		case deep.On() && !deep.Race:
			n, step = 1, met[class]/3
		case strings.HasPrefix(class, faultfs.SyncDir): // a panic inside Pebble, if it heard of the error
			n, step = 1, n-1
		}
		for ; n <= met[class]; n += max(step, 1) {
			for _, cause := range causes {
				for _, forever := range []bool{false, true} {
					outcomes[oneFault(t, faulty, class, n, cause, forever)]++
				}
			}
		}
	}
	t.Log(len(met), "classes:", outcomes)
}

// classOf is the kind of an operation and of its file.
func classOf(op faultfs.Op) string {
	file, _, _ := strings.Cut(path.Base(op.Path), "-")
	if i := strings.IndexByte(file, '.'); i >= 0 && !strings.HasPrefix(file, "marker") {
		file = file[i:]
	}
	return op.Kind + " " + strings.TrimRight(file, "0123456789.")
}

func oneFault(t *testing.T, faulty func(*faultfs.FS) Options, class string, n int, cause syscall.Errno, forever bool) (outcome string) {
	t.Helper()
	var mu sync.Mutex
	met, failed := 0, ""
	fs := &faultfs.FS{}
	fs.SetHook(func(op faultfs.Op) error {
		if !ofState(op) || classOf(op) != class || cause == syscall.ENOSPC && !op.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if met++; met == n || forever && met > n {
			if failed == "" {
				failed = fmt.Sprint(op)
			}
			return cause
		}
		return nil
	})
	name := func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprintf("fault %d (%v, forever: %v) at %s", n, cause, forever, failed)
	}
	opts := faulty(fs)
	var background error
	opts.OnStateError = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		background = err
	}
	var s *Store
	err := inTime(t, "Open", func() (err error) {
		s, err = Open(t.Context(), at, opts)
		return err
	})
	if err != nil {
		if !errors.Is(err, cause) {
			t.Errorf("%s: Open: %v", name(), err)
		}
		return "not opened"
	}
	outcome = "no error"
	states := workload(t, s, func(call string, err error) {
		allowed := []error{store.ErrUnavailable, store.ErrFailed}
		if cause == syscall.ENOSPC {
			allowed = append(allowed, store.ErrNoSpace)
		}
		i := slices.IndexFunc(allowed, func(target error) bool { return errors.Is(err, target) })
		if err == nil {
			return
		}
		if !errors.Is(err, cause) || i < 0 && call != "Flush" {
			t.Errorf("%s: %s: %v", name(), call, err)
		}
		outcome = "an error of " + call
		if i == 1 {
			outcome = "failed"
		}
	})
	if s.Err() != nil {
		_ = inTime(t, "Failed", func() error { <-s.Failed(); return nil })
	}
	if err := inTime(t, "Close", s.Close); err != nil && !errors.Is(err, cause) {
		t.Errorf("%s: Close: %v", name(), err)
	}
	fs.SetHook(nil)
	s = mustOpen(t, faulty(fs.Crash()))
	got := dumped(t, s)
	if !slices.ContainsFunc(states, func(st []string) bool { return slices.Equal(st, got) }) {
		t.Errorf("%s: after a restart there are\n%q\nwant\n%q", name(), got, states)
	}
	mustClose(t, s)
	mu.Lock()
	defer mu.Unlock()
	if outcome == "no error" && background != nil {
		outcome = "an error in the background"
	}
	return outcome
}

// A call that waits for room in memory learns why a flush fails. Meanwhile reads continue, and once flushes work again, so
// do changes.
func TestCallsWithoutRoomLearnWhyFlushesFail(t *testing.T) {
	for cause, want := range map[syscall.Errno]error{syscall.EIO: store.ErrUnavailable, syscall.ENOSPC: store.ErrNoSpace} {
		t.Run(cause.Error(), func(t *testing.T) {
			fs := &faultfs.FS{}
			opts := options(fs)
			opts.LayerBytes, opts.FlushRetry = 1, time.Millisecond
			s := mustOpen(t, opts)
			entered, fail := make(chan struct{}, 100), make(chan struct{})
			fs.SetHook(func(op faultfs.Op) error {
				if !isTable(op) {
					return nil
				}
				entered <- struct{}{}
				<-fail
				return cause
			})
			ctx := context.Background()
			mustUpdate(t, s, put("a", "1"))
			<-entered
			mustUpdate(t, s, put("b", "1"))
			call := start("a call without room", func() error { return s.Update(ctx, put("c", "1")) })
			waitUntil(s, func() bool { return s.freeze.over != nil })
			readOnly := func(tx store.Tx) error {
				_, err := get(tx, "b")
				return err
			}
			read := func() error { return errors.Join(s.View(ctx, readOnly), s.Update(ctx, readOnly)) }
			if err := inTime(t, "a read", read); err != nil {
				t.Errorf("a read while a call waits for room: %v", err)
			}
			close(fail)
			if err := inTime(t, call.name, func() error { return <-call.done }); !errors.Is(err, want) || !errors.Is(err, cause) {
				t.Errorf("%s: %v", call.name, err)
			}
			if err := inTime(t, "a read", read); err != nil {
				t.Errorf("a read while flushes fail: %v", err)
			}
			if v := mustGet(t, s, "c"); v != absent {
				t.Errorf("what was refused is there: %q", v)
			}
			fs.SetHook(nil)
			err := inTime(t, "a change", func() error {
				for {
					if err := s.Update(ctx, put("c", "2")); !errors.Is(err, want) {
						return err
					}
				}
			})
			if err != nil {
				t.Errorf("a change after flushes work again: %v", err)
			}
			mustClose(t, s)
		})
	}
}

// A flush that was begun for a caller and ended with its context is tried again for callers that wait for room.
func TestCallsWithoutRoomOutliveAFlushThatWasCancelled(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.LayerBytes = 1 << 10
	s := mustOpen(t, opts)
	g := newGate(fs, isTable)
	ctx, cancel := context.WithCancel(t.Context())
	mustUpdate(t, s, put("a", "1"))
	flush := start("Flush", func() error { return s.Flush(ctx) })
	<-g.entered
	mustUpdate(t, s, put("b", string(make([]byte, 4<<10))))
	call := start("a call without room", func() error { return s.Update(context.Background(), put("c", "1")) })
	waitUntil(s, func() bool { return s.freeze.over != nil })
	cancel()
	g.release()
	if err := inTime(t, "Flush", func() error { return <-flush.done }); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Flush: %v", err)
	}
	if err := inTime(t, call.name, func() error { return <-call.done }); err != nil {
		t.Errorf("%s: %v", call.name, err)
	}
	mustClose(t, s)
}

// A log that cannot be made shorter holds up nobody while the state can be written.
func TestFlushesGoOnWhileTheLogCannotBeRetired(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.LayerBytes, opts.FlushRetry = 1, time.Hour
	failures := make(chan error, 100)
	opts.OnFlush = func(r FlushResult) {
		if r.Err != nil {
			failures <- r.Err
		}
	}
	s := mustOpen(t, opts)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Rename && !ofState(op) { // of the log's snapshot
			return syscall.EIO
		}
		return nil
	})
	mustUpdate(t, s, put("a", "1"))
	if err := <-failures; !errors.Is(err, syscall.EIO) {
		t.Errorf("the flush: %v", err)
	}
	for i := range 10 {
		if err := inTime(t, "Update", func() error { return s.Update(t.Context(), put(fmt.Sprint(i), "1")) }); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
}

// A version that is written again in each layer does not keep the versions of earlier layers in memory.
func TestVersionsDoNotKeepThoseBelow(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	for range 4 {
		mustUpdate(t, s, put("marker", ""))
		freezeOnly(t, s)
		mustUpdate(t, s, put("marker", ""))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.collections[things].hot.get("marker"); rec.below == nil || rec.below.below != nil {
		t.Errorf("the version remembers %v", rec.below)
	}
	s.mu.Unlock()
	mustClose(t, s)
	s.mu.Lock()
}
