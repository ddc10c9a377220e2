package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var lifeCases = []testCase{
	{name: "ReopeningFindsEverything", test: testReopen, durable: true},
	{name: "ReopeningAgainAndAgain", test: testReopenAgain, durable: true},
	{name: "ClosedStoreRefuses", test: testClosed},
	{name: "CloseDuringUpdates", test: testCloseDuringUpdates},
	{name: "FunctionsEndBeforeTheirCalls", test: testFunctionsEnd},
	{name: "WatchersAreWoken", test: testWatch},
	{name: "StoppedWatcher", test: testStoppedWatcher},
	{name: "ManyWatchers", test: testManyWatchers},
	{name: "ManagersSeeEachOther", test: testManagers, shared: true},
	{name: "NotFailed", test: testNotFailed},
}

func testReopen(e *env) {
	s := e.store()
	e.put(s, "kept", "1", store.Entry{Index: byName, SortKey: "n"}, store.Entry{Index: byState, SortKey: "s"})
	e.put(s, "replaced", "1", store.Entry{Index: byName, SortKey: "m"})
	e.put(s, "replaced", "2", store.Entry{Index: byName, SortKey: "o"})
	e.put(s, "deleted", "1", store.Entry{Index: byName, SortKey: "d"})
	e.delete(s, "deleted")
	e.put(s, "empty", "")
	e.close(s)
	s = e.store()
	e.want(s, "kept", "1", "replaced", "2", "deleted", absent, "empty", "")
	e.wantScan(s, byName, store.Range{Limit: 10}, "n/kept", "o/replaced")
	e.wantScan(s, byState, store.Range{Limit: 10}, "s/kept")
	e.wantLen(s, things, "", 3)
	e.wantLen(s, things, byName, 2)
}

func testReopenAgain(e *env) {
	const rounds, each = 4, 20
	for round := range rounds {
		s := e.store()
		for r := range round {
			for i := range each {
				e.want(s, fmt.Sprintf("%d-%d", r, i), fmt.Sprint(r*i))
			}
		}
		e.concurrently(4, func(ctx context.Context, w int) error {
			for i := w; i < each; i += 4 {
				err := update(ctx, s, func(tx store.Tx) error {
					return tx.Put(things, fmt.Sprintf("%d-%d", round, i), []byte(fmt.Sprint(round*i)))
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		e.close(s)
	}
}

func testClosed(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	e.close(s)
	ran := false
	fn := func(store.Tx) error { ran = true; return nil }
	if err := s.Update(e.ctx, fn); !errors.Is(err, store.ErrClosed) {
		e.Errorf("Update of a closed store: %v, want ErrClosed", err)
	}
	if err := s.View(e.ctx, fn); !errors.Is(err, store.ErrClosed) {
		e.Errorf("View of a closed store: %v, want ErrClosed", err)
	}
	if _, err := s.Len(e.ctx, things, ""); !errors.Is(err, store.ErrClosed) {
		e.Errorf("Len of a closed store: %v, want ErrClosed", err)
	}
	if ran {
		e.Error("a function was run on a closed store")
	}
}

// testFunctionsEnd lets a call's context end while its function runs: the call may return early, but not before its
// function.
func testFunctionsEnd(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	for name, call := range calls(s) {
		ctx, cancel := context.WithCancel(e.ctx)
		began := make(chan struct{})
		done := make(chan struct{})
		var once sync.Once
		var inside atomic.Int64
		go func() {
			defer close(done)
			err := call(ctx, func(tx store.Tx) error {
				inside.Add(1)
				defer inside.Add(-1)
				once.Do(func() { close(began) })
				<-ctx.Done()
				for range 100 {
					_, _ = tx.Get(things, "a")
				}
				return ctx.Err()
			})
			if inside.Load() != 0 {
				e.Errorf("%s returned %v while its function was running", name, err)
			}
			if !errors.Is(err, context.Canceled) {
				e.Errorf("%s: %v, want context.Canceled", name, err)
			}
		}()
		<-began
		cancel()
		<-done
	}
}

// testCloseDuringUpdates closes a store under load. Every Update either succeeds, and is then there after reopening, or
// fails.
func testCloseDuringUpdates(e *env) {
	const workers = 6
	s := e.store()
	var mu sync.Mutex
	acked := make(map[string]bool)
	busy := make(chan struct{})
	var once sync.Once
	e.concurrently(workers+1, func(ctx context.Context, w int) error {
		if w == workers {
			select {
			case <-busy:
				return s.Close()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for i := 0; ; i++ {
			key := fmt.Sprintf("%d-%d", w, i)
			err := update(ctx, s, func(tx store.Tx) error {
				return errors.Join(tx.Put(things, key, []byte("1")), tx.Put(things, key+"'", []byte("1")))
			})
			if errors.Is(err, store.ErrClosed) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			acked[key] = true
			n := len(acked)
			mu.Unlock()
			if n >= 4*workers {
				once.Do(func() { close(busy) })
			}
		}
	})
	if !e.caps.Durable {
		return
	}
	s = e.store()
	for key := range acked {
		e.want(s, key, "1", key+"'", "1")
	}
}

// wake notifies topic repeatedly until w wakes up, because a shared engine may lose a wake-up.
func (e *env) wake(w store.Watcher, notify func()) {
	e.Helper()
	again := time.NewTicker(5 * time.Second)
	defer again.Stop()
	notify()
	for {
		select {
		case <-w.C():
			return
		case <-again.C:
			notify()
		case <-e.ctx.Done():
			e.Fatal("the watcher was never woken")
		}
	}
}

func testWatch(e *env) {
	all := e.managers(2)
	for from, to := range []int{1, 0} {
		for _, topic := range []string{"jobs", "entry:\x00\xff'\"; ü", "jobs"} {
			w := all[to].Watch(topic)
			n := 0
			e.wake(w, func() {
				n++
				e.update(all[from], func(tx store.Tx) error {
					tx.Notify(topic)
					tx.Notify("another topic")
					tx.Notify(topic)
					return tx.Put(things, topic, []byte(fmt.Sprint(from, n)))
				})
			})
			// The change that caused the wake-up must be visible. The wake-up may be spurious, so this may take several
			// reads.
			e.eventually(func() bool { return e.get(all[to], topic) == fmt.Sprint(from, n) }, func() string { return "a watcher was woken and never saw why" })
			w.Stop()
		}
	}
	// A transaction without writes can still notify.
	w := all[0].Watch("bare")
	defer w.Stop()
	e.wake(w, func() {
		e.update(all[1], func(tx store.Tx) error { tx.Notify("bare"); return nil })
	})
}

func testStoppedWatcher(e *env) {
	s := e.store()
	stopped, kept := s.Watch("t"), s.Watch("t")
	stopped.Stop()
	e.wake(kept, func() {
		e.update(s, func(tx store.Tx) error { tx.Notify("t"); return tx.Put(things, "a", nil) })
	})
	kept.Stop()
	e.update(s, func(tx store.Tx) error { tx.Notify("t"); return tx.Put(things, "a", nil) })
}

// testManyWatchers wakes many watchers repeatedly. None may get stuck, and updates must continue even if nobody
// consumes wake-ups.
func testManyWatchers(e *env) {
	s := e.store()
	const watchers, rounds = 20, 30
	idle := s.Watch("busy")
	defer idle.Stop()
	var mu sync.Mutex
	done := 0
	finished := make(chan struct{})
	e.concurrently(watchers+1, func(ctx context.Context, w int) error {
		if w == watchers {
			for i := 0; ; i++ {
				select {
				case <-finished:
					return nil
				default:
				}
				err := update(ctx, s, func(tx store.Tx) error {
					tx.Notify("busy")
					return putInt(tx, "n", i)
				})
				if err != nil {
					return err
				}
			}
		}
		watch := s.Watch("busy")
		defer watch.Stop()
		for range rounds {
			select {
			case <-watch.C():
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if done++; done == watchers {
			close(finished)
		}
		return nil
	})
}

func testManagers(e *env) {
	a, b := e.store(), e.store()
	e.put(a, "k", "from a", store.Entry{Index: byName, SortKey: "x"})
	e.want(b, "k", "from a")
	e.wantScan(b, byName, store.Range{Limit: 10}, "x/k")
	e.delete(b, "k")
	e.want(a, "k", absent)
	e.put(b, "k", "from b")
	e.close(b)
	e.want(a, "k", "from b")
	e.put(a, "k", "a again")
	e.want(a, "k", "a again")
}

func testNotFailed(e *env) {
	s := e.store()
	e.put(s, "a", "1")
	select {
	case <-s.Failed():
		e.Error("Failed is closed")
	default:
	}
	if err := s.Err(); err != nil {
		e.Errorf("Err: %v", err)
	}
}
