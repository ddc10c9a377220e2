package jobstest

import (
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

var waitTests = map[string]func(*env){
	"a result wakes the caller": func(e *env) {
		for _, end := range []func(jobs.Job){
			func(j jobs.Job) { e.finish(j, jobs.Complete) },
			func(j jobs.Job) { e.finish(j, jobs.Failed) },
			func(j jobs.Job) { e.cancel(j.ID); e.finish(j, jobs.Cancelled) },
			func(j jobs.Job) {
				e.cancel(j.ID)
				e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token})
			},
		} {
			a := e.job(jobs.Submission{})
			j := e.claimOne()
			got := e.waitFor(a.ID)
			end(j)
			if r := e.receive(got); len(r) != 1 || !r[0].State.Terminal() || r[0].ID != a.ID {
				e.Fatalf("waited for %s: %+v", a.ID, r)
			}
		}
		queued := e.job(jobs.Submission{})
		got := e.waitFor(queued.ID)
		e.cancel(queued.ID)
		if r := e.receive(got); r[0].State != jobs.Cancelled {
			e.Fatalf("waited for a cancelled job: %+v", r)
		}
	},
	"a lost last lease wakes the caller": func(e *env) {
		a := e.job(jobs.Submission{MaxAttempts: 1})
		e.claim(jobs.ClaimRequest{Lease: span})
		got := e.waitFor(a.ID)
		e.pass(span)
		e.duties(e.q)
		if r := e.receive(got); r[0].State != jobs.Failed {
			e.Fatalf("waited: %+v", r)
		}
	},
	"what is over is answered at once": func(e *env) {
		a := e.job(jobs.Submission{})
		e.finish(e.claimOne(), jobs.Complete)
		got, err := e.q.Wait(e.ctx, a.ID, jobs.MaxWait)
		if err != nil || got.State != jobs.Complete {
			e.Fatalf("got %+v, %v", got, err)
		}
	},
	"the time over, the job as it is": func(e *env) {
		a := e.job(jobs.Submission{})
		got, err := e.q.Wait(e.ctx, a.ID, 5*time.Millisecond)
		if err != nil || got.State != jobs.Queued {
			e.Fatalf("got %+v, %v", got, err)
		}
	},
	"errors": func(e *env) {
		e.wantErr("unknown job", jobs.ErrNotFound, errOf(e.q.Wait(e.ctx, "nobody", time.Minute)))
		e.wantField("wait too long", "wait_ms", errOf(e.q.Wait(e.ctx, "a", jobs.MaxWait+1)))
		e.wantField("no id", "id", errOf(e.q.Get(e.ctx, "")))
	},
}

// waitFor waits for a job's end on another goroutine.
func (e *env) waitFor(id string) <-chan []jobs.Job {
	e.Helper()
	before := e.q.Counters().Waiting
	out := make(chan []jobs.Job, 1)
	go func() {
		j, err := e.q.Wait(e.ctx, id, jobs.MaxWait)
		if err != nil {
			e.Errorf("Wait(%s): %v", id, err)
		}
		out <- []jobs.Job{j}
	}()
	e.eventually("the call waits", func() bool { return e.q.Counters().Waiting > before })
	return out
}
