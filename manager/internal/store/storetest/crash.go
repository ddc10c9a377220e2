package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// CrashFactory prepares an empty set of data for one test, like a Factory. crash returns an Opener for what a machine
// would find if it lost power at this moment. The stores that are open on the data itself continue undisturbed.
type CrashFactory func(t *testing.T) (open Opener, crash func(t *testing.T) Opener)

// RunCrash runs the tests of what a crash leaves. It is for durable engines whose storage a test can inspect from
// outside.
func RunCrash(t *testing.T, factory CrashFactory) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(e *env, crash func(*testing.T) Opener)
	}{
		{"AcknowledgedSurvives", testAcknowledgedSurvives},
		{"NothingUndurableIsShown", testNothingUndurableIsShown},
		{"TransactionsAreWhole", testTransactionsAreWhole},
	} {
		t.Run(c.name, func(t *testing.T) {
			deep.Quick(t)
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			open, crash := factory(t)
			c.test(&env{T: t, ctx: ctx, open: open, caps: store.Capabilities{Durable: true}}, crash)
		})
	}
}

// loaded runs writers that raise counters, in two records each and an index entry, and calls look several times
// meanwhile.
func loaded(e *env, s store.Store, look func(acked []*atomic.Int64)) {
	const writers, looks = 4, 16
	acked := make([]*atomic.Int64, writers)
	for w := range acked {
		acked[w] = new(atomic.Int64)
	}
	done := make(chan struct{})
	e.concurrently(writers+1, func(ctx context.Context, w int) error {
		if w == writers {
			defer close(done)
			for range looks {
				look(acked)
			}
			return nil
		}
		for n := 1; ; n++ {
			select {
			case <-done:
				return nil
			default:
			}
			err := update(ctx, s, func(tx store.Tx) error {
				if err := putInt(tx, fmt.Sprint("a", w), n); err != nil {
					return err
				}
				if n%3 == 0 {
					return tx.Delete(things, fmt.Sprint("b", w))
				}
				return putInt(tx, fmt.Sprint("b", w), n)
			})
			if err != nil {
				return err
			}
			acked[w].Store(int64(n))
		}
	})
}

// after opens what a crash leaves and calls fn with it.
func after(e *env, open Opener, fn func(s store.Store)) {
	e.Helper()
	s := open(e.T)
	fn(s)
	if err := s.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
}

func (e *env) getInt(s store.Store, key string) (n int) {
	e.Helper()
	e.view(s, func(tx store.Tx) (err error) {
		n, err = getInt(tx, key)
		return err
	})
	return n
}

func testAcknowledgedSurvives(e *env, crash func(*testing.T) Opener) {
	s := e.store()
	loaded(e, s, func(acked []*atomic.Int64) {
		var want []int
		for _, n := range acked {
			want = append(want, int(n.Load()))
		}
		after(e, crash(e.T), func(s store.Store) {
			for w, n := range want {
				if got := e.getInt(s, fmt.Sprint("a", w)); got < n {
					e.Errorf("counter %d is %d after a crash, %d was acknowledged", w, got, n)
				}
			}
		})
	})
}

// testNothingUndurableIsShown crashes right after a reader got its answer. What the reader saw, by Get, by a scan or by
// a function that returned an error because of it, must still be there.
func testNothingUndurableIsShown(e *env, crash func(*testing.T) Opener) {
	s := e.store()
	round := 0
	loaded(e, s, func(acked []*atomic.Int64) {
		round++
		w := round % len(acked)
		var seen int
		look := func(tx store.Tx) (err error) {
			if round%2 == 0 {
				seen, err = getInt(tx, fmt.Sprint("a", w))
				return err
			}
			hits, err := tx.Scan(things, byName, store.Range{Limit: 100})
			if err != nil {
				return err
			}
			seen = 0
			for _, h := range hits {
				if h.Key == fmt.Sprint("a", w) {
					_, err = fmt.Sscanf(h.SortKey, "%d", &seen)
				}
			}
			return err
		}
		refused := errors.New("refused")
		var err error
		switch round % 4 {
		case 0, 1:
			err = s.View(e.ctx, look)
		default:
			err = s.Update(e.ctx, func(tx store.Tx) error {
				if err := look(tx); err != nil {
					return err
				}
				return refused
			})
			if err == refused {
				err = nil
			}
		}
		image := crash(e.T)
		if err != nil {
			e.Fatal(err)
		}
		after(e, image, func(s store.Store) {
			if got := e.getInt(s, fmt.Sprint("a", w)); got < seen {
				e.Errorf("counter %d is %d after a crash, a reader had seen %d", w, got, seen)
			}
		})
	})
}

func testTransactionsAreWhole(e *env, crash func(*testing.T) Opener) {
	s := e.store()
	loaded(e, s, func(acked []*atomic.Int64) {
		after(e, crash(e.T), func(s store.Store) {
			for w := range acked {
				a, b := e.getInt(s, fmt.Sprint("a", w)), e.getInt(s, fmt.Sprint("b", w))
				want := a
				if a%3 == 0 {
					want = 0
				}
				if b != want {
					e.Errorf("half a transaction after a crash: a%d is %d, b%d is %d", w, a, w, b)
				}
			}
		})
	})
}
