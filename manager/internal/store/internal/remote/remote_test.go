package remote

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func TestPauseEndsWithItsContext(t *testing.T) {
	if err := Pause(t.Context(), time.Nanosecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pause(ctx, 1000*time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCountsAreReused for fifty times as long as they took, and never for more than three seconds.
func TestCountsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lengths
		counts := 0
		ask := func(index string, takes time.Duration, want int) {
			t.Helper()
			n, err := l.Len(t.Context(), "things", index, func() (int, error) {
				time.Sleep(takes)
				counts++
				return counts, nil
			})
			if n != want || err != nil {
				t.Errorf("%d, %v; want %d", n, err, want)
			}
		}
		for _, c := range []struct{ takes, fresh time.Duration }{{time.Millisecond, 50 * time.Millisecond}, {time.Second, 3 * time.Second}} {
			ask("state", c.takes, counts+1)
			time.Sleep(c.fresh - c.takes - 1)
			ask("state", c.takes, counts)
			ask(fmt.Sprint("another", counts), 0, counts+1)
			ask("state", c.takes, counts-1)
			time.Sleep(time.Nanosecond)
		}
		failed := errors.New("failed")
		if _, err := l.Len(t.Context(), "things", "", func() (int, error) { return 0, failed }); !errors.Is(err, failed) {
			t.Error(err)
		}
		ask("", 0, counts+1)
	})
	for _, names := range [][2]string{{"NO", ""}, {"things", "NO"}} {
		if _, err := new(Lengths).Len(t.Context(), store.Collection(names[0]), names[1], nil); err == nil {
			t.Errorf("%q: no error", names)
		}
	}
}

func hits(keys ...string) (out []store.Hit) {
	for _, key := range keys {
		out = append(out, store.Hit{SortKey: key, Key: key})
	}
	return out
}

func TestClaims(t *testing.T) {
	var c Claims
	var a, b Claimer
	take := func(by *Claimer, limit, run int, want, wantRest string) {
		t.Helper()
		taken, rest := c.Take(by, "things", hits("1", "2", "3", "4"), limit, run)
		if fmt.Sprint(taken) != want || fmt.Sprint(rest) != wantRest {
			t.Errorf("took %v before %v, want %s before %s", taken, rest, want, wantRest)
		}
	}
	if n := c.Window(2, 0); n != 2 {
		t.Errorf("the window is %d", n)
	}
	take(&a, 2, 0, "[{1 1} {2 2}]", "[{3 3} {4 4}]")
	if n := c.Window(2, 1); n != 12 {
		t.Errorf("the window after a conflict is %d", n)
	}
	if n := c.Window(store.MaxScan, 3); n != store.MaxScan {
		t.Errorf("the largest window is %d", n)
	}
	take(&b, 5, 3, "[{3 3} {4 4}]", "[]")
	if !a.Has("things", "1") || a.Has("others", "1") || a.Has("things", "3") {
		t.Error("it does not know what it has")
	}
	c.Release(&b)
	if c.TakeAll(&b, "things", hits("3", "1")) || b.Has("things", "3") {
		t.Error("it took what is taken")
	}
	if !c.TakeAll(&b, "things", hits("3", "4")) || !c.TakeAll(&b, "others", hits("1")) {
		t.Error("it did not take what is free")
	}
	c.Release(&a)
	take(&a, 1, 0, "[{1 1}]", "[{2 2}]")
}

// A caller waits no longer for another one's count than its context lasts, and not at all for that of another collection.
func TestCountsDoNotHoldOthers(t *testing.T) {
	var l Lengths
	counting, done := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = l.Len(context.Background(), "things", "", func() (int, error) { close(counting); <-done; return 1, nil })
	}()
	<-counting
	defer close(done)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := l.Len(ctx, "things", "", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n, err := l.Len(t.Context(), "others", "", func() (int, error) { return 2, nil }); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
