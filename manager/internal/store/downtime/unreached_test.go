package downtime_test

import (
	"errors"
	"fmt"
	"testing"
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
