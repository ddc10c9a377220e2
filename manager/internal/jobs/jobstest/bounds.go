package jobstest

import (
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// boundTests are about limits of the queue itself that take much data to reach.
var boundTests = map[string]func(*env){
	"a page looks at a bounded part of the index": func(e *env) {
		const n = jobs.MaxExamined + 500
		e.bulk(n, "f", func(i int) string { return fmt.Sprintf("j%05d", i) })
		for range 11 {
			var done []jobs.Finish
			for _, j := range e.claim(jobs.ClaimRequest{Limit: 1000, Lease: time.Hour}) {
				done = append(done, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete})
			}
			out, err := e.q.FinishMany(e.ctx, done)
			e.ok(err)
			for i := range out {
				if out[i].Err != nil {
					e.Fatal(out[i].Err)
				}
			}
		}
		e.cancel(e.job(jobs.Submission{ID: "rare"}).ID)
		page, err := e.q.List(e.ctx, jobs.ListQuery{State: jobs.Cancelled})
		if err != nil || len(page.Jobs) != 0 || page.Cursor == "" {
			e.Fatalf("first page: %v, cursor %q, %v", ids(page.Jobs), page.Cursor, err)
		}
		e.wantIDs("all pages", e.list(jobs.ListQuery{State: jobs.Cancelled}), "rare")
	},
	"many finishes whose following runs exceed a transaction are carried out": func(e *env) {
		const n = 34
		payload := strings.Repeat("p", jobs.MaxPayloadBytes-10)
		var calls []jobs.Finish
		for i := range n {
			d := *reschedule
			d.Key = fmt.Sprint(i)
			a := e.job(jobs.Submission{Payload: []byte(`"` + payload + `"`), Dedup: &d})
			e.wantDropped(a.ID, jobs.Submission{Dedup: &d})
			calls = append(calls, jobs.Finish{ID: a.ID, Token: e.claimOne().Lease.Token, State: jobs.Complete})
		}
		got, err := e.q.FinishMany(e.ctx, calls)
		e.ok(err)
		for i := range got {
			if got[i].Err != nil || got[i].Job.State != jobs.Complete {
				e.Fatalf("call %d: %+v", i, got[i])
			}
		}
		if follow := e.list(jobs.ListQuery{State: jobs.Queued}); len(follow) != n {
			e.Fatalf("%d runs follow, want %d", len(follow), n)
		}
	},
	"claims get past more unreadable jobs than one claim examines": func(e *env) {
		e.q = e.queue(jobs.Options{Random: func() float64 { return 0 }})
		const n = 2500
		var bad []string
		for _, f := range []string{"f", "g", "h"} {
			first := len(bad)
			for i := range n {
				bad = append(bad, fmt.Sprintf("%s%05d", f, i))
			}
			e.bulk(n, f, func(i int) string { return bad[first+i] })
		}
		e.rewrite("jobs", damages["another version"], bad...)
		for i := range 4 {
			e.job(jobs.Submission{ID: fmt.Sprint("good", i), Function: []string{"f", "g", "h"}[i%3]})
		}
		e.wantIDs("one function", e.claim(jobs.ClaimRequest{Functions: []string{"g"}}), "good1")
		e.wantIDs("three functions", e.claim(jobs.ClaimRequest{Functions: []string{"f", "g", "h"}, Limit: 2}), "good0", "good3")
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{}), "good2")
		e.claimNone()
		e.claimNone("f", "g", "h")
	},
	"the number of functions with settings is bounded": func(e *env) {
		e.fillSettings(2, 0) // what so many calls of Pause leave
		e.wantField("one more", "function", e.q.Pause(e.ctx, "one-more"))
		e.pause("f0500")
		e.resume("f0500")
		e.pause("one-more")
	},
	"functions that had jobs with keys make room for others": func(e *env) {
		e.fillSettings(0, 1)
		e.job(jobs.Submission{ID: "waits", Function: "f0007", ConcurrencyKey: "k"})
		e.wantField("one more", "function", errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "one-more", ConcurrencyKey: "k"})))
		e.duties(e.q)
		e.duties(e.q)
		for i := range 100 {
			e.job(jobs.Submission{Function: fmt.Sprint("one-more-", i), ConcurrencyKey: "k"})
		}
		e.wantIDs("a claim", e.claim(jobs.ClaimRequest{Functions: []string{"f0007"}}), "waits")
	},
}

// fillSettings stores settings of so many functions as there may be: all paused, or with jobs with concurrency keys.
func (e *env) fillSettings(paused, keyed byte) {
	list := []byte{1}
	for i := range jobs.MaxSettings {
		list = append(append(append(list, 5), fmt.Sprintf("f%04d", i)...), paused, keyed, 0, 0, 0, 0)
	}
	e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error { return tx.Put("job_control", "functions", list) }))
}
