package quarantine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// server is a store whose clock a test sets.
type server struct {
	store.Store
	ahead atomic.Int64
}

type serverTx struct {
	store.Tx
	ahead time.Duration
}

func (t serverTx) Now() time.Time { return t.Tx.Now().Add(t.ahead) }

func (s *server) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(serverTx{tx, time.Duration(s.ahead.Load())}) })
}

func newServer(t *testing.T) *server {
	s := &server{Store: mem.New(mem.Options{})}
	t.Cleanup(func() { s.Close() })
	return s
}

// serve runs managers for a while, and returns how many changes they reported.
func (s *server) serve(t *testing.T, managers int, d time.Duration) (changes int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	var running sync.WaitGroup
	var n atomic.Int64
	for range managers {
		q, err := quarantine.OpenShared(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { q.Run(ctx, func(quarantine.State, quarantine.State) { n.Add(1) }) })
		time.Sleep(300 * time.Millisecond) // of the bubble
	}
	running.Wait()
	return int(n.Load())
}

func (s *server) left(t *testing.T) time.Duration {
	t.Helper()
	now, err := quarantine.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return now.Remaining
}

// TestManagersCountTheTimeTheyServe: together they count each second once, however the server's clock is set, and none
// while they are away.
func TestManagersCountTheTimeTheyServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		begin := func(d time.Duration) quarantine.State {
			t.Helper()
			now, err := quarantine.Begin(t.Context(), s, d, "")
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		first := begin(time.Hour)
		if s.left(t) != time.Hour || first.EpochFloor == 0 {
			t.Fatalf("%+v", first)
		}
		want := time.Hour
		for _, jump := range []time.Duration{0, 5 * time.Hour, -5 * time.Hour, -time.Hour} {
			s.ahead.Add(int64(jump))
			s.serve(t, 3, time.Minute)
			want -= time.Minute
			if left := s.left(t); left < want-3*time.Second || left > want+5*time.Second {
				t.Errorf("after a minute, the clock set by %v: %v are left, want %v", jump, left, want)
			}
			want = s.left(t)
			time.Sleep(24 * time.Hour) // nobody serves
			if left := s.left(t); left != want {
				t.Errorf("%v were left before a day without a manager, %v after it", want, left)
			}
		}
		if again := begin(time.Minute); again.Remaining != want || again.EpochFloor <= first.EpochFloor+1<<32 {
			t.Errorf("another begin: %+v after %+v, %v were left", again, first, want)
		}
		if changes := s.serve(t, 2, 2*time.Hour); s.left(t) != 0 || changes != 2 {
			t.Errorf("%v are left, and %d changes were reported, want the end at both", s.left(t), changes)
		}
		if ended, err := quarantine.End(t.Context(), s); err != nil || ended.Remaining != 0 || ended.EpochFloor <= first.EpochFloor {
			t.Errorf("end: %+v, %v", ended, err)
		}
	})
}

// TestBeginHoldsForTheNextTransaction: a manager obeys before it has looked for a quarantine by itself.
func TestBeginHoldsForTheNextTransaction(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	q, err := quarantine.OpenShared(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := quarantine.Begin(t.Context(), st, time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err = st.Update(t.Context(), func(tx store.Tx) error { // q itself has not looked since it was opened
		if left, err := q.Left(tx); err != nil || left > 0 {
			return errors.Join(refused, err)
		}
		return nil
	})
	if !errors.Is(err, refused) || q.Remaining() != 0 {
		t.Errorf("%v; the manager knows of %v", err, q.Remaining())
	}
}
