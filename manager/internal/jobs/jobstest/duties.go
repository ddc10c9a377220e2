package jobstest

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

var dutyTests = map[string]func(*env){
	"duties promote and reclaim in batches": func(e *env) {
		const n = 300 // more than two batches
		d := span
		for i := range n {
			e.job(jobs.Submission{ID: fmt.Sprintf("s%03d", i), Delay: d})
			e.job(jobs.Submission{ID: fmt.Sprintf("a%03d", i), Function: "g", MaxAttempts: 1 + i%3})
		}
		got := e.claim(jobs.ClaimRequest{Functions: []string{"g"}, Limit: n, Lease: d})
		if len(got) != n {
			e.Fatalf("claimed %d", len(got))
		}
		e.cancel("a001")
		e.pass(d)
		report := e.duties(e.q)
		// Where the clock cannot be moved, the claim may have promoted some.
		c := e.q.Counters()
		did := jobs.DutyReport{Promoted: int(c.Promoted), Reclaimed: report.Reclaimed, Dead: report.Dead, Cancelled: report.Cancelled}
		want := jobs.DutyReport{Promoted: n, Reclaimed: n - n/3 - 1, Dead: n / 3, Cancelled: 1}
		if did != want {
			e.Fatalf("report %+v, counters %+v, want %+v", report, c, want)
		}
		if again := e.duties(e.q); again != (jobs.DutyReport{}) {
			e.Fatalf("second round: %+v", again)
		}
	},
	"claims do what is due without any background work": func(e *env) {
		const n = 300
		d := span
		for i := range n {
			e.job(jobs.Submission{ID: fmt.Sprintf("s%03d", i), Delay: d})
		}
		e.pass(d)
		seen := map[string]bool{}
		for len(seen) < n {
			got := e.claim(jobs.ClaimRequest{Limit: 100})
			if len(got) == 0 {
				e.Fatalf("nothing to do after %d jobs", len(seen))
			}
			for _, j := range got {
				seen[j.ID] = true
			}
		}
	},
	"retention removes old terminal jobs by age": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span, DeadFor: far})
		big := fmt.Sprintf(`"%0600d"`, 1)
		for i, s := range []jobs.State{jobs.Complete, jobs.Cancelled, jobs.Failed} {
			a := e.job(jobs.Submission{ID: fmt.Sprint("old", i), Payload: []byte(big)})
			j := e.claimOne()
			e.ok(errOf(e.q.Finish(e.ctx, jobs.Finish{ID: a.ID, Token: j.Lease.Token, State: s, Result: []byte(big)})))
		}
		live := e.job(jobs.Submission{})
		e.pass(span)
		if report := e.duties(q); report.Purged != 2 {
			e.Fatalf("report %+v, want 2 purged", report)
		}
		for i := range 2 {
			e.wantErr(fmt.Sprintf("job old%d", i), jobs.ErrNotFound, errOf(e.q.Get(e.ctx, fmt.Sprint("old", i))))
		}
		e.wantState(live.ID, jobs.Queued)
		if j := e.wantState("old2", jobs.Failed); string(j.Payload) != big {
			e.Fatalf("the dead letter changed: %+v", j)
		}
		// Blobs go with their jobs.
		for _, c := range []string{"jobs", "job_blobs"} {
			e.eventually(c+" is small", func() bool {
				n, err := e.in.Store.Len(e.ctx, storeCollection(c), "")
				return err == nil && n == 2
			})
		}
	},
	"retention removes the oldest beyond a count": func(e *env) {
		q := e.queue(jobs.Options{RetainCount: 10, DeadCount: 5})
		for i := range 160 { // more than a batch beyond
			e.job(jobs.Submission{ID: fmt.Sprintf("c%03d", i)})
			e.finish(e.claimOne(), jobs.Complete)
		}
		for i := range 7 {
			e.bury(jobs.Submission{ID: fmt.Sprintf("d%03d", i)}, "x")
		}
		e.eventually("the counts are kept", func() bool {
			e.duties(q)
			d, err := e.q.Depth(e.ctx)
			return err == nil && d == jobs.Depth{Done: 10, Dead: 5}
		})
		e.wantIDs("dead letters", e.list(jobs.ListQuery{State: jobs.Failed}), "d002", "d003", "d004", "d005", "d006")
		if got := e.list(jobs.ListQuery{State: jobs.Complete}); got[0].ID != "c150" || got[9].ID != "c159" {
			e.Fatalf("kept %v", ids(got))
		}
	},
	"dead letters of one function push out none of another": func(e *env) {
		q := e.queue(jobs.Options{DeadCount: 5})
		for i := range 5 {
			e.bury(jobs.Submission{ID: fmt.Sprint("quiet", i), Function: "quiet"}, "x")
		}
		for round := range 2 { // the second one comes when some were removed already
			for i := range 150 { // more than a batch beyond
				e.bury(jobs.Submission{ID: fmt.Sprintf("loud%d-%03d", round, i), Function: "loud"}, "x")
			}
			e.eventually("the counts are kept", func() bool {
				e.duties(q)
				return len(e.letters("loud")) == 5
			})
			if quiet, loud := e.letters("quiet"), e.letters("loud"); len(quiet) != 5 || loud[0].ID != fmt.Sprintf("loud%d-145", round) {
				e.Fatalf("kept %d quiet ones, and loud ones from %s", len(quiet), loud[0].ID)
			}
		}
	},
	"dead letters have a retention of their own": func(e *env) {
		q := e.queue(jobs.Options{DeadFor: span, RetainFor: far})
		e.bury(jobs.Submission{ID: "dead"}, "x")
		e.job(jobs.Submission{ID: "done"})
		e.finish(e.claimOne(), jobs.Complete)
		e.pass(span)
		if report := e.duties(q); report.Purged != 1 {
			e.Fatalf("report %+v", report)
		}
		if n := len(e.letters("f")); n != 0 {
			e.Fatalf("%d dead letters", n)
		}
		e.wantState("done", jobs.Complete)
	},
	"expired locks are removed": func(e *env) {
		d := span
		for i := range 150 {
			e.job(jobs.Submission{Payload: []byte(fmt.Sprint(i)), Dedup: dedup(jobs.Dedup{TTL: d})})
		}
		e.job(jobs.Submission{Dedup: dedup(jobs.Dedup{TTL: far})})
		e.pass(d)
		if report := e.duties(e.q); report.Unlocked != 150 {
			e.Fatalf("report %+v, want 150 unlocked", report)
		}
	},
	"a queue that has done its work leaves no records": func(e *env) {
		s := jobs.Submission{Key: "k", Dedup: untilExecuted, Payload: []byte(fmt.Sprintf(`"%0600d"`, 1))}
		for range 20 {
			e.job(s)
			e.finish(e.claimOne(), jobs.Complete)
		}
		e.pause("f")
		e.resume("f")
		q := e.queue(jobs.Options{RetainFor: time.Second})
		e.pass(2 * time.Second)
		e.duties(q)
		for _, c := range []string{"jobs", "job_blobs", "job_keys", "job_locks", "job_control"} {
			e.eventually(c+" is empty", func() bool {
				n, err := e.in.Store.Len(e.ctx, storeCollection(c), "")
				return err == nil && n == 0
			})
		}
	},
	"Run does the duties by itself": func(e *env) {
		q := e.queue(jobs.Options{Interval: 10 * time.Millisecond, RetainFor: span})
		defer e.run(q, nil)()
		a := e.job(jobs.Submission{Delay: span})
		b := e.job(jobs.Submission{})
		e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Lease: span})
		e.pass(span)
		e.eventually("both are queued", func() bool {
			return e.get(a.ID).State == jobs.Queued && e.get(b.ID).State == jobs.Queued
		})
		e.cancel(a.ID)
		e.pass(span)
		e.eventually("retention removed a", func() bool {
			_, err := e.q.Get(e.ctx, a.ID)
			return errors.Is(err, jobs.ErrNotFound)
		})
	},
	"Run reports errors and continues": func(e *env) {
		broken := &flaky{Store: e.in.Store}
		q := e.queueOn(broken, jobs.Options{Interval: 10 * time.Millisecond})
		broken.fail.Store(true)
		reports := make(chan error, 100)
		defer e.run(q, func(_ jobs.DutyReport, err error) {
			select {
			case reports <- err:
			default:
			}
		})()
		e.wantErr("reported", errFlaky, <-reports)
		a := e.job(jobs.Submission{Delay: span})
		e.pass(span)
		broken.fail.Store(false)
		e.eventually("the job is queued", func() bool { return e.get(a.ID).State == jobs.Queued })
	},
}
