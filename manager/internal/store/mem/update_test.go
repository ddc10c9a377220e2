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

// roomy has a log that is never busy, so that no function is run again.
func roomy(fs *faultfs.FS) Options {
	opts := options(fs)
	opts.Log.SegmentBytes = 1 << 20
	return opts
}

// A function that panics, or ends its goroutine, holds nobody else up, and nothing that it wrote stays.
func TestFunctionsThatDoNotReturn(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("out of order") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, options(&faultfs.FS{}))
			inside, ended := make(chan struct{}), make(chan any, 1)
			next := make(chan error, 1)
			go func() {
				defer func() { ended <- recover() }()
				_ = s.Update(t.Context(), func(tx store.Tx) error {
					if err := put("bad", "v")(tx); err != nil {
						return err
					}
					close(inside)
					end()
					return nil
				})
			}()
			go func() {
				<-inside
				next <- s.Update(t.Context(), put("good", "v"))
			}()
			if p := <-ended; (p != nil) != (name == "panic") {
				t.Errorf("the caller panics with %v", p)
			}
			select {
			case err := <-next:
				if err != nil {
					t.Errorf("the next caller got %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the next caller has no answer")
			}
			if n, err := s.Len(t.Context(), things, ""); n != 1 || err != nil {
				t.Errorf("%d records, %v, want the good one", n, err)
			}
			mustClose(t, s)
		})
	}
}

// Callers that come together all wait for the disk.
func TestCallersThatComeTogetherAreDurable(t *testing.T) {
	const n = 20
	begin := func(s *Store, ctx context.Context) chan error {
		answers := make(chan error, n)
		for i := range n {
			go func() { answers <- s.Update(ctx, put(fmt.Sprint(i), "v")) }()
		}
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
		applied := 0
		count := func(err error) {
			if err == nil || errors.Is(err, store.ErrUnconfirmed) {
				applied++
			}
		}
		for range n - 1 { // while the disk does nothing; one of them may be committing
			err := <-answers
			if count(err); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want context.Canceled", err)
			}
		}
		g.release()
		err := <-answers
		if count(err); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		mustClose(t, s)
		s = mustOpen(t, options(fs))
		if got, err := s.Len(t.Context(), things, ""); got != applied || got == 0 || err != nil {
			t.Errorf("%d records, %v; %d writes were applied", got, err, applied)
		}
		mustClose(t, s)
	})
}

// Callers that leave at any moment lose nothing of the others and leave nobody
// waiting: what was acknowledged is there, and what was refused before its time
// was over is not.
func TestLeavingCallersLoseNothingOfOthers(t *testing.T) {
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
