package downtime_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
)

// A shared store counts as unreached once no beat has got through for SharedGap, and as reached from the first one that does. A
// manager that stood still, and a store that refuses the beat, say nothing about the way to it.
func TestUnreached(t *testing.T) {
	w := newWorld(t)
	s := w.started(true)
	beat := func(want error) {
		t.Helper()
		if err := s.Beat(t.Context()); !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	}
	want := func(d time.Duration) {
		t.Helper()
		if got := s.Unreached(); got != d {
			t.Errorf("%v, want %v", got, d)
		}
	}
	beat(nil)
	w.advance(time.Hour)
	want(0)
	w.refusal = fmt.Errorf("%w: connection refused", store.ErrUnavailable)
	beat(store.ErrUnavailable)
	w.advance(downtime.SharedGap)
	want(0)
	beat(store.ErrUnavailable)
	w.advance(time.Second)
	want(downtime.SharedGap + time.Second)
	w.refusal = nil
	beat(nil)
	want(0)
	w.refusal = store.ErrFull
	beat(store.ErrFull)
	w.advance(downtime.SharedGap + time.Second)
	want(0)
}

// On a shared engine only the absence of all managers is downtime.
func TestDowntimeOfASharedStoreNeedsAllManagersGone(t *testing.T) {
	w := newWorld(t)
	a, b := w.started(true), w.started(true)
	w.lease(a, "a", time.Minute)
	beat := func(s *downtime.Store, seconds int) {
		for range seconds / 2 {
			w.advance(2 * time.Second)
			if err := s.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	beat(a, 30) // b stands still
	w.wantLeft(b, "a", 30*time.Second)
	w.wantLeft(w.started(true), "a", 30*time.Second)
	if len(w.reports) != 0 {
		t.Fatalf("one of them served: %+v", w.reports)
	}
	beat(a, 4)
	w.advance(4 * time.Second)
	w.wantLeft(b, "a", 22*time.Second)
	beat(b, 2)
	w.advance(time.Hour)
	w.wantLeft(a, "a", 20*time.Second) // both stood still
	w.wantLeft(b, "a", 20*time.Second)
	beat(b, 2)
	w.advance(time.Hour)
	w.wantLeft(w.started(true), "a", 18*time.Second) // both ended
}

// Several managers come back at once. Each of them waits, and time passes once for all: w's own clock would let it pass
// once for each.
func TestManagersThatReturnTogetherGiveTimeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.bubble = true
		s := w.started(true)
		for i := range 3000 {
			w.lease(s, fmt.Sprint(i), time.Duration(1000+i)*time.Second)
		}
		w.advance(time.Hour)
		var managers sync.WaitGroup
		for range 4 {
			managers.Go(func() {
				m := downtime.New(mortal{w.engine, w, true}, downtime.Options{Leases: []store.Leases{leasesOf("one"), leasesOf("two")}, Clock: w.time, Wait: w.wait})
				if err := m.Start(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		managers.Wait()
		for i := range 3000 {
			w.wantLeft(s, fmt.Sprint(i), time.Duration(1000+i)*time.Second)
		}
	})
}
