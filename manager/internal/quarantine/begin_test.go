package quarantine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// running is the quarantine of a manager that runs.
type running interface {
	State() quarantine.State
	Remaining() time.Duration
	Begin(ctx context.Context, d, window time.Duration, why string) error
	Doubt(ctx context.Context, d time.Duration, why string) error
	Trust(ctx context.Context) (bool, error)
	Extend(ctx context.Context, d time.Duration, why string) error
	End(ctx context.Context) (quarantine.State, error)
}

// TestManagerBeginsAndEndsIt: what a manager does with its quarantine holds over restarts, and is reported.
func TestManagerBeginsAndEndsIt(t *testing.T) {
	for name, world := range map[string]func(t *testing.T) (restart func() running, run func(context.Context, running, func(before, after quarantine.State))){
		"directory": func(t *testing.T) (func() running, func(context.Context, running, func(before, after quarantine.State))) {
			dir := t.TempDir()
			return func() running { return open(t, dir) }, func(ctx context.Context, q running, changed func(before, after quarantine.State)) {
				q.(*quarantine.Quarantine).Run(ctx, changed, func(err error) { t.Error(err) })
			}
		},
		"server": func(t *testing.T) (func() running, func(context.Context, running, func(before, after quarantine.State))) {
			st := mem.New(mem.Options{})
			t.Cleanup(func() { _ = st.Close() })
			return func() running {
					q, err := quarantine.OpenShared(t.Context(), st)
					if err != nil {
						t.Fatal(err)
					}
					return q
				}, func(ctx context.Context, q running, changed func(before, after quarantine.State)) {
					q.(*quarantine.Shared).Run(ctx, changed)
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				restart, run := world(t)
				q := restart()
				var reported []bool // whether there is a quarantine
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					run(ctx, q, func(_, after quarantine.State) { reported = append(reported, after.Remaining > 0) })
				}()
				synctest.Wait() // Run reports what changes after its start
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				// want checks what the manager knows, and what another one would that starts now.
				want := func(left time.Duration, unsure bool, why ...string) {
					t.Helper()
					time.Sleep(3 * time.Second)
					for what, q := range map[string]running{"it": q, "the next start": restart()} {
						s := q.State()
						if off := left - s.Remaining; off < -time.Second || off > 10*time.Second || s.Unsure != unsure || !slices.Equal(s.Why, why) {
							t.Errorf("%s has %+v, want %v %v %v", what, s, left, unsure, why)
						}
					}
				}
				must(q.Doubt(ctx, time.Hour, "new"))
				want(time.Hour, true, "new")
				ended, err := q.Trust(ctx)
				must(err)
				if !ended {
					t.Error("the peers trust it")
				}
				want(0, false)
				must(q.Doubt(ctx, time.Hour, "new"))
				must(q.Begin(ctx, time.Minute, 0, "a gate knows more")) // no shorter than it was
				must(q.Begin(ctx, 2*time.Hour, 0, "a peer knows more"))
				must(q.Begin(ctx, time.Minute, 0, "a peer knows more"))
				must(q.Doubt(ctx, 9*time.Hour, "new"))
				floor := q.State().EpochFloor
				if ended, err := q.Trust(ctx); err != nil || ended || floor == 0 {
					t.Error("somebody knew more, and yet all trust it", err, floor)
				}
				want(2*time.Hour, false, "a gate knows more", "a peer knows more")
				must(q.Extend(ctx, time.Minute, "two of them"))
				want(2*time.Hour-6*time.Second, false, "a gate knows more", "a peer knows more")
				was, err := q.End(ctx)
				if must(err); was.Remaining == 0 || len(was.Why) != 2 {
					t.Errorf("it was %+v", was)
				}
				want(0, false)
				must(q.Extend(ctx, time.Minute, "two of them"))
				must(q.Extend(ctx, time.Minute, "two of them"))
				want(time.Minute, false, "two of them")
				time.Sleep(2 * time.Minute)
				want(0, false)
				if q.State().EpochFloor != floor {
					t.Errorf("the floor went from %d to %d", floor, q.State().EpochFloor)
				}
				stop()
				<-done
				if on := []bool{true, false, true, false, true, false}; !slices.Equal(slices.Compact(reported), on) {
					t.Errorf("reported %v", reported)
				}
			})
		})
	}
}
