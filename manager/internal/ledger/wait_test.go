package ledger

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// held is one reserve in flight.
type held struct {
	token string
	reply Reply
	err   error
	took  time.Duration
	done  chan struct{}
}

// waiting runs f in a bubble whose clock moves only when everybody waits.
func waiting(t *testing.T, opts Options, f func(t *testing.T, l *Ledger)) {
	t.Helper()
	waitingOn(t, opts, func(st store.Store) store.Store { return st }, f)
}

func waitingOn(t *testing.T, opts Options, wrap func(store.Store) store.Store, f func(t *testing.T, l *Ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{})
		defer st.Close()
		f(t, ledgerOn(t, wrap(st), opts))
	})
}

// hold starts a reserve that may wait and returns once it does, or is over.
func hold(ctx context.Context, l *Ledger, key, token string, wait time.Duration) *held {
	h := &held{token: token, done: make(chan struct{})}
	req := reserveReq(key, token)
	req.Wait = wait
	start := time.Now()
	go func() {
		defer close(h.done)
		h.reply, h.err = l.Reserve(ctx, req, nil)
		h.took = time.Since(start)
	}()
	synctest.Wait()
	return h
}

func (h *held) expect(t *testing.T, state api.State) {
	t.Helper()
	<-h.done
	if h.err != nil || h.reply.State != state {
		t.Fatalf("%s: %v %v, want %v", h.token, h.reply.State, h.err, state)
	}
}

func (h *held) waits() bool {
	synctest.Wait()
	select {
	case <-h.done:
		return false
	default:
		return true
	}
}

func TestAllWaitersGetTheOutcome(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		var all []*held
		for i := range 20 {
			all = append(all, hold(t.Context(), l, "k", name("w", i), 30*time.Second))
		}
		if got := stats(t, l); got.Waiters != 20 {
			t.Errorf("%d waiters", got.Waiters)
		}
		time.Sleep(3 * time.Second)
		mustCommit(t, l, "k", "t0", "outcome")
		for _, h := range all {
			h.expect(t, api.StateCommitted)
			if !bytes.Equal(h.reply.Result, answer(201, "outcome")) || h.took != 3*time.Second {
				t.Errorf("%s: %q after %v", h.token, h.reply.Result, h.took)
			}
		}
		got := stats(t, l)
		if got.Waiters != 0 || got.Calls[OpReserve][OutcomeReplayed] != 20 || got.Calls[OpReserve][OutcomePending] != 0 {
			t.Errorf("%+v", got)
		}
		if len(l.waits.queues) != 0 {
			t.Error("a queue is left")
		}
	})
}

func TestReleaseWakesTheFirstInLine(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		const n = 5
		var all [n]*held
		for i := range all {
			all[i] = hold(t.Context(), l, "k", name("w", i), 30*time.Second)
		}
		last := "t0"
		for i, h := range all {
			if err := l.Release(t.Context(), releaseReq("k", last)); err != nil {
				t.Fatal(err)
			}
			h.expect(t, api.StateReserved)
			for _, other := range all[i+1:] {
				if !other.waits() {
					t.Fatalf("%s did not wait for its turn", other.token)
				}
			}
			last = h.token
		}
	})
}

func TestNewcomersDoNotOvertake(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		first := hold(t.Context(), l, "k", "first", 30*time.Second)
		// The first waiter has not been woken yet when the newcomer arrives.
		l.waits.mu.Lock()
		q := l.waits.queues[EntryKey("s", "k")]
		q.watcher.Stop()
		q.watcher = deafWatcher{}
		l.waits.mu.Unlock()
		if err := l.Release(t.Context(), releaseReq("k", "t0")); err != nil {
			t.Fatal(err)
		}
		second := hold(t.Context(), l, "k", "second", 30*time.Second)
		first.expect(t, api.StateReserved)
		if !second.waits() {
			t.Fatal("the newcomer went first")
		}
		mustCommit(t, l, "k", "first", "x")
		second.expect(t, api.StateCommitted)
	})
}

// TestHolderIsNotKeptWaiting: the answer to the holder's reserve was lost, and
// others are in line by the time it asks again.
func TestHolderIsNotKeptWaiting(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 30*time.Second)
		again := hold(t.Context(), l, "k", "t0", 30*time.Second)
		again.expect(t, api.StateReserved)
		if again.took != 0 {
			t.Errorf("the holder waited %v", again.took)
		}
		if !a.waits() {
			t.Error("the other one did not wait")
		}
		if got := stats(t, l); got.Calls[OpReserve][OutcomeRepeated] != 1 {
			t.Errorf("%+v", got.Calls)
		}
		// Nor is a mistake kept waiting.
		req := reserveReq("f", "t0")
		req.Fingerprint = "f"
		if _, err := l.Reserve(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		b := hold(t.Context(), l, "f", "b", 30*time.Second)
		req.Token, req.Fingerprint, req.Wait = "c", "g", 30*time.Second
		if _, err := l.Reserve(t.Context(), req, nil); !errors.Is(err, ErrFingerprintMismatch) {
			t.Errorf("another fingerprint: %v", err)
		}
		mustCommit(t, l, "k", "t0", "x")
		mustCommit(t, l, "f", "t0", "x")
		a.expect(t, api.StateCommitted)
		b.expect(t, api.StateCommitted)
	})
}

type deafWatcher struct{}

func (deafWatcher) C() <-chan struct{} { return nil }
func (deafWatcher) Stop()              {}

// deafStore loses every wake-up.
type deafStore struct{ store.Store }

func (deafStore) Watch(string) store.Watcher { return deafWatcher{} }

func TestLostWakeUpsOnlyCostTime(t *testing.T) {
	waitingOn(t, Options{PollInterval: 700 * time.Millisecond}, func(st store.Store) store.Store { return deafStore{st} },
		func(t *testing.T, l *Ledger) {
			mustReserve(t, l, "k", "t0", api.StateReserved)
			a := hold(t.Context(), l, "k", "a", 30*time.Second)
			b := hold(t.Context(), l, "k", "b", 30*time.Second)
			mustCommit(t, l, "k", "t0", "x")
			a.expect(t, api.StateCommitted)
			b.expect(t, api.StateCommitted)
			if a.took > 700*time.Millisecond || b.took > 700*time.Millisecond {
				t.Errorf("%v %v", a.took, b.took)
			}
		})
}

func TestWaitEndsInTime(t *testing.T) {
	waiting(t, Options{MaxWait: 10 * time.Second}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 2*time.Second)
		b := hold(t.Context(), l, "k", "b", time.Hour) // bounded by MaxWait
		a.expect(t, api.StatePending)
		b.expect(t, api.StatePending)
		if a.took != 2*time.Second || b.took != 10*time.Second {
			t.Errorf("waited %v and %v", a.took, b.took)
		}
		if b.reply.ExpiresIn != 50*time.Second {
			t.Errorf("pending for %v more", b.reply.ExpiresIn)
		}
		got := stats(t, l)
		if got.WaitsTimedOut != 2 || got.Waiters != 0 || got.Calls[OpReserve][OutcomePending] != 2 {
			t.Errorf("%+v", got)
		}
	})
}

func TestWaitingCanBeTurnedOff(t *testing.T) {
	waiting(t, Options{MaxWait: -1}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", time.Minute)
		a.expect(t, api.StatePending)
		if a.took != 0 {
			t.Errorf("waited %v", a.took)
		}
	})
}

func TestReservationThatRunsOutGoesToTheFirstInLine(t *testing.T) {
	waiting(t, Options{PendingTTL: 4 * time.Second, UnknownTTL: api.NoUnknown}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 30*time.Second)
		b := hold(t.Context(), l, "k", "b", 30*time.Second)
		a.expect(t, api.StateReserved)
		if a.took < 4*time.Second || a.took > 4*time.Second+2*minTimer {
			t.Errorf("a got it after %v", a.took)
		}
		b.expect(t, api.StateReserved)
		if b.took < a.took+4*time.Second || b.took > a.took+4*time.Second+2*minTimer {
			t.Errorf("b got it after %v", b.took)
		}
	})
}

func TestLeavingHandsTheTurnOn(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		ctx, cancel := context.WithCancel(t.Context())
		a := hold(ctx, l, "k", "a", 30*time.Second)
		b := hold(t.Context(), l, "k", "b", 30*time.Second)
		c := hold(t.Context(), l, "k", "c", 30*time.Second)
		cancel()
		<-a.done
		if !errors.Is(a.err, context.Canceled) {
			t.Errorf("a: %v", a.err)
		}
		if err := l.Release(t.Context(), releaseReq("k", "t0")); err != nil {
			t.Fatal(err)
		}
		b.expect(t, api.StateReserved)
		if b.took != 0 {
			t.Errorf("b was not woken but polled after %v", b.took)
		}
		if !c.waits() {
			t.Error("c did not wait")
		}
		mustCommit(t, l, "k", "b", "x")
		c.expect(t, api.StateCommitted)
	})
}

// TestHeadLeavesWithTheWakeUp: the head's context ends in the same instant in
// which the reservation is released; the next one must not sleep on.
func TestHeadLeavesWithTheWakeUp(t *testing.T) {
	for range 50 {
		waitingOn(t, Options{PollInterval: time.Hour}, func(st store.Store) store.Store { return st },
			func(t *testing.T, l *Ledger) {
				mustReserve(t, l, "k", "t0", api.StateReserved)
				ctx, cancel := context.WithCancel(t.Context())
				a := hold(ctx, l, "k", "a", 30*time.Second)
				b := hold(t.Context(), l, "k", "b", 30*time.Second)
				var wg sync.WaitGroup
				wg.Go(cancel)
				wg.Go(func() {
					if err := l.Release(t.Context(), releaseReq("k", "t0")); err != nil {
						t.Error(err)
					}
				})
				wg.Wait()
				<-a.done
				if a.err == nil { // a got it before it noticed
					mustCommit(t, l, "k", "a", "x")
					b.expect(t, api.StateCommitted)
				} else {
					b.expect(t, api.StateReserved)
				}
				if b.took != 0 {
					t.Fatalf("b slept for %v", b.took)
				}
			})
	}
}

func TestWaitersAreBounded(t *testing.T) {
	waiting(t, Options{MaxWaiters: 2}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		mustReserve(t, l, "other", "t0", api.StateReserved)
		mustReserve(t, l, "third", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 30*time.Second)
		b := hold(t.Context(), l, "other", "b", 30*time.Second)
		c := hold(t.Context(), l, "k", "c", 30*time.Second)
		c.expect(t, api.StatePending)
		if c.took != 0 {
			t.Errorf("the third waited %v", c.took)
		}
		mustCommit(t, l, "k", "t0", "x")
		a.expect(t, api.StateCommitted)
		d := hold(t.Context(), l, "third", "d", time.Second)
		if !d.waits() {
			t.Error("a free place was not used")
		}
		mustCommit(t, l, "other", "t0", "x")
		mustCommit(t, l, "third", "t0", "x")
		b.expect(t, api.StateCommitted)
		d.expect(t, api.StateCommitted)
		if got := stats(t, l); got.WaitsRefused != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestDrainEndsAllWaits(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 30*time.Second)
		b := hold(t.Context(), l, "k", "b", 30*time.Second)
		l.Drain()
		l.Drain()
		a.expect(t, api.StatePending)
		b.expect(t, api.StatePending)
		hold(t.Context(), l, "k", "c", 30*time.Second).expect(t, api.StatePending)
		if b.took != 0 {
			t.Errorf("drained after %v", b.took)
		}
	})
}

func TestHoldIsToldAndItsContextCounts(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		began, ended := 0, 0
		ctx, cancel := context.WithCancel(t.Context())
		holdFunc := func() (context.Context, func()) {
			began++
			return ctx, func() { ended++ }
		}
		if _, err := l.Reserve(t.Context(), reserveReq("k", "x"), holdFunc); err != nil || began != 0 {
			t.Fatalf("a call that does not wait was held: %v", err)
		}
		// The call's own context ends early, the wait continues with the other.
		bounded, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		req := reserveReq("k", "x")
		req.Wait = 20 * time.Second
		done := make(chan error)
		go func() {
			_, err := l.Reserve(bounded, req, holdFunc)
			done <- err
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if began != 1 || ended != 0 {
			t.Errorf("held %d times, %d over", began, ended)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || ended != 1 {
			t.Errorf("%v, ended %d", err, ended)
		}
	})
}

func TestStoreFailureEndsAWait(t *testing.T) {
	var st *faultyStore
	waitingOn(t, Options{}, func(s store.Store) store.Store { st = &faultyStore{Store: s}; return st },
		func(t *testing.T, l *Ledger) {
			mustReserve(t, l, "k", "t0", api.StateReserved)
			a := hold(t.Context(), l, "k", "a", 30*time.Second)
			b := hold(t.Context(), l, "k", "b", 30*time.Second)
			st.update.set(store.ErrFailed)
			<-a.done
			<-b.done
			if !errors.Is(a.err, store.ErrFailed) || !errors.Is(b.err, store.ErrFailed) {
				t.Errorf("%v, %v", a.err, b.err)
			}
		})
}

func TestSweeperRunsAndEnds(t *testing.T) {
	waiting(t, Options{PendingTTL: 5 * time.Second, CleanupInterval: 10 * time.Second, UnknownTTL: 10 * time.Second}, func(t *testing.T, l *Ledger) {
		for i := range 3 * sweepBatch {
			mustReserve(t, l, name("k", i), "t", api.StateReserved)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx, nil); close(done) }()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if got := stats(t, l); got.Pending != 3*sweepBatch {
			t.Errorf("before the first sweep: %+v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := stats(t, l); got.Pending != 0 || got.Unknown != 3*sweepBatch || got.Lapsed != 3*sweepBatch || got.Expired != 0 {
			t.Errorf("after the first sweep: %+v", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := stats(t, l); got.Unknown != 0 || got.Expired != 3*sweepBatch || got.Bytes != 0 {
			t.Errorf("after the second sweep: %+v", got)
		}
		cancel()
		<-done
	})
}

func TestSweeperReportsAndGoesOn(t *testing.T) {
	var st *faultyStore
	waitingOn(t, Options{PendingTTL: time.Second, CleanupInterval: time.Second},
		func(s store.Store) store.Store { st = &faultyStore{Store: s}; return st },
		func(t *testing.T, l *Ledger) {
			mustReserve(t, l, "k", "t", api.StateReserved)
			st.update.set(store.ErrNoSpace)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			var reported []error
			go func() { l.Run(ctx, func(err error) { reported = append(reported, err) }); close(done) }()
			time.Sleep(2500 * time.Millisecond)
			synctest.Wait()
			if len(reported) == 0 || !errors.Is(reported[0], store.ErrNoSpace) {
				t.Fatalf("reported %v", reported)
			}
			st.update.set(nil)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := stats(t, l); got.Pending != 0 || got.SweepErrors != uint64(len(reported)) {
				t.Errorf("%+v, reported %d", got, len(reported))
			}
			cancel()
			<-done
		})
}
