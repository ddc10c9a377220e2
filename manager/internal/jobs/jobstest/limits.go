package jobstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

func (e *env) limit(function string, l jobs.Limits) {
	e.Helper()
	if err := e.q.SetLimits(e.ctx, function, l); err != nil {
		e.Fatalf("SetLimits(%s, %+v): %v", function, l, err)
	}
}

// keyed submits jobs with a concurrency key: key-0, key-1 and so on.
func (e *env) keyed(key string, n int) {
	e.Helper()
	for i := range n {
		e.job(jobs.Submission{ID: fmt.Sprint(key, "-", i), ConcurrencyKey: key})
	}
}

// claimMany claims jobs of function f.
func (e *env) claimMany(limit int) []jobs.Job {
	e.Helper()
	return e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: limit, Lease: span})
}

var limitTests = map[string]func(*env){
	"no more jobs run than max_running": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 2})
		for i := range 10 {
			e.job(jobs.Submission{ID: fmt.Sprint("f", i), MaxAttempts: 3})
		}
		e.job(jobs.Submission{ID: "g", Function: "g"})
		got := e.claimMany(10)
		e.wantIDs("first", got, "f0", "f1")
		e.claimNone("f")
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{Limit: 10}), "g")
		// Whatever ends a delivery frees its place.
		e.finish(got[0], jobs.Complete)
		e.wantIDs("after a finish", e.claimMany(10), "f2")
		e.retry(jobs.Retry{ID: "f1", Token: got[1].Lease.Token, Delay: ptr(far)})
		got = e.claimMany(10)
		e.wantIDs("after a retry", got, "f3")
		e.cancel("f3")
		e.claimNone("f")
		e.finish(got[0], jobs.Cancelled)
		got = e.claimMany(1)
		e.wantIDs("after a cancel", got, "f4")
		e.ok(e.q.PutBack(got))
		e.wantIDs("after a claim whose answer was lost", e.claimMany(10), "f4")
		e.claimNone("f")
		e.pass(span) // the leases are lost
		e.wantIDs("after lost leases", e.claimMany(10), "f2", "f4")
		e.claimNone("f")
	},
	"no more jobs of a key run than max_running_per_key": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.keyed("a", 5)
		e.keyed("b", 1)
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("none-", i)})
		}
		got := e.claimMany(10)
		e.wantSame("first", got, "a-0", "a-1", "b-0", "none-0", "none-1", "none-2")
		e.claimNone("f")
		e.claimNone()
		for _, j := range got {
			if j.ID == "a-1" {
				e.finish(j, jobs.Failed)
			}
		}
		e.wantIDs("after a finish", e.claim(jobs.ClaimRequest{Limit: 10}), "a-2")
		e.claimNone("f")
	},
	"keys take turns, however many jobs one has": func(e *env) {
		e.keyed("a", 30)
		e.keyed("b", 2)
		var order []string
		for range 6 {
			for _, j := range e.claimMany(1) {
				order = append(order, j.ID)
			}
		}
		if want := []string{"a-0", "b-0", "a-1", "b-1", "a-2", "a-3"}; !slices.Equal(order, want) {
			e.Errorf("one by one: %q, want %q", order, want)
		}
		e.keyed("c", 3) // a key with new work is last in the line, and no further back
		e.wantIDs("several", e.claimMany(6), "a-4", "c-0", "a-5", "c-1", "a-6", "c-2")
		e.wantIDs("the rest", e.claimMany(3), "a-7", "a-8", "a-9")
	},
	"within a key the highest priority is first": func(e *env) {
		for i, p := range []int{0, 2, 1} {
			e.job(jobs.Submission{ID: fmt.Sprint("a-", p), ConcurrencyKey: "a", Priority: p})
			e.job(jobs.Submission{ID: fmt.Sprint("b-", i), ConcurrencyKey: "b"})
		}
		e.wantIDs("claims", e.claimMany(10), "a-2", "b-0", "a-1", "b-1", "a-0", "b-2")
	},
	"a claim without functions gets the jobs of a key in their order": func(e *env) {
		e.keyed("a", 1)
		e.keyed("b", 1)
		e.pass(time.Minute)
		e.job(jobs.Submission{ID: "b-urgent", ConcurrencyKey: "b", Priority: 1})
		e.wantIDs("claim", e.claim(jobs.ClaimRequest{Limit: 10}), "a-0", "b-urgent", "b-0")
	},
	"scheduled, retried and paused jobs take turns as well": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 1})
		e.job(jobs.Submission{ID: "later", ConcurrencyKey: "a", Delay: span})
		e.keyed("a", 1)
		e.pause("f")
		e.claimNone()
		e.resume("f")
		j := e.claimMany(5)[0]
		e.pass(span / 2)
		e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: ptr(span)})
		e.pass(span / 2)
		e.wantIDs("the delayed job", e.claimMany(5), "later")
		e.pass(span)
		e.claimNone("none")
		e.wantIDs("lost, and retried", e.claimMany(5), "later")
		for _, id := range []string{"later", "a-0"} {
			e.cancel(id)
		}
	},
	"jobs with keys and others of many functions share a claim": func(e *env) {
		e.keyed("a", 3)
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("f", i)})
			e.job(jobs.Submission{ID: fmt.Sprint("g", i), Function: "g", Priority: 1})
		}
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f", "g"}, Limit: 5})
		e.wantIDs("the higher priority", got[:3], "g0", "g1", "g2")
		e.wantSame("the rest", append(got[3:], e.claim(jobs.ClaimRequest{Limit: 10})...), "a-0", "a-1", "a-2", "f0", "f1", "f2")
	},
	"deliveries follow the rate": func(e *env) {
		e.limit("f", jobs.Limits{Rate: jobs.Rate{Count: 3, Per: span}})
		for i := range 20 {
			e.job(jobs.Submission{ID: fmt.Sprintf("f%02d", i)})
		}
		e.wantIDs("a full bucket", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 2, Lease: jobs.MaxLease}), "f00", "f01")
		e.wantIDs("the last token", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 10, Lease: jobs.MaxLease}), "f02")
		e.claimNone("f")
		e.pass(span/3 + time.Minute)
		e.wantIDs("one more", e.claim(jobs.ClaimRequest{Limit: 10, Lease: jobs.MaxLease}), "f03")
		e.claimNone("f")
		e.pass(5 * span)
		e.wantIDs("no more than the bucket holds", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 10, Lease: jobs.MaxLease}), "f04", "f05", "f06")
		e.limit("f", jobs.Limits{})
		if got := e.claimMany(100); len(got) != 13 {
			e.Errorf("without a limit: %v", ids(got))
		}
	},
	"new limits hold from the next claim on": func(e *env) {
		e.keyed("a", 10)
		e.limit("f", jobs.Limits{MaxRunningPerKey: 1})
		e.wantIDs("one", e.claimMany(10), "a-0")
		e.claimNone("f")
		e.limit("f", jobs.Limits{MaxRunningPerKey: 3})
		e.wantIDs("raised", e.claimMany(10), "a-1", "a-2")
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.finish(e.get("a-0"), jobs.Complete)
		e.claimNone("f")
		e.finish(e.get("a-1"), jobs.Complete)
		e.wantIDs("lowered", e.claimMany(10), "a-3")
		e.limit("f", jobs.Limits{MaxRunning: 4})
		e.wantIDs("another limit, which counts from now on", e.claimMany(10), "a-4", "a-5", "a-6", "a-7")
		e.limit("f", jobs.Limits{})
		e.wantIDs("none", e.claimMany(10), "a-8", "a-9")
		page, err := e.q.Functions(e.ctx, 0, "")
		if err != nil || len(page.Functions) != 1 || page.Functions[0].Limits != (jobs.Limits{}) {
			e.Errorf("%+v, %v", page, err)
		}
	},
	"a raised limit holds for keys that had no waiting jobs": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 1})
		e.keyed("a", 1)
		e.wantIDs("as many as may run", e.claimMany(5), "a-0")
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.job(jobs.Submission{ID: "later", ConcurrencyKey: "a"})
		e.wantIDs("one more", e.claimMany(5), "later")
		e.job(jobs.Submission{ID: "last", ConcurrencyKey: "a"})
		e.claimNone("f")
		e.limit("f", jobs.Limits{})
		e.wantIDs("without a limit", e.claimMany(5), "last")
	},
	"a freed place wakes a waiting claim": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 1})
		e.limit("g", jobs.Limits{MaxRunningPerKey: 1})
		for i := range 2 {
			e.job(jobs.Submission{ID: fmt.Sprint("f", i)})
			e.job(jobs.Submission{ID: fmt.Sprint("g", i), Function: "g", ConcurrencyKey: "a"})
		}
		for _, f := range []string{"f", "g"} {
			got := e.claim(jobs.ClaimRequest{Functions: []string{f}, Limit: 5})
			e.wantIDs("the first", got, f+"0")
			c := e.waiting(e.q, jobs.ClaimRequest{Functions: []string{f}})
			e.finish(got[0], jobs.Complete)
			e.wantIDs("the next", e.receive(c), f+"1")
		}
	},
	"a new token wakes a waiting claim": func(e *env) {
		e.limit("f", jobs.Limits{Rate: jobs.Rate{Count: 1, Per: 50 * time.Millisecond}})
		for i := range 4 {
			e.job(jobs.Submission{ID: fmt.Sprint("f", i)})
		}
		for i := range 4 {
			e.wantIDs("the next", e.receive(e.startWaiting(e.q, jobs.ClaimRequest{Functions: []string{"f"}})), fmt.Sprint("f", i))
		}
	},
	"limits and counts outlive a restart": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 3, MaxRunningPerKey: 2, Rate: jobs.Rate{Count: 100, Per: time.Hour}})
		e.keyed("a", 5)
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 5, Lease: jobs.MaxLease}), "a-0", "a-1")
		e.restart(jobs.Options{})
		e.claimNone("f")
		e.keyed("b", 2)
		e.wantIDs("another key", e.claimMany(5), "b-0")
		e.claimNone("f")
		f, err := e.q.Function(e.ctx, "f")
		if err != nil || f.Limits.MaxRunning != 3 || f.Limits.Rate.Per != time.Hour || f.Queued != 4 || f.Active != 3 {
			e.Errorf("%+v, %v", f, err)
		}
	},
	"jobs that end leave no counts": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunning: 10, MaxRunningPerKey: 3})
		e.keyed("a", 4)
		e.keyed("b", 2)
		e.job(jobs.Submission{ID: "expires", ConcurrencyKey: "c", ExpiresIn: span / 2})
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 4, Lease: jobs.MaxLease})
		e.pass(span / 2)
		e.duties(e.q)
		for _, j := range got {
			if j.State == jobs.Active {
				e.finish(j, jobs.Complete)
			}
		}
		for _, j := range e.list(jobs.ListQuery{State: jobs.Queued}) {
			e.ok(errOf(e.q.Delete(e.ctx, j.ID)))
		}
		for _, key := range []string{"f", "f\x00a", "f\x00b", "f\x00c"} {
			if err := e.in.Store.View(e.ctx, func(tx store.Tx) error {
				_, err := tx.Get("job_slots", key)
				return err
			}); !errors.Is(err, store.ErrNotFound) {
				e.Errorf("the record %q is left: %v", key, err)
			}
		}
	},
	"a record of counts that cannot be read costs its key or function": func(e *env) {
		e.limit("f", jobs.Limits{MaxRunningPerKey: 2})
		e.keyed("bad", 3)
		e.keyed("good", 2)
		got := e.claimMany(2)
		e.wantIDs("before", got, "bad-0", "good-0")
		e.rewrite("job_slots", damages["another version"], "f\x00bad")
		e.wantIDs("after", e.claimMany(5), "good-1")
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", ConcurrencyKey: "bad"})
		e.wantUnreadable("Enqueue", err, "job_slots", "f\x00bad")
		e.finish(got[0], jobs.Complete)
		e.cancel("bad-1")
		e.deleteUnreadable("job_slots", "f\x00bad")
		e.wantIDs("repaired", e.claimMany(5), "bad-2")
		e.limit("f", jobs.Limits{MaxRunning: 10})
		e.keyed("more", 2)
		e.wantIDs("counted", e.claimMany(1), "more-0")
		e.rewrite("job_slots", damages["nonsense"], "f")
		e.claimNone("f")
		e.deleteUnreadable("job_slots", "f")
		e.wantIDs("repaired", e.claimMany(5), "more-1")
	},
	"settings that cannot be read are made again from the jobs": func(e *env) {
		e.keyed("a", 2)
		e.rewrite("job_control", damages["another version"], "functions")
		e.deleteUnreadable("job_control", "functions")
		e.wantIDs("claims", e.claimMany(5), "a-0", "a-1")
	},
	"bad limits are refused": func(e *env) {
		for field, l := range map[string]jobs.Limits{
			"max_running": {MaxRunning: -1}, "max_running_per_key": {MaxRunningPerKey: jobs.MaxLimitCount + 1},
			"rate.count": {Rate: jobs.Rate{Per: time.Second}}, "rate.per_ms": {Rate: jobs.Rate{Count: 1}},
		} {
			e.wantField(field, field, e.q.SetLimits(e.ctx, "f", l))
		}
		e.wantField("a bad name", "function", e.q.SetLimits(e.ctx, "a b", jobs.Limits{}))
		e.wantField("a bad key", "concurrency_key", errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", ConcurrencyKey: " a"})))
	},
	"no limit is exceeded by managers that compete": func(e *env) {
		n, workers := deep.Rounds(300, 2000), deep.Rounds(12, 30)
		qs := e.managers(jobs.Options{MaxAttempts: 1000})
		limits := jobs.Limits{MaxRunning: 7, MaxRunningPerKey: 2}
		e.limit("f", limits)
		keys := []string{"", "a", "b", "c", "d", "e"}
		for i := range n {
			e.job(jobs.Submission{ID: fmt.Sprintf("j%05d", i), ConcurrencyKey: keys[i%len(keys)]})
		}
		var mu sync.Mutex
		running := map[string]int{}
		change := func(key string, by int) {
			mu.Lock()
			defer mu.Unlock()
			all := by
			for _, k := range keys {
				all += running[k]
			}
			if running[key] += by; key != "" && running[key] > limits.MaxRunningPerKey || all > limits.MaxRunning {
				e.Errorf("%d jobs of %q run, %d of all", running[key], key, all)
			}
		}
		var done atomic.Int64
		together(workers, func(w int) {
			q := qs[w%len(qs)]
			random := rand.New(rand.NewPCG(7, uint64(w)))
			for done.Load() < int64(n) && e.ctx.Err() == nil {
				got, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: fmt.Sprint("w", w), Functions: []string{"f"}, Limit: 1 + random.IntN(3), Lease: jobs.MaxLease, Wait: 50 * time.Millisecond})
				if err != nil {
					if !errors.Is(err, store.ErrConflict) {
						e.Errorf("claim: %v", err)
						return
					}
					continue
				}
				for _, j := range got {
					change(j.ConcurrencyKey, 1)
				}
				for _, j := range got {
					again := random.IntN(10) == 0
					change(j.ConcurrencyKey, -1) // before the call: another may run as soon as it has happened
					for {
						if again {
							_, err = q.Retry(e.ctx, jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: ptr(time.Duration(0))})
						} else {
							_, err = q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete})
						}
						if err == nil || !errors.Is(err, store.ErrConflict) {
							break
						}
					}
					if err != nil {
						e.Errorf("end of %s: %v", j.ID, err)
					}
					if !again {
						done.Add(1)
					}
				}
			}
		})
		if done.Load() != int64(n) {
			e.Errorf("%d of %d jobs are done", done.Load(), n)
		}
	},
}

// wantSame is wantIDs without the order.
func (e *env) wantSame(what string, got []jobs.Job, want ...string) {
	e.Helper()
	all := ids(got)
	slices.Sort(all)
	if !slices.Equal(all, want) {
		e.Fatalf("%s: got %s, want %s", what, strings.Join(all, " "), strings.Join(want, " "))
	}
}
