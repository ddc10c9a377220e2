package jobstest

import (
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// unreadableLimitTests are about limits and records that cannot be read.
var unreadableLimitTests = map[string]func(*env){
	"a job that cannot be read does not block its key": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 1})
		e.keyed("a", 3)
		e.rewrite("jobs", damages["nonsense"], "a-0")
		got := e.claimMany(5)
		e.wantIDs("past it", got, "a-1")
		e.claimNone("f")
		e.finish(got[0], jobs.Complete)
		e.wantIDs("the next", e.claimMany(5), "a-2")
	},
	"running jobs count after jobs of their key were deleted that could not be read": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.keyed("a", 2)
		e.wantIDs("running", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Lease: jobs.MaxLease}), "a-0")
		e.rewrite("jobs", damages["nonsense"], "a-1")
		e.deleteUnreadable("jobs", "a-1")
		e.claimNone("f")
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("more-", i), ConcurrencyKey: "a"})
		}
		e.wantIDs("one more", e.claimMany(5), "more-0")
	},
	"a key is not searched after its jobs were deleted that could not be read": func(e *env) {
		e.keyed("a", 2)
		e.keyed("b", 2)
		e.rewrite("jobs", damages["nonsense"], "a-0", "a-1", "b-0")
		for _, id := range []string{"a-0", "a-1", "b-0"} {
			e.deleteUnreadable("jobs", id)
		}
		e.wantIDs("what is left", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 5, Lease: jobs.MaxLease}), "b-1")
		e.claimNone("f")
		e.ok(e.in.Store.View(e.ctx, func(tx store.Tx) error {
			hits, err := tx.Scan("job_slots", "ready", store.Range{Limit: 10})
			if len(hits) > 0 {
				e.Errorf("keys that are searched: %q", hits)
			}
			return err
		}))
	},
	"a job that begins to wait while its key is found to be empty is claimed": func(e *env) {
		e.keyed("a", 1)
		e.rewrite("jobs", damages["nonsense"], "a-0")
		e.deleteUnreadable("jobs", "a-0")
		submit := func(ctx context.Context) error {
			_, err := e.q.Enqueue(ctx, jobs.Submission{Function: "f", Key: "new", ReturnExisting: true, ConcurrencyKey: "a"})
			return err
		}
		hooked := &hookedStore{Store: e.in.Store, index: "keyed"}
		if e.in.Peer != nil {
			hooked.hook = func() {
				ctx, cancel := context.WithTimeout(e.ctx, time.Second)
				defer cancel()
				_ = submit(ctx) // it waits for the claim where the engine locks the key
			}
		}
		q := e.queueOn(hooked, jobs.Options{})
		got, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Functions: []string{"f"}})
		if err != nil || hooked.hook != nil {
			e.Fatal(err, hooked.hook != nil)
		}
		e.ok(submit(e.ctx))
		if got = append(got, e.claim(jobs.ClaimRequest{Functions: []string{"f"}})...); len(got) != 1 || got[0].Key != "new" {
			e.Fatalf("claimed %+v", got)
		}
	},
	"a running job that is deleted because it cannot be read frees its places": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 2, MaxRunningPerKey: 1})
		e.keyed("a", 2)
		e.job(jobs.Submission{ID: "b"})
		e.job(jobs.Submission{ID: "c"})
		e.wantSame("running", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 5, Lease: jobs.MaxLease}), "a-0", "b")
		e.rewrite("jobs", damages["nonsense"], "a-0", "b")
		e.claimNone("f")
		e.deleteUnreadable("jobs", "a-0")
		e.deleteUnreadable("jobs", "b")
		e.wantSame("in their places", e.claimMany(5), "a-1", "c")
	},
	"delayed and running jobs are found after the settings were made again": func(e *env) {
		e.job(jobs.Submission{ID: "later", ConcurrencyKey: "a", Delay: span})
		e.job(jobs.Submission{ID: "lost", Function: "g", ConcurrencyKey: "a"})
		e.wantIDs("before", e.claim(jobs.ClaimRequest{Functions: []string{"g"}, Lease: time.Minute}), "lost")
		e.rewrite("job_control", damages["another version"], "functions")
		e.deleteUnreadable("job_control", "functions")
		e.pass(span)
		e.wantIDs("the delayed job", e.claimMany(5), "later")
		e.wantIDs("the lost job", e.claim(jobs.ClaimRequest{Functions: []string{"g"}}), "lost")
	},
	"a lost lease whose key cannot be read changes nothing": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 2, MaxRunningPerKey: 2})
		e.keyed("a", 1)
		e.wantIDs("the keyed one", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Lease: time.Minute}), "a-0")
		for _, id := range []string{"b", "c"} {
			e.job(jobs.Submission{ID: id})
		}
		e.rewrite("job_slots", damages["nonsense"], "f\x00a")
		e.pass(span)
		for range 3 {
			if did := e.duties(e.q); did != (jobs.DutyReport{}) {
				e.Errorf("the duties did %+v", did)
			}
		}
		e.wantState("a-0", jobs.Active)
		e.wantIDs("one place is left", e.claimMany(5), "b")
	},
	"a lost answer puts back the jobs whose keys can be read": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.keyed("a", 1)
		e.keyed("b", 1)
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 2, Lease: time.Minute})
		e.wantIDs("claims", got, "a-0", "b-0")
		e.rewrite("job_slots", damages["nonsense"], "f\x00a")
		e.ok(e.q.PutBack(got))
		e.wantState("a-0", jobs.Active)
		e.wantIDs("after", e.claimMany(5), "b-0")
	},
	"a finish whose run cannot follow changes nothing": func(e *env) {
		sub := jobs.Submission{ID: "a", Key: "k", ConcurrencyKey: "a", Dedup: &jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true}}
		e.job(sub)
		j := e.claimOne()
		e.job(jobs.Submission{ID: "waits", ConcurrencyKey: "a"})
		again := sub
		again.ID = ""
		e.wantDropped("a", again)
		e.rewrite("job_slots", damages["nonsense"], "f\x00a")
		_, err := e.q.FinishMany(e.ctx, []jobs.Finish{{ID: "a", Token: j.Lease.Token, State: jobs.Complete}})
		e.ok(err)
		e.wantHeld("a", errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})))
		e.deleteUnreadable("job_slots", "f\x00a")
		e.finish(j, jobs.Complete)
		e.wantState("a~1", jobs.Queued)
	},
}

func (e *env) deleteUnreadable(c store.Collection, key string) {
	e.Helper()
	if _, err := e.q.DeleteUnreadable(e.ctx, c, key); err != nil {
		e.Fatalf("DeleteUnreadable(%s, %q): %v", c, key, err)
	}
}
