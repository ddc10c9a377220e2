package jobstest

import (
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

var deadlineTests = map[string]func(*env){
	"a job that has expired is not begun": func(e *env) {
		e.job(jobs.Submission{ID: "in", ExpiresIn: span})
		e.job(jobs.Submission{ID: "at", ExpiresAt: e.now().Add(span)})
		e.job(jobs.Submission{ID: "paused", Function: "p", ExpiresIn: span})
		e.job(jobs.Submission{ID: "scheduled", Delay: span, ExpiresIn: 2 * span})
		e.job(jobs.Submission{ID: "later", ExpiresIn: 3 * span})
		e.pause("p")
		e.pass(span)
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Limit: 10}), "later", "scheduled")
		for _, id := range []string{"in", "at", "paused"} {
			j := e.wantState(id, jobs.Expired)
			if j.FinishedAt.IsZero() || j.Attempt != 0 || !strings.HasPrefix(j.Error, "it expired at ") {
				e.Errorf("%+v", j)
			}
		}
		if got := e.list(jobs.ListQuery{State: jobs.Expired}); len(got) != 3 {
			e.Errorf("listed %v", ids(got))
		}
		if got := e.list(jobs.ListQuery{State: jobs.Expired, Function: "p"}); len(got) != 1 {
			e.Errorf("listed %v of p", ids(got))
		}
		if d := e.letters("f"); len(d) != 0 {
			e.Errorf("dead letters %+v", d)
		}
		if c := e.q.Counters(); c.Expired != 3 {
			e.Errorf("%d are counted", c.Expired)
		}
	},
	"an attempt that has begun may end after the job expired": func(e *env) {
		e.job(jobs.Submission{ID: "a", ExpiresIn: span})
		j := e.claim(jobs.ClaimRequest{Lease: 2 * span})[0]
		e.pass(span)
		e.duties(e.q)
		e.ok(errOf(e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 0, nil)))
		e.finish(j, jobs.Complete)
	},
	"no further attempt begins after a job expired": func(e *env) {
		e.job(jobs.Submission{ID: "lost", ExpiresIn: span})
		e.claim(jobs.ClaimRequest{Lease: span})
		e.job(jobs.Submission{ID: "returned", ExpiresIn: span})
		j := e.claim(jobs.ClaimRequest{Lease: 2 * span})[0]
		e.pass(span)
		e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token, Error: "no luck", Delay: ptr(time.Duration(0))})
		e.claimNone()
		if lost := e.wantState("lost", jobs.Expired); len(lost.Errors) != 1 {
			e.Errorf("%+v", lost)
		}
		if j := e.wantState("returned", jobs.Expired); len(j.Errors) != 1 || j.Errors[0].Text != "no luck" {
			e.Errorf("%+v", j)
		}
	},
	"an operator's retry of a job that has expired takes its key only if it is free": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k", ExpiresIn: span, Dedup: &jobs.Dedup{Key: "d"}})
		j := e.claim(jobs.ClaimRequest{Lease: time.Minute})[0]
		e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: ptr(2 * span)})
		e.pass(span)
		e.job(jobs.Submission{ID: "b", Key: "k"})
		e.wantHeld("b", errOf(e.q.Retry(e.ctx, jobs.Retry{ID: "a"})))
		e.cancel("b")
		e.retry(jobs.Retry{ID: "a"})
		e.wantHeld("a", errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})))
	},
	"an expired job may become a dead letter": func(e *env) {
		e.job(jobs.Submission{ID: "a", ExpiresIn: span, DeadIfExpired: true, Timeout: time.Hour})
		e.pass(span)
		e.duties(e.q)
		d := e.letters("f")
		if len(d) != 1 || d[0].ID != "a" || !strings.HasPrefix(d[0].Error, "it expired at ") {
			e.Fatalf("dead letters %+v", d)
		}
		out, err := e.q.Replay(e.ctx, "f", "a")
		if err != nil || !out.Created() || !out.Job.ExpiresAt.IsZero() || out.Job.Timeout != time.Hour {
			e.Fatalf("replay: %+v, %v", out, err)
		}
		e.finish(e.claimOne(), jobs.Complete)
	},
	"a wait for a job ends when it expires": func(e *env) {
		e.job(jobs.Submission{ID: "a", ExpiresIn: span})
		got := e.waitFor("a")
		e.pass(span)
		e.duties(e.q)
		if r := e.receive(got); r[0].State != jobs.Expired {
			e.Errorf("waited: %+v", r)
		}
	},
	"a job's end comes in time without claims": func(e *env) {
		defer e.run(e.q, nil)()
		e.job(jobs.Submission{ID: "a", ExpiresIn: 20 * time.Millisecond})
		if j, err := e.q.Wait(e.ctx, "a", jobs.MaxWait); err != nil || j.State != jobs.Expired {
			e.Errorf("%+v, %v", j, err)
		}
	},
	"an expired job holds neither key nor lock": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k", ExpiresIn: span})
		e.job(jobs.Submission{ID: "b", Dedup: &jobs.Dedup{Key: "d", TTL: far}, ExpiresIn: span})
		e.pass(span)
		// Nothing has looked at them since they expired.
		e.job(jobs.Submission{ID: "a2", Key: "k"})
		e.job(jobs.Submission{ID: "b2", Dedup: &jobs.Dedup{Key: "d", TTL: far}})
		e.duties(e.q)
		e.wantState("a", jobs.Expired)
		e.wantState("b", jobs.Expired)
		e.wantErr("the key", jobs.ErrDuplicateKey, errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})))
		e.wantDropped("b2", jobs.Submission{Dedup: &jobs.Dedup{Key: "d", TTL: far}})
	},
	"no run follows a job that expired": func(e *env) {
		again := &jobs.Dedup{Strategy: jobs.UntilExecuted, Key: "d", TTL: far, RescheduleOnce: true}
		e.job(jobs.Submission{ID: "waits", Dedup: again, ExpiresIn: span})
		e.wantDropped("waits", jobs.Submission{Dedup: again})
		e.pass(span)
		e.duties(e.q)
		e.wantState("waits", jobs.Expired)
		e.job(jobs.Submission{ID: "runs", Dedup: again, ExpiresIn: span})
		j := e.claim(jobs.ClaimRequest{Lease: 2 * span})[0]
		e.wantDropped("runs", jobs.Submission{Dedup: again})
		e.pass(span)
		e.finish(j, jobs.Complete)
		e.claimNone()
	},
	"an operator's retry lets an expired job run": func(e *env) {
		for _, dead := range []bool{false, true} {
			j := e.job(jobs.Submission{ExpiresIn: span, DeadIfExpired: dead})
			e.pass(span)
			e.duties(e.q)
			if j := e.retry(jobs.Retry{ID: j.ID}); j.State != jobs.Queued || !j.ExpiresAt.IsZero() {
				e.Errorf("%+v", j)
			}
			e.finish(e.claimOne(), jobs.Complete)
		}
		j := e.job(jobs.Submission{Delay: span, ExpiresIn: 3 * span})
		if j := e.retry(jobs.Retry{ID: j.ID, Delay: ptr(2 * span)}); j.ExpiresAt.IsZero() {
			e.Errorf("an expiry that lies ahead went: %+v", j)
		}
		if j := e.retry(jobs.Retry{ID: j.ID, Delay: ptr(4 * span)}); !j.ExpiresAt.IsZero() {
			e.Errorf("an expiry before run_at stayed: %+v", j)
		}
	},
	"expired jobs are deleted and removed as other ended ones": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span})
		e.job(jobs.Submission{ID: "a", ExpiresIn: time.Hour})
		e.job(jobs.Submission{ID: "b", ExpiresIn: time.Hour})
		e.pass(time.Hour)
		e.duties(q)
		e.wantErr("cancel", jobs.ErrConflict, errOf(e.q.Cancel(e.ctx, "a")))
		if j, err := e.q.Delete(e.ctx, "a"); err != nil || j.State != jobs.Expired {
			e.Errorf("%+v, %v", j, err)
		}
		e.pass(span)
		if did := e.duties(q); did.Purged != 1 {
			e.Errorf("%+v", did)
		}
	},
	"an attempt ends at its timeout, whatever the heartbeats": func(e *env) {
		q := e.queue(jobs.Options{BackoffBase: time.Hour, BackoffMax: time.Hour})
		e.job(jobs.Submission{ID: "a", Timeout: 2 * span, MaxAttempts: 2})
		j := e.claim(jobs.ClaimRequest{Lease: 3 * span})[0]
		if j.Timeout != 2*span || j.Lease.ExpiresIn > 2*span {
			e.Errorf("claimed %+v, %+v", j, j.Lease)
		}
		e.pass(span)
		beat, err := e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 3*span, nil)
		if err != nil || beat.ExpiresIn > span || beat.ExpiresIn < span-time.Hour {
			e.Errorf("heartbeat: %+v, %v", beat, err)
		}
		e.pass(span)
		if _, err := e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 0, nil); refused(err, jobs.ErrFenced).Timeout != 2*span {
			e.Errorf("heartbeat after the timeout: %v", err)
		}
		if did := e.duties(q); did.TimedOut != 1 || did.Reclaimed != 1 {
			e.Errorf("duties: %+v", did)
		}
		a := e.wantState("a", jobs.Scheduled) // with backoff, as after a worker's retry
		if len(a.Errors) != 1 || !strings.Contains(a.Errors[0].Text, "reached its timeout of 6h0m0s at worker w") {
			e.Errorf("errors %+v", a.Errors)
		}
		e.pass(time.Hour)
		e.claim(jobs.ClaimRequest{Lease: 3 * span})
		e.pass(2 * span)
		e.duties(q)
		if d := e.letters("f"); len(d) != 1 || !strings.Contains(d[0].Error, "timeout") {
			e.Errorf("dead letters %+v", d)
		}
		if c := q.Counters(); c.TimedOut != 2 {
			e.Errorf("%d are counted", c.TimedOut)
		}
	},
	"a worker that reports before the timeout is noticed is believed": func(e *env) {
		e.job(jobs.Submission{ID: "a", Timeout: span})
		j := e.claim(jobs.ClaimRequest{Lease: 2 * span})[0]
		e.pass(span)
		e.finish(j, jobs.Complete)
	},
	"a shorter lease than the timeout is lost as ever": func(e *env) {
		e.job(jobs.Submission{ID: "a", Timeout: 2 * span})
		e.claim(jobs.ClaimRequest{Lease: span})
		e.pass(span)
		if did := e.duties(e.q); did.TimedOut != 0 || did.Reclaimed != 1 {
			e.Errorf("duties: %+v", did)
		}
		e.wantState("a", jobs.Queued)
	},
	"bad deadlines are refused": func(e *env) {
		at := e.now()
		for field, s := range map[string]jobs.Submission{
			"expires_in_ms": {ExpiresIn: -1},
			"expires_at":    {ExpiresAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
			"on_expiry":     {DeadIfExpired: true},
			"timeout_ms":    {Timeout: time.Millisecond},
		} {
			s.Function = "f"
			e.wantField(field, field, errOf(e.q.Enqueue(e.ctx, s)))
		}
		for _, s := range []jobs.Submission{
			{ExpiresAt: at.Add(span), ExpiresIn: span}, {ExpiresAt: at.Add(span), Delay: span + time.Hour}, {ExpiresIn: span, RunAt: at.Add(2 * span)},
			{ExpiresIn: jobs.MaxDelay + time.Hour}, {Timeout: jobs.MaxLease + time.Hour},
		} {
			s.Function = "f"
			e.wantErr(fmt.Sprintf("%+v", s), jobs.ErrInvalid, errOf(e.q.Enqueue(e.ctx, s)))
		}
		// One that has passed already is a fact, not a mistake: the call may have taken its time.
		e.job(jobs.Submission{ID: "late", ExpiresAt: at.Add(-time.Hour)})
		e.claimNone()
		e.wantState("late", jobs.Expired)
	},
}
