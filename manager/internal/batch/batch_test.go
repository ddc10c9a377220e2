package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// gated is a batcher whose batches wait for the test.
type gated struct {
	*Batcher[string]
	pass chan error

	mu      sync.Mutex
	batches []string
}

// test runs f in a bubble of time of its own. A call of do waits, or runs, when synctest.Wait returns.
func test(t *testing.T, b *Batcher[string], f func(t *testing.T, g *gated)) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{Batcher: b, pass: make(chan error)}
		g.Life = NewLife(t.Context())
		g.Run = func(ctx context.Context, calls []*Call[string]) error {
			g.mu.Lock()
			g.batches = append(g.batches, names(calls))
			g.mu.Unlock()
			select {
			case err := <-g.pass:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		f(t, g)
		g.Life.End()
	})
}

func names(calls []*Call[string]) string {
	var all []string
	for _, c := range calls {
		all = append(all, c.Arg)
	}
	return strings.Join(all, " ")
}

// do starts a call, which waits or runs when do returns.
func (g *gated) do(ctx context.Context, name string, size int) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- g.Do(ctx, &Call[string]{Arg: name, Size: size}) }()
	synctest.Wait()
	return answer
}

// goOn lets n batches end.
func (g *gated) goOn(n int) {
	for range n {
		g.pass <- nil
	}
	synctest.Wait()
}

func (g *gated) want(t *testing.T, batches ...string) {
	t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.batches, batches) {
		t.Errorf("batches %q, want %q", g.batches, batches)
	}
}

func answered(t *testing.T, want error, answers ...<-chan error) {
	t.Helper()
	synctest.Wait()
	for i, a := range answers {
		select {
		case err := <-a:
			if !errors.Is(err, want) {
				t.Errorf("call %d: error %v, want %v", i, err, want)
			}
		default:
			t.Errorf("call %d has no answer", i)
		}
	}
}

func TestCallsThatWaitGoTogether(t *testing.T) {
	test(t, &Batcher[string]{Lanes: 2}, func(t *testing.T, g *gated) {
		var all []<-chan error
		for _, name := range strings.Fields("a b c d e") {
			all = append(all, g.do(t.Context(), name, 0))
		}
		g.want(t, "a", "b")
		if n := g.Waiting(); n != 3 || g.Idle() {
			t.Errorf("%d calls wait, idle: %t", n, g.Idle())
		}
		g.goOn(3)
		g.want(t, "a", "b", "c d e")
		answered(t, nil, all...)
		if !g.Idle() {
			t.Error("a lane runs without calls")
		}
	})
}

func TestBoundsOfABatch(t *testing.T) {
	for name, c := range map[string]struct {
		b     *Batcher[string]
		sizes []int
		want  []string
	}{
		"count":           {&Batcher[string]{Count: 2}, []int{1, 1, 1}, []string{"0:1 1:1", "2:1"}},
		"size":            {&Batcher[string]{Size: 4}, []int{2, 2, 1, 9, 1}, []string{"0:2 1:2", "2:1", "3:9", "4:1"}},
		"neither":         {&Batcher[string]{}, []int{1, 2, 3}, []string{"0:1 1:2 2:3"}},
		"the order stays": {&Batcher[string]{Size: 4}, []int{3, 2, 1}, []string{"0:3", "1:2 2:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, c.b, func(t *testing.T, g *gated) {
				all := []<-chan error{g.do(t.Context(), "first", 0)}
				for i, size := range c.sizes {
					all = append(all, g.do(t.Context(), fmt.Sprintf("%d:%d", i, size), size))
				}
				g.goOn(1 + len(c.want))
				g.want(t, append([]string{"first"}, c.want...)...)
				answered(t, nil, all...)
			})
		})
	}
}

func TestCallsThatDoNotFitDoNotHoldUpOthers(t *testing.T) {
	distinct := func() func(*Call[string]) bool {
		have := make(map[string]bool)
		return func(c *Call[string]) bool {
			has := have[c.Arg]
			have[c.Arg] = true
			return !has
		}
	}
	test(t, &Batcher[string]{Fits: distinct}, func(t *testing.T, g *gated) {
		all := []<-chan error{g.do(t.Context(), "first", 0)}
		for _, name := range strings.Fields("a a b a c") {
			all = append(all, g.do(t.Context(), name, 0))
		}
		g.goOn(4)
		g.want(t, "first", "a b c", "a", "a")
		answered(t, nil, all...)
	})
}

func TestAnErrorIsThatOfTheWholeBatch(t *testing.T) {
	failed := errors.New("failed")
	test(t, &Batcher[string]{}, func(t *testing.T, g *gated) {
		a, b, c := g.do(t.Context(), "a", 0), g.do(t.Context(), "b", 0), g.do(t.Context(), "c", 0)
		g.pass <- nil
		g.pass <- failed
		answered(t, nil, a)
		answered(t, failed, b, c)
	})
}

func TestCallersThatLeave(t *testing.T) {
	test(t, &Batcher[string]{}, func(t *testing.T, g *gated) {
		ctx, leave := context.WithCancel(t.Context())
		runs, waits, stays := g.do(ctx, "runs", 0), g.do(ctx, "waits", 0), g.do(t.Context(), "stays", 0)
		leave()
		answered(t, context.Canceled, runs, waits)
		if n := g.Waiting(); n != 1 {
			t.Errorf("%d calls wait", n)
		}
		answered(t, context.Canceled, g.do(ctx, "late", 0))
		g.goOn(2)
		g.want(t, "runs", "stays")
		answered(t, nil, stays)
	})
}

// TestABatchThatNobodyWaitsForEnds, if it should, and not before the last caller has left.
func TestABatchThatNobodyWaitsForEnds(t *testing.T) {
	for _, ends := range []bool{true, false} {
		test(t, &Batcher[string]{EndLeft: ends}, func(t *testing.T, g *gated) {
			ctx1, leave1 := context.WithCancel(t.Context())
			ctx2, leave2 := context.WithCancel(t.Context())
			first, a, b := g.do(t.Context(), "first", 0), g.do(ctx1, "a", 0), g.do(ctx2, "b", 0)
			g.goOn(1)
			next := g.do(t.Context(), "next", 0)
			leave1()
			answered(t, context.Canceled, a)
			g.want(t, "first", "a b")
			leave2()
			answered(t, context.Canceled, b)
			if !ends {
				g.want(t, "first", "a b")
				g.goOn(1)
			}
			g.want(t, "first", "a b", "next")
			g.goOn(1)
			answered(t, nil, first, next)
		})
	}
}

func TestABatchEndsInTime(t *testing.T) {
	test(t, &Batcher[string]{Within: time.Second}, func(t *testing.T, g *gated) {
		a, b := g.do(t.Context(), "a", 0), g.do(t.Context(), "b", 0)
		time.Sleep(time.Second)
		answered(t, context.DeadlineExceeded, a)
		g.goOn(1)
		answered(t, nil, b)
	})
}

// TestBatchesThatHang do not hold up others for longer than Overdue. The lanes that this takes end later.
func TestBatchesThatHang(t *testing.T) {
	test(t, &Batcher[string]{Lanes: 1, Overdue: time.Second}, func(t *testing.T, g *gated) {
		var all []<-chan error
		for _, name := range strings.Fields("a b c") {
			all = append(all, g.do(t.Context(), name, 0))
		}
		time.Sleep(time.Second - 1)
		g.want(t, "a")
		time.Sleep(time.Nanosecond)
		g.want(t, "a", "b c")
		all = append(all, g.do(t.Context(), "d", 0))
		time.Sleep(time.Second)
		g.want(t, "a", "b c", "d")
		all = append(all, g.do(t.Context(), "e", 0))
		g.goOn(2)
		g.want(t, "a", "b c", "d") // one lane is enough
		g.goOn(2)
		g.want(t, "a", "b c", "d", "e")
		answered(t, nil, all...)
	})
}

func TestTheEndOfLife(t *testing.T) {
	closed := errors.New("closed")
	test(t, &Batcher[string]{Closed: closed}, func(t *testing.T, g *gated) {
		runs, waits := g.do(t.Context(), "runs", 0), g.do(t.Context(), "waits", 0)
		g.Life.End() // waits for the lane
		answered(t, closed, runs, waits, g.do(t.Context(), "late", 0))
		g.want(t, "runs")
		g.Closed = nil
		answered(t, context.Canceled, g.do(t.Context(), "late", 0))
	})
}

func TestFinishAndPutBack(t *testing.T) {
	alone := errors.New("alone")
	runs := 0
	b := Batcher[int]{Life: NewLife(t.Context())}
	defer b.Life.End()
	begin := make(chan struct{})
	b.Run = func(_ context.Context, calls []*Call[int]) error {
		if runs++; runs == 1 {
			<-begin
			return nil
		}
		for i, c := range calls {
			switch {
			case c.Arg == 1:
				if !c.Finish(alone) || c.Finish(nil) {
					t.Error("Finish")
				}
			case runs == 2:
				c.PutBack()
			case i != 0 || c.Arg != 2:
				t.Errorf("call %d of run %d is %d", i, runs, c.Arg)
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			if err := b.Do(t.Context(), &Call[int]{Arg: i}); (i == 1) != errors.Is(err, alone) {
				t.Errorf("call %d: %v", i, err)
			}
		})
		for b.Idle() || b.Waiting() != i { // the first one runs, so it does not wait
			runtime.Gosched()
		}
	}
	close(begin)
	wg.Wait()
	if runs != 3 {
		t.Errorf("%d runs", runs)
	}
}

func TestAPanicIsThatOfTheCallers(t *testing.T) {
	b := Batcher[bool]{Life: NewLife(t.Context())}
	defer b.Life.End()
	b.Run = func(_ context.Context, calls []*Call[bool]) error {
		if calls[0].Arg {
			panic("at the disco")
		}
		return nil
	}
	raised := func(f func()) (p any) {
		defer func() { p = recover() }()
		f()
		return nil
	}
	if err, ok := raised(func() { _ = b.Do(t.Context(), &Call[bool]{Arg: true}) }).(error); !ok || !strings.Contains(err.Error(), "at the disco") {
		t.Errorf("raised %v", err)
	}
	if err := b.Do(t.Context(), &Call[bool]{}); err != nil {
		t.Error(err)
	}
	// Nobody is there to notice it.
	c := &Call[bool]{Arg: true}
	c.state.Store(left)
	if raised(func() { b.run(&running[bool]{calls: []*Call[bool]{c}, ctx: t.Context()}) }) == nil {
		t.Error("a panic was lost")
	}
}

// TestCallersAndLanesRace: each call that is answered was made once, and no other was made after its caller had left in the
// queue.
func TestCallersAndLanesRace(t *testing.T) {
	type call struct{ runs atomic.Int64 }
	b := Batcher[call]{Life: NewLife(t.Context()), Lanes: 2, Count: 4, Size: 8, EndLeft: true, Overdue: time.Millisecond}
	b.Run = func(_ context.Context, calls []*Call[call]) error {
		if len(calls) > 4 {
			t.Errorf("%d calls", len(calls))
		}
		for _, c := range calls {
			if c.Arg.runs.Add(1) == 1 && rand.IntN(8) == 0 {
				c.Arg.runs.Add(-1)
				c.PutBack()
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(2) == 0 {
					go cancel()
				}
				c := &Call[call]{Size: rand.IntN(5)}
				if err := b.Do(ctx, c); err == nil && c.Arg.runs.Load() != 1 {
					t.Errorf("%d runs", c.Arg.runs.Load())
				}
				cancel()
			}
		})
	}
	wg.Wait()
	b.Life.End()
	if !b.Idle() || b.Waiting() > 0 {
		t.Error("calls are left")
	}
}

func TestLife(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := NewLife(ctx)
	cancel()
	if l.Context().Err() != nil {
		t.Error("the life ended with the context of its beginning")
	}
	var ran atomic.Bool
	if !l.Go(func() { <-l.Context().Done(); ran.Store(true) }) {
		t.Error("nothing starts")
	}
	l.End()
	if !ran.Load() || l.Go(func() { t.Error("started after the end") }) {
		t.Error("End did not wait, or did not end")
	}
}
