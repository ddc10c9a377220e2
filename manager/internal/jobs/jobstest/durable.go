package jobstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

func storeCollection(name string) store.Collection { return store.Collection(name) }

var errFlaky = errors.New("jobstest: the store fails on purpose")

// flaky is a store whose updates fail on demand, before or after they happen.
type flaky struct {
	store.Store
	fail atomic.Bool
	// after, if positive, is how many further updates succeed but report that
	// their outcome is unknown.
	after atomic.Int64
	// committed, if set, is called after an update succeeded and before the
	// update's caller learns of it.
	committed func()
}

func (f *flaky) Update(ctx context.Context, fn func(store.Tx) error) error {
	if f.fail.Load() {
		return errFlaky
	}
	err := f.Store.Update(ctx, fn)
	if err == nil && f.committed != nil {
		f.committed()
	}
	if err == nil && f.after.Load() > 0 {
		f.after.Add(-1)
		return fmt.Errorf("%w: %w", store.ErrUnavailable, errFlaky)
	}
	return err
}

// rerun is a store that runs every update function twice, as an engine does
// after a conflict. It discards the first run's writes.
type rerun struct{ store.Store }

var errRerun = errors.New("jobstest: run again")

func (r rerun) Update(ctx context.Context, fn func(store.Tx) error) error {
	err := r.Store.Update(ctx, func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return errRerun
	})
	if !errors.Is(err, errRerun) {
		return err
	}
	return r.Store.Update(ctx, fn)
}

var durableTests = map[string]func(*env){
	"a restart loses nothing": func(e *env) {
		e.job(jobs.Submission{ID: "queued", Priority: 3, Key: "k", Payload: []byte(fmt.Sprintf(`"%0600d"`, 1))})
		e.job(jobs.Submission{ID: "scheduled", Function: "g", Delay: span})
		e.job(jobs.Submission{ID: "active", Function: "a", Dedup: untilExecuted})
		active := e.claim(jobs.ClaimRequest{Functions: []string{"a"}, Lease: far / 100})[0]
		e.bury(jobs.Submission{ID: "dead", Priority: 99}, "why")
		e.job(jobs.Submission{ID: "done", Priority: 99})
		done := e.claimOne()
		e.ok(errOf(e.q.Finish(e.ctx, jobs.Finish{ID: "done", Token: done.Lease.Token, State: jobs.Complete, Result: []byte(`{"a":1}`)})))
		e.pause("p")
		e.job(jobs.Submission{ID: "paused", Function: "p", Priority: 100})

		e.restart(jobs.Options{})

		e.wantErr("key", jobs.ErrDuplicateKey, errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})))
		e.wantDropped("active", jobs.Submission{Function: "a", Dedup: untilExecuted})
		if _, err := e.q.Heartbeat(e.ctx, "active", active.Lease.Token, 0, nil); err != nil {
			e.Errorf("heartbeat: %v", err)
		}
		if got := e.letters("f"); len(got) != 1 || got[0].ID != "dead" || got[0].Error != "why" {
			e.Errorf("dead letters %+v", got)
		}
		if got := e.get("done"); string(got.Result) != `{"a":1}` {
			e.Errorf("result %s", got.Result)
		}
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Limit: 10, Lease: jobs.MaxLease}), "queued")
		e.pass(span)
		e.wantIDs("claims later", e.claim(jobs.ClaimRequest{Limit: 10}), "scheduled")
		e.resume("p")
		e.wantIDs("claims after resume", e.claim(jobs.ClaimRequest{Limit: 10}), "paused")
	},
	"active jobs are counted and listed by function": func(e *env) {
		for _, id := range []string{"lives", "ends", "lost", "mine"} {
			e.job(jobs.Submission{ID: id})
		}
		leased := e.claim(jobs.ClaimRequest{Limit: 3, Lease: span})
		e.wantIDs("claims", leased, "lives", "ends", "lost")
		e.wantIDs("one more claim", e.claim(jobs.ClaimRequest{Lease: jobs.MaxLease}), "mine")
		want := func(what string, active ...string) {
			e.Helper()
			for _, f := range []string{"", "f"} {
				for limit := range 5 {
					got := ids(e.list(jobs.ListQuery{Function: f, State: jobs.Active, Limit: limit}))
					slices.Sort(got)
					if !slices.Equal(got, active) {
						e.Errorf("%s: active jobs of function %q, %d a page: %q, want %q", what, f, limit, got, active)
					}
				}
			}
			page, err := e.q.Functions(e.ctx, 0, "")
			one, err2 := e.q.Function(e.ctx, "f")
			e.ok(errors.Join(err, err2))
			if len(page.Functions) != 1 || page.Functions[0].Active != one.Active || one.Active != len(active) {
				e.Errorf("%s: functions %+v and %+v, want %d active jobs of f", what, page.Functions, one, len(active))
			}
		}
		want("as they were", "ends", "lives", "lost", "mine")
		e.ok(errOf(e.q.Heartbeat(e.ctx, "lives", leased[0].Lease.Token, jobs.MaxLease, nil)))
		e.finish(leased[1], jobs.Complete)
		want("one has a heartbeat, one is finished", "lives", "lost", "mine")
		e.pass(span)
		if report := e.duties(e.q); report.Reclaimed != 1 {
			e.Errorf("report %+v, want one job that came back", report)
		}
		want("one came back", "lives", "mine")
		e.wantIDs("claims later", e.claim(jobs.ClaimRequest{Limit: 10}), "lost")
		e.finish(leased[0], jobs.Complete)
	},
	"update functions are pure": func(e *env) {
		// Everything that writes, through a store that runs it twice.
		e.q = e.queueOn(rerun{e.in.Store}, jobs.Options{})
		s := jobs.Submission{ID: "a", Key: "k", Dedup: reschedule}
		e.job(s)
		s.ID = ""
		e.wantDropped("a", s)
		j := e.claimOne()
		if j.Attempt != 1 {
			e.Fatalf("attempt %d", j.Attempt)
		}
		e.ok(errOf(e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 0, nil)))
		e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &zero})
		j = e.claimOne()
		if j.ID != "a" || j.Attempt != 2 {
			e.Fatalf("claimed %+v", j)
		}
		e.finish(j, jobs.Failed)
		follow := e.claimOne()
		e.claimNone()
		e.finish(follow, jobs.Complete)
		if n := len(e.letters("f")); n != 1 {
			e.Fatalf("%d dead letters", n)
		}
		if out, err := e.q.Replay(e.ctx, "f", "a"); err != nil || !out.Created() {
			e.Fatalf("Replay: %+v, %v", out, err)
		}
		e.claim(jobs.ClaimRequest{Lease: span, Limit: 5})
		e.job(jobs.Submission{Function: "g", Delay: span})
		e.pass(span)
		if got := e.claim(jobs.ClaimRequest{Limit: 5}); len(got) != 2 {
			e.Fatalf("after the lease and the delay: %v", ids(got))
		}
		e.cancel(e.job(jobs.Submission{}).ID)
		c := e.q.Counters()
		if c.Enqueued != 4 || c.Deduplicated != 1 || c.Claimed != 6 || c.Completed != 1 || c.Failed != 1 || c.CancelRequests != 1 ||
			c.Promoted != 1 || c.Reclaimed != 1 {
			e.Fatalf("counters %+v", c)
		}
	},
	"a claim whose outcome is unknown is delivered again": func(e *env) {
		f := &flaky{Store: e.in.Store}
		q := e.queueOn(f, jobs.Options{Lease: span})
		e.job(jobs.Submission{ID: "a"})
		f.after.Store(1)
		e.wantErr("claim", store.ErrUnavailable, errOf(q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w"})))
		e.pass(span)
		if j := e.claimOne(); j.ID != "a" || j.Attempt != 2 {
			e.Fatalf("claimed %+v", j)
		}
	},
	"a finish whose outcome is unknown can be repeated": func(e *env) {
		f := &flaky{Store: e.in.Store}
		q := e.queueOn(f, jobs.Options{})
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		f.after.Store(1)
		call := jobs.Finish{ID: "a", Token: j.Lease.Token, State: jobs.Complete}
		e.wantErr("finish", store.ErrUnavailable, errOf(q.Finish(e.ctx, call)))
		if got, err := q.Finish(e.ctx, call); err != nil || got.State != jobs.Complete {
			e.Fatalf("repeated finish: %+v, %v", got, err)
		}
	},
	"an aborted transaction enqueues nothing": func(e *env) {
		p, err := e.q.Prepare(jobs.Submission{Function: "f", Key: "k", Dedup: untilExecuted})
		e.ok(err)
		for range 2 {
			err = e.in.Store.Update(e.ctx, func(tx store.Tx) error {
				out, err := e.q.EnqueueTx(tx, p)
				if err != nil || !out.Created() || out.Job.ID != p.ID() {
					e.Errorf("EnqueueTx: %+v, %v", out, err)
				}
				return errRerun
			})
			if !errors.Is(err, errRerun) {
				e.Fatal(err)
			}
		}
		e.claimNone()
		e.job(jobs.Submission{Key: "k", Dedup: untilExecuted})
	},
}
