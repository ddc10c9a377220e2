// Package jobstest is the contract of the job queue as a test suite. Run takes a
// factory for any engine of the store, and checks every sentence of the queue's
// documentation on it.
//
// No test needs sleep to be right. If time must pass, the suite moves the clock
// by which the queue decides. An event that must not have happened yet is always
// hours away, on every engine, however slow the machine is.
package jobstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Engine is a kind of store to test the queue on.
type Engine struct {
	// Name of the engine, for messages.
	Name string
	// Open returns an empty store. It registers its clean-up with t.
	Open func(t testing.TB) *Instance
	// Jobs and Workers are the size of the test of concurrent claims. 0 means
	// 10,000 and 50. Only make test-deep takes all of the jobs, make test a tenth.
	Jobs, Workers int
	// Runs bounds the runs of the property test, each on its own store, in make test-deep. 0 leaves
	// the number to rapid, which makes 100. make test makes at most 8.
	Runs int
	// Divided are the names of engines, this one among them, that divide the cases beyond the core of the suite between
	// them in make test: each runs on one of them, and in make test-deep on the others. Nil: this engine runs all cases.
	Divided []string
	// Slow leaves out tests that take many transactions and show nothing about the
	// engine: the bounds of the queue itself are not tested, and the property test
	// compares all jobs less often.
	Slow bool
	// CheckSums compares what the queue has summed up with a count of all jobs. It is called when no other call runs.
	CheckSums func(context.Context, *jobs.Queue) error
}

// Instance is one store.
type Instance struct {
	Store store.Store
	// Peer opens the same data for another manager. Nil: the engine is not shared,
	// and several queues use one Store.
	Peer func(t testing.TB) store.Store
	// Reopen closes Store and returns it opened again. Nil: the engine is
	// volatile.
	Reopen func(t testing.TB) store.Store
}

// Run runs the suite.
func Run(t *testing.T, e Engine) {
	t.Logf("engine %s", e.Name)
	type group struct {
		name  string
		core  bool // runs on each engine in make test, too; under the race detector only if callers compete in it
		tests map[string]func(*env)
	}
	groups := []group{
		{"submit", true, submitTests},
		{"key", true, keyTests},
		{"dedup", false, dedupTests},
		{"claim", true, claimTests},
		{"lease", true, leaseTests},
		{"finish", true, finishTests},
		{"retry", false, retryTests},
		{"cancel", false, cancelTests},
		{"pause", false, pauseTests},
		{"dead letters", false, deadTests},
		{"actions", false, actionTests},
		{"deadlines", true, deadlineTests},
		{"batches", true, batchTests},
		{"limits", true, limitTests},
		{"keyed", true, keyedTests},
		{"unreadable limits", true, unreadableLimitTests},
		{"events", true, eventTests},
		{"wait", true, waitTests},
		{"read", false, readTests},
		{"duties", false, dutyTests},
		{"durable", true, durableTests},
		{"unreadable", false, unreadableTests},
		{"usage", true, usageTests},
		{"concurrent", true, concurrentTests},
	}
	if !e.Slow {
		groups = append(groups, group{"bounds", false, boundTests})
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			if group.name == "bounds" { // much data, one caller
				deep.Sequential(t)
			}
			for name, f := range group.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					compete := group.name == "limits" || group.name == "concurrent" // for longer in make test-deep
					core := group.core && (compete || !deep.Race)
					switch {
					case !core && e.Divided != nil:
						deep.Case(t, name, e.Name, e.Divided)
					case !compete:
						deep.Quick(t)
					}
					v := newEnv(t, e)
					f(v)
					if !strings.HasPrefix(group.name, "unreadable") {
						v.checkSums()
					}
				})
			}
		})
	}
	t.Run("property", func(t *testing.T) {
		t.Parallel()
		testProperty(t, e)
	})
}

// env is the environment of one test.
type env struct {
	*testing.T
	engine Engine
	in     *Instance
	clock  *clock
	q      *jobs.Queue
	ctx    context.Context
}

// patience bounds a case of the suite. It only ends a hang: a busy machine needs more than two minutes for the longest.
const patience = 10 * time.Minute

func newEnv(t *testing.T, e Engine) *env {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	v := &env{T: t, engine: e, clock: new(clock), ctx: ctx}
	v.in = v.clock.move(e.Open(t))
	v.q = v.queue(jobs.Options{})
	return v
}

// queue opens a queue on the test's store.
func (e *env) queue(o jobs.Options) *jobs.Queue {
	e.Helper()
	return e.queueOn(e.in.Store, o)
}

func (e *env) queueOn(s store.Store, o jobs.Options) *jobs.Queue {
	e.Helper()
	q, err := jobs.New(s, o)
	if err != nil {
		e.Fatalf("New: %v", err)
	}
	e.Cleanup(q.Close)
	return q
}

// peer is the store as another manager sees it.
func (e *env) peer() store.Store {
	if e.in.Peer == nil {
		return e.in.Store
	}
	return e.in.Peer(e)
}

// restart replaces the queue by one that has no memory of its own, on a store that was opened again where that is possible.
func (e *env) restart(o jobs.Options) {
	e.Helper()
	e.q.Close()
	if e.in.Reopen == nil {
		e.q = e.queueOn(e.peer(), o)
		return
	}
	e.in.Store = e.in.Reopen(e)
	e.q = e.queue(o)
}

// run lets a queue do its duties until stop is called.
func (e *env) run(q *jobs.Queue, report func(jobs.DutyReport, error)) (stop func()) {
	ctx, cancel := context.WithCancel(e.ctx)
	var running sync.WaitGroup
	running.Go(func() { q.Run(ctx, report) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (e *env) checkSums() {
	e.Helper()
	if err := e.engine.CheckSums(e.ctx, e.q); err != nil {
		e.Fatalf("the sums: %v", err)
	}
}

// now is the store's time.
func (e *env) now() time.Time {
	e.Helper()
	var at time.Time
	err := e.in.Store.View(e.ctx, func(tx store.Tx) error {
		at = tx.Wall()
		return nil
	})
	if err != nil {
		e.Fatalf("the store's clock: %v", err)
	}
	return at
}

// pass advances the store's clock by d.
func (e *env) pass(d time.Duration) { e.clock.advance(d) }

// eventually waits until cond holds.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			e.Fatalf("gave up waiting until %s", what)
		}
	}
}

// span is a time that only passes when the test says so.
const span = 3 * time.Hour

// far is a time that never passes during a test.
const far = 100 * 24 * time.Hour

func (e *env) submit(s jobs.Submission) jobs.Outcome {
	e.Helper()
	if s.Function == "" {
		s.Function = "f"
	}
	out, err := e.q.Enqueue(e.ctx, s)
	if err != nil {
		e.Fatalf("Enqueue(%+v): %v", s, err)
	}
	return out
}

// job submits and returns the new job.
func (e *env) job(s jobs.Submission) jobs.Job {
	e.Helper()
	out := e.submit(s)
	if !out.Created() {
		e.Fatalf("Enqueue(%+v) = %+v, want a new job", s, out)
	}
	return out.Job
}

func (e *env) claim(c jobs.ClaimRequest) []jobs.Job {
	e.Helper()
	if c.Worker == "" {
		c.Worker = "w"
	}
	got, err := e.q.Claim(e.ctx, c)
	if err != nil {
		e.Fatalf("Claim(%+v): %v", c, err)
	}
	for _, j := range got {
		if j.State != jobs.Active || j.Lease == nil || j.Lease.Token == "" || j.Lease.ExpiresIn <= 0 {
			e.Fatalf("claimed job is not leased: %+v", j)
		}
	}
	return got
}

// claimOne claims exactly one job that must be there.
func (e *env) claimOne() jobs.Job {
	e.Helper()
	got := e.claim(jobs.ClaimRequest{Lease: time.Hour})
	if len(got) != 1 {
		e.Fatalf("Claim returned %d jobs, want 1", len(got))
	}
	return got[0]
}

// claimNone makes sure that there is nothing to do.
func (e *env) claimNone(functions ...string) {
	e.Helper()
	if got := e.claim(jobs.ClaimRequest{Functions: functions, Limit: 10}); len(got) != 0 {
		e.Fatalf("Claim returned %s, want nothing", ids(got))
	}
}

func (e *env) finish(j jobs.Job, s jobs.State) jobs.Job {
	e.Helper()
	done, err := e.q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: s})
	if err != nil {
		e.Fatalf("Finish(%s, %s): %v", j.ID, s, err)
	}
	if done.State != s || done.FinishedAt.IsZero() || done.Lease != nil {
		e.Fatalf("finished as %s: %+v", s, done)
	}
	return done
}

func (e *env) get(id string) jobs.Job {
	e.Helper()
	j, err := e.q.Get(e.ctx, id)
	if err != nil {
		e.Fatalf("Get(%s): %v", id, err)
	}
	return j
}

func (e *env) cancel(id string) jobs.Job {
	e.Helper()
	j, err := e.q.Cancel(e.ctx, id)
	if err != nil {
		e.Fatalf("Cancel(%s): %v", id, err)
	}
	return j
}

func (e *env) duties(q *jobs.Queue) jobs.DutyReport {
	e.Helper()
	r, err := q.RunDuties(e.ctx)
	if err != nil {
		e.Fatalf("RunDuties: %v", err)
	}
	return r
}

// ok ends the test if a call that must succeed did not.
func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// errOf is the error of a call whose answer does not matter.
func errOf[T any](_ T, err error) error { return err }

// wantErr checks that a call was refused in this way.
func (e *env) wantErr(what string, want, err error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: %v, want %v", what, err, want)
	}
}

// wantField checks that a call was refused because of this field.
func (e *env) wantField(what, field string, err error) {
	e.Helper()
	var fe *jobs.FieldError
	if !errors.As(err, &fe) || fe.Field != field {
		e.Errorf("%s: %v, want a FieldError for %s", what, err, field)
	}
}

// wantHeld checks that a call was refused because this job holds the key or the deduplication lock.
func (e *env) wantHeld(holder string, err error) {
	e.Helper()
	if refused(err, jobs.ErrDuplicateKey).ID != holder {
		e.Errorf("%v, want ErrDuplicateKey that names %s", err, holder)
	}
}

// refused returns the refusal that err is, an empty one if it is not of this kind.
func refused(err, kind error) *jobs.Error {
	if r := (*jobs.Error)(nil); errors.As(err, &r) && r.Kind == kind {
		return r
	}
	return &jobs.Error{}
}

// wantState checks the stored state of a job.
func (e *env) wantState(id string, s jobs.State) jobs.Job {
	e.Helper()
	j := e.get(id)
	if j.State != s {
		e.Fatalf("job %s is %s, want %s", id, j.State, s)
	}
	return j
}

// wantIDs checks which jobs there are, in order.
func (e *env) wantIDs(what string, got []jobs.Job, want ...string) {
	e.Helper()
	if fmt.Sprint(ids(got)) != fmt.Sprint(want) && len(got)+len(want) > 0 {
		e.Fatalf("%s: got %v, want %v", what, ids(got), want)
	}
}

func ids(js []jobs.Job) []string {
	out := make([]string, len(js))
	for i, j := range js {
		out[i] = j.ID
	}
	return out
}

func ptr[T any](v T) *T { return &v }
