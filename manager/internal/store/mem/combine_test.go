package mem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// busy has the store's lock until release is called. Calls that begin before
// that are run by the goroutine that had it.
type busy struct {
	s       *Store
	release func()
	ended   chan struct{} // when that goroutine has
	err     error
}

func keepBusy(s *Store) *busy {
	b := &busy{s: s, ended: make(chan struct{})}
	taken, free := make(chan struct{}), make(chan struct{})
	b.release = sync.OnceFunc(func() { close(free) })
	go func() {
		defer close(b.ended)
		b.err = s.Update(context.Background(), func(store.Tx) error {
			close(taken)
			<-free
			return nil
		})
	}()
	<-taken
	return b
}

// wait returns when n calls have been left to the holder of the lock.
func (b *busy) wait(n int) {
	for {
		waiting := 0
		for c := b.s.calls.Load(); c != nil; c = c.next { // which nobody changes while b has the lock
			waiting++
		}
		if waiting >= n {
			return
		}
		runtime.Gosched()
	}
}

// roomy has a log that is never busy, so that no function is run again.
func roomy(fs *faultfs.FS) Options {
	opts := options(fs)
	opts.Log.SegmentBytes = 1 << 20
	return opts
}

// More callers than one may serve: the work is handed on until everybody has
// an answer, each function is run once, and in the order of the calls.
func TestManyCallersFindTheLockTaken(t *testing.T) {
	for name, s := range map[string]*Store{"volatile": New(Options{}), "log": mustOpen(t, roomy(&faultfs.FS{}))} {
		t.Run(name, func(t *testing.T) {
			const n = 3*maxCombined + 7
			b := keepBusy(s)
			var wg sync.WaitGroup
			var order []int // guarded by the store's lock
			for i := range n {
				wg.Go(func() {
					err := s.Update(t.Context(), func(tx store.Tx) error {
						order = append(order, i)
						return put(fmt.Sprint(i), "v")(tx)
					})
					if err != nil {
						t.Errorf("caller %d: %v", i, err)
					}
				})
				b.wait(i + 1)
			}
			b.release()
			wg.Wait()
			<-b.ended
			if b.err != nil {
				t.Error(b.err)
			}
			if len(order) != n {
				t.Fatalf("%d functions were run, want %d", len(order), n)
			}
			for i, got := range order {
				if got != i {
					t.Fatalf("call %d was run as number %d", got, i)
				}
			}
			if got, err := s.Len(t.Context(), things, ""); got != n || err != nil {
				t.Errorf("%d records, %v, want %d", got, err, n)
			}
			mustClose(t, s)
		})
	}
}

// When calls never stop coming, nobody is kept running those of others: the caller that
// had the lock gets away after maxCombined.
func TestNobodyWorksForOthersForGood(t *testing.T) {
	const n = 4 * maxCombined
	s := New(Options{})
	b := keepBusy(s)
	var wg sync.WaitGroup
	ran := 0 // guarded by the store's lock
	var begin func()
	begin = func() {
		wg.Go(func() {
			err := s.Update(t.Context(), func(store.Tx) error {
				if ran++; ran == n {
					return nil
				}
				if ran == 2*maxCombined {
					select {
					case <-b.ended:
					case <-time.After(20 * time.Second):
						t.Error("the first one still runs the calls of others")
					}
				}
				begin()
				b.wait(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	begin()
	b.wait(1)
	b.release()
	wg.Wait()
	if ran != n {
		t.Errorf("%d calls were run, want %d", ran, n)
	}
	mustClose(t, s)
}

// A function that panics, or ends its goroutine, on the goroutine of another is
// its own caller's business.
func TestFunctionsThatDoNotReturn(t *testing.T) {
	for name, c := range map[string]struct {
		fn    func(store.Tx) error
		want  string
		alone bool // nobody else waits already
	}{
		"panic":         {func(store.Tx) error { panic("out of order") }, "panic: out of order", false},
		"panic, alone":  {func(store.Tx) error { panic("out of order") }, "panic: out of order", true},
		"Goexit":        {func(store.Tx) error { runtime.Goexit(); return nil }, errUnfinished.Error(), false},
		"Goexit, alone": {func(store.Tx) error { runtime.Goexit(); return nil }, errUnfinished.Error(), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			b := keepBusy(s)
			got, next := make(chan string, 1), make(chan error, 2)
			go func() {
				defer func() {
					if p := recover(); p != nil {
						got <- fmt.Sprint("panic: ", p)
					}
				}()
				got <- fmt.Sprint(s.Update(t.Context(), func(tx store.Tx) error {
					// Somebody finds the lock taken after its holder has looked.
					go func() { next <- s.Update(t.Context(), put("late", "v")) }()
					b.wait(1)
					return errors.Join(put("bad", "v")(tx), c.fn(tx))
				}))
			}()
			b.wait(1)
			want := 1
			if !c.alone {
				want++
				go func() { next <- s.Update(t.Context(), put("good", "v")) }()
				b.wait(2)
			}
			b.release()
			if got := <-got; got != c.want {
				t.Errorf("the caller got %q, want %q", got, c.want)
			}
			for range want {
				select {
				case err := <-next:
					if err != nil {
						t.Errorf("a caller after it got %v", err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("a caller after it has no answer")
				}
			}
			<-b.ended
			if n, err := s.Len(t.Context(), things, ""); n != want || err != nil {
				t.Errorf("%d records, %v, want the %d good ones", n, err, want)
			}
			mustClose(t, s)
		})
	}
}

// Callers whose transactions were run by another wait for the disk like any.
func TestCombinedCallsAreDurable(t *testing.T) {
	const n = 20
	begin := func(s *Store, ctx context.Context) chan error {
		b := keepBusy(s)
		answers := make(chan error, n)
		for i := range n {
			go func() { answers <- s.Update(ctx, put(fmt.Sprint(i), "v")) }()
		}
		b.wait(n)
		b.release()
		return answers
	}
	t.Run("synced", func(t *testing.T) {
		fs := &faultfs.FS{}
		s := mustOpen(t, options(fs))
		g := newGate(fs, isSync)
		answers := begin(s, t.Context())
		<-g.entered
		select {
		case err := <-answers:
			t.Fatalf("an answer (%v) before the sync", err)
		default:
		}
		g.release()
		for range n {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		image := fs.Crash()
		mustClose(t, s)
		s = mustOpen(t, options(image))
		if got, err := s.Len(t.Context(), things, ""); got != n || err != nil {
			t.Errorf("after a crash there are %d records, %v, want %d", got, err, n)
		}
		mustClose(t, s)
	})
	t.Run("failed", func(t *testing.T) {
		fs := &faultfs.FS{}
		s := mustOpen(t, options(fs))
		fs.SetHook(func(op faultfs.Op) error {
			if isSync(op) {
				return syscall.EIO
			}
			return nil
		})
		answers := begin(s, t.Context())
		for range n {
			if err := <-answers; !errors.Is(err, store.ErrFailed) {
				t.Errorf("%v, want ErrFailed", err)
			}
		}
		if err := s.Close(); !errors.Is(err, store.ErrFailed) {
			t.Errorf("Close: %v, want ErrFailed", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		fs := &faultfs.FS{}
		s := mustOpen(t, options(fs))
		g := newGate(fs, isSync)
		ctx, cancel := context.WithCancel(t.Context())
		answers := begin(s, ctx)
		<-g.entered
		cancel()
		for range n { // while the disk does nothing
			if err := <-answers; !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want context.Canceled", err)
			}
		}
		g.release()
		mustClose(t, s)
	})
}

// Callers that leave at any moment lose nothing of the others and leave nobody
// waiting: what was acknowledged is there, and what was refused before its time
// was over is not.
func TestCallersLeave(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, roomy(fs))
	const workers, each = 40, 150
	var acked atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			for i := range each {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(400))*time.Microsecond)
				key := fmt.Sprintf("%d-%d", w, i)
				ran := 0
				err := s.Update(ctx, func(tx store.Tx) error {
					ran++
					return put(key, "v")(tx)
				})
				switch {
				case err == nil && ran == 1:
					acked.Add(1)
					err := s.View(t.Context(), func(tx store.Tx) error {
						_, err := get(tx, key)
						return err
					})
					if err != nil {
						t.Errorf("%s was acknowledged: %v", key, err)
					}
				case err == nil || !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("%s: run %d times, %v", key, ran, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d calls were in time", acked.Load(), workers*each)
	mustUpdate(t, s, put("the last", "v"))
	mustClose(t, s)
}

// A call that is used again brings nothing along from its last use. What a busy
// log had left there made a caller who did not wait ask the log about a record
// that it does not have.
func TestCallsAreUsedAgain(t *testing.T) {
	s := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	last := func() *call {
		c := s.newCall(ctx, put("k", "v"))
		c.seq, c.busy = 5000, true
		c.notify.add("topic")
		return c
	}
	c := last()
	s.recycle(c)
	if c.seq != 0 || c.busy || c.notify.n != 0 {
		t.Errorf("a call that is free has %+v", c.outcome)
	}
	c = last()
	s.sleep(c)
	if !c.abandoned || c.seq != 0 || c.busy || c.notify.n != 0 || !errors.Is(c.err, context.Canceled) {
		t.Errorf("a call whose caller left has %+v", c.outcome)
	}
	mustClose(t, s)
}

// A caller that is to commit does so also when the function of another, which it runs before, ends
// its goroutine. Others would wait forever.
func TestLeaderWhoseGoroutineEnds(t *testing.T) {
	s := mustOpen(t, options(&faultfs.FS{}))
	for range 20 { // it does not lead every time: the log may not be idle yet
		inside, leave, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.Update(t.Context(), func(tx store.Tx) error {
				close(inside)
				<-leave
				return put("first", "v")(tx)
			})
		}()
		<-inside
		other := make(chan error, 1)
		go func() {
			other <- s.Update(t.Context(), func(store.Tx) error { runtime.Goexit(); return nil })
		}()
		for s.calls.Load() == nil {
			runtime.Gosched()
		}
		close(leave)
		<-ended
		if err := <-other; !errors.Is(err, errUnfinished) {
			t.Error(err)
		}
		mustUpdate(t, s, put("next", "v"))
	}
	mustClose(t, s)
}
