package mem

import (
	"errors"
	"fmt"
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

// Whichever operation of the state's files fails, once or for ever, calls end, with an error that has the cause, and
// what was acknowledged is there after a restart.
func TestAnyFaultOfTheState(t *testing.T) {
	faulty := func(fs *faultfs.FS) Options {
		opts := options(fs)
		opts.LayerBytes, opts.FlushBytes, opts.FlushRetry = 3<<10, 1<<20, time.Millisecond
		return opts
	}
	var mu sync.Mutex
	total := 0
	fs := &faultfs.FS{}
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if ofState(op) {
			total++
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
	t.Logf("%d operations", total)
	outcomes := make(map[string]int)
	for n, step := 1, deep.Rounds(max(1, total/25), 1); n <= total; n += step {
		for _, cause := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
			for _, forever := range []bool{false, true} {
				outcome := oneFault(t, faulty, n, cause, forever)
				outcomes[outcome]++
			}
		}
	}
	t.Log(outcomes)
}

func oneFault(t *testing.T, faulty func(*faultfs.FS) Options, n int, cause syscall.Errno, forever bool) (outcome string) {
	t.Helper()
	var mu sync.Mutex
	met, failed := 0, ""
	fs := &faultfs.FS{}
	fs.SetHook(func(op faultfs.Op) error {
		if !ofState(op) || cause == syscall.ENOSPC && !op.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		met++
		if met == n || forever && met > n {
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
		return fmt.Sprintf("fault %d (%v, for ever: %v) at %s", n, cause, forever, failed)
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
