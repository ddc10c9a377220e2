package jobstest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// usageTests are about the bytes that jobs may take.
var usageTests = map[string]func(*env){
	"a job that is deleted because its payload cannot be read counts no more": func(e *env) {
		for _, id := range []string{"waits", "runs"} {
			e.job(jobs.Submission{ID: id, Function: id, Owner: "shop", Payload: []byte(fmt.Sprintf(`"%0600d"`, 1))})
		}
		e.claim(jobs.ClaimRequest{Functions: []string{"runs"}})
		e.rewrite("job_blobs", damages["nonsense"], "waits/p", "runs/p")
		for _, id := range []string{"waits", "runs"} {
			e.deleteUnreadable("jobs", id)
		}
		e.checkSums()
	},
	"a full queue refuses new jobs and works on": func(e *env) {
		e.bounded(jobs.Options{MaxBytes: jobs.MinMaxBytes})
		e.job(jobs.Submission{ID: "kept", Key: "k", Dedup: dedup(jobs.Dedup{Key: "d"})})
		n := e.fill("")
		if n < 6 || n > 8 {
			e.Fatalf("%d jobs of 1 MiB fit into 8 MiB", n)
		}
		// What makes no new job is answered.
		e.wantDropped("kept", jobs.Submission{Dedup: dedup(jobs.Dedup{Key: "d"})})
		if out := e.submit(jobs.Submission{Key: "k", ReturnExisting: true}); !out.Existing {
			e.Fatalf("the holder of the key: %+v", out)
		}
		if c := e.q.Counters(); c.Full == 0 || c.OverShare != 0 {
			e.Fatalf("counters %+v", c)
		}
		// Nor is work refused that is there, although its results need room.
		dead := 0
		for i := range n + 1 {
			j := e.claimOne()
			e.ok(errOf(e.q.Heartbeat(e.ctx, j.ID, j.Lease.Token, time.Hour, nil)))
			if i == 0 {
				e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: ptr(time.Duration(0)), Error: "once more"})
				j = e.claimOne()
			}
			f := jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete, Result: megabyte()}
			if i >= n-2 {
				f.State = jobs.Failed
				dead++
			}
			if _, err := e.q.Finish(e.ctx, f); err != nil {
				e.Fatalf("finish %d: %v", i, err)
			}
		}
		for _, l := range e.letters("f")[:dead] { // by an operator: a copy, and the job itself
			out, err := e.q.Replay(e.ctx, "f", l.ID)
			e.ok(err)
			e.cancel(out.Job.ID)
		}
	},
	"finished jobs make room, dead letters last": func(e *env) {
		e.bounded(jobs.Options{MaxBytes: jobs.MinMaxBytes})
		big := func(id string) jobs.Submission { return jobs.Submission{ID: id, Payload: megabyte()} }
		e.bury(big("d0"), "x")
		e.bury(jobs.Submission{ID: "d1"}, "x")
		for i := range 3 {
			e.job(big(fmt.Sprint("c", i)))
			e.finish(e.claimOne(), jobs.Complete)
		}
		// A quarter of 8 MiB has no room for one of them besides the dead letters.
		e.ok(errOf(e.q.CountBytes(e.ctx)))
		e.wantIDs("finished", e.list(jobs.ListQuery{State: jobs.Complete}))
		if u := e.usage(); u.Retained > u.MaxRetained || u.MaxRetained != jobs.MinMaxBytes/4 {
			e.Fatalf("%+v", u)
		}
		if n := len(e.letters("f")); n != 2 {
			e.Fatalf("%d dead letters remain", n)
		}
		for i := range 3 {
			e.bury(big(fmt.Sprint("e", i)), "x")
		}
		e.ok(errOf(e.q.CountBytes(e.ctx)))
		e.wantIDs("dead letters", e.list(jobs.ListQuery{State: jobs.Failed}), "e2")
	},
	"a submitter leaves room for others": func(e *env) {
		e.bounded(jobs.Options{MaxBytes: jobs.MinMaxBytes, OwnerShare: 0.25})
		if n := e.fill("ann"); n != 1 {
			e.Fatalf("%d jobs of 1 MiB fit into a quarter of 8 MiB", n)
		}
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Owner: "ann", Payload: megabyte()})
		if full := refused(err, jobs.ErrFull); full.Owner != "ann" || full.Allowed != jobs.MinMaxBytes/4 {
			e.Fatalf("got %v", err)
		}
		e.job(jobs.Submission{Owner: "ann"}) // a small one fits
		if n := e.fill("bob"); n != 1 {
			e.Fatalf("%d jobs of another", n)
		}
		if c := e.q.Counters(); c.Full != 0 || c.OverShare != 3 {
			e.Fatalf("counters %+v", c)
		}
		// What is over does not count.
		for range 2 {
			e.finish(e.claimOne(), jobs.Complete)
		}
		if n := e.fill("ann"); n != 1 {
			e.Fatalf("%d jobs after the first were finished", n)
		}
		// A caller that owns nothing has all that is left.
		if n := e.fill(""); n < 3 {
			e.Fatalf("%d jobs of nobody", n)
		}
		// Nobody is bounded.
		e.bounded(jobs.Options{MaxBytes: 4 * jobs.MinMaxBytes, OwnerShare: -1})
		if n := e.fill("ann"); n < 20 {
			e.Fatalf("%d jobs without a share", n)
		}
	},
	"another manager counts what is there": func(e *env) {
		o := jobs.Options{MaxBytes: jobs.MinMaxBytes}
		e.bounded(o)
		n := e.fill("")
		e.q = e.queueOn(e.peer(), o)
		e.ok(errOf(e.q.CountBytes(e.ctx)))
		if u := e.usage(); n < 6 || u.Total < int64(n)<<20 || u.Total > jobs.MinMaxBytes {
			e.Fatalf("%d jobs take %+v", n, u)
		}
		if _, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Payload: megabyte()}); !errors.Is(err, jobs.ErrFull) {
			e.Fatalf("got %v", err)
		}
	},
	"a start knows what a submitter has": func(e *env) {
		o := jobs.Options{MaxBytes: jobs.MinMaxBytes, OwnerShare: 0.5}
		e.bounded(o)
		if n := e.fill("ann"); n != 3 {
			e.Fatalf("%d jobs of 1 MiB fit into a half of 8 MiB", n)
		}
		e.restart(o)
		if e.in.Peer != nil { // one of several managers counts first
			e.ok(errOf(e.q.CountBytes(e.ctx)))
		}
		if n := e.fill("ann"); n != 0 {
			e.Fatalf("%d more after a start", n)
		}
		if n := e.fill("bob"); n != 3 {
			e.Fatalf("%d jobs of another", n)
		}
	},
	"calls are counted as a count does": func(e *env) {
		e.bounded(jobs.Options{RetainFor: span})
		check := func(what string) {
			e.Helper()
			before := e.usage()
			e.ok(errOf(e.q.CountBytes(e.ctx)))
			if after := e.usage(); after != before {
				e.Fatalf("%s: %+v by the calls, counted %+v", what, before, after)
			}
			e.checkSums()
		}
		big := []byte(`"` + strings.Repeat("x", 3000) + `"`)
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("a", i), Owner: fmt.Sprint("o", i), Key: fmt.Sprint("k", i), Payload: big, MaxAttempts: 2, Dedup: dedup(jobs.Dedup{Key: fmt.Sprint(i)})})
		}
		check("submissions")
		p, err := e.q.Prepare(jobs.Submission{Function: "g", Owner: "o0", Payload: big})
		e.ok(err)
		var out jobs.Outcome
		e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) (err error) {
			out, err = e.q.EnqueueTx(tx, p)
			return err
		}))
		e.q.Committed(out)
		check("a submission in a caller's transaction")
		e.cancel(out.Job.ID)
		j := e.claimOne()
		e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: ptr(time.Duration(0)), Error: "e"})
		check("a retry")
		j = e.claimOne()
		e.ok(errOf(e.q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Failed, Error: "e", Result: big})))
		check("a failure")
		e.retry(jobs.Retry{ID: j.ID})
		check("an operator's retry")
		e.cancel(j.ID)
		check("a cancel")
		j = e.bury(jobs.Submission{ID: "d", Payload: big, Priority: 1}, "e")
		check("a dead letter")
		e.ok(errOf(e.q.Replay(e.ctx, "f", j.ID)))
		check("a replay")
		e.claim(jobs.ClaimRequest{Limit: 10, Lease: span})
		e.pass(span)
		e.duties(e.q)
		check("lost leases, and retention")
		for i := range 2 {
			j := e.job(jobs.Submission{ID: fmt.Sprint("r", i), Payload: big, Priority: 2, Dedup: reschedule})
			e.wantDropped(j.ID, jobs.Submission{Payload: big, Dedup: reschedule})
			e.finish(e.claimOne(), jobs.Complete)
			check("a run that follows")
			e.cancel(j.ID + "~1")
			check("its cancel")
		}
		e.pass(far)
		e.duties(e.q)
		e.claim(jobs.ClaimRequest{Limit: 10, Lease: time.Hour})
		check("the end")
	},
}

// bounded replaces the test's queue by one that has counted.
func (e *env) bounded(o jobs.Options) {
	e.Helper()
	e.q = e.queue(o)
	e.ok(errOf(e.q.CountBytes(e.ctx)))
}

func megabyte() []byte { return []byte(`"` + strings.Repeat("m", 1<<20-2) + `"`) }

// fill submits jobs of a megabyte until one is refused, and returns how many were not.
func (e *env) fill(owner string) int {
	e.Helper()
	for n := 0; ; n++ {
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Owner: owner, Payload: megabyte()})
		if errors.Is(err, jobs.ErrFull) {
			return n
		}
		if err != nil || n > 100 {
			e.Fatalf("job %d: %v", n, err)
		}
	}
}

func (e *env) usage() jobs.Usage {
	e.Helper()
	u, err := e.q.Usage(e.ctx)
	e.ok(err)
	return u
}
