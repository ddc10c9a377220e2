package jobstest

import (
	"errors"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (e *env) retry(r jobs.Retry) jobs.Job {
	e.Helper()
	j, err := e.q.Retry(e.ctx, r)
	if err != nil {
		e.Fatalf("Retry(%+v): %v", r, err)
	}
	return j
}

func (e *env) retryConflict(r jobs.Retry, s jobs.State) {
	e.Helper()
	_, err := e.q.Retry(e.ctx, r)
	if refused(err, jobs.ErrConflict).State != s {
		e.Fatalf("Retry(%+v): got %v, want ErrConflict with %s", r, err, s)
	}
}

var zero time.Duration

const trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

var retryTests = map[string]func(*env){
	"a worker hands its job back now": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b"})
		j := e.claimOne()
		got := e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &zero, Error: "try again"})
		if got.State != jobs.Queued || got.Lease != nil || got.Error != "try again" || got.RunAt.Before(j.StartedAt) {
			e.Fatalf("handed back: %+v", got)
		}
		e.wantIDs("a comes after b", e.claim(jobs.ClaimRequest{Limit: 2}), "b", "a")
		if n := e.get("a").Attempt; n != 2 {
			e.Fatalf("attempt %d, want 2", n)
		}
	},
	"a job keeps the errors of its last attempts": func(e *env) {
		e.job(jobs.Submission{ID: "a", MaxAttempts: 9, Traceparent: trace})
		for i := range 7 {
			j := e.claimOne()
			e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &zero, Error: strings.Repeat("é", i) + strings.Repeat("x", i/6*1000)})
		}
		j := e.claimOne()
		e.pass(j.Lease.Duration)
		j = e.claimOne() // the lease was lost
		e.ok(errOf(e.q.Finish(e.ctx, jobs.Finish{ID: "a", Token: j.Lease.Token, State: jobs.Failed, Error: "gave up"})))
		got := e.get("a")
		if len(got.Errors) != jobs.MaxErrors || got.Traceparent != trace || got.Error != "gave up" {
			e.Fatalf("%+v", got)
		}
		for i, want := range []string{"éééé", "ééééé", "éééééé" + strings.Repeat("x", jobs.MaxErrorText-12), "worker w lost its lease on attempt 8 of 9", "gave up"} {
			if f := got.Errors[i]; f.Text != want || f.Attempt != i+5 || f.Worker != "w" || f.At.Before(got.CreatedAt) || f.At.After(got.FinishedAt) {
				e.Errorf("error %d: %+v, want %q", i, f, want)
			}
		}
		fresh, err := e.q.Replay(e.ctx, "f", "a")
		if err != nil || fresh.Job.Traceparent != trace || len(fresh.Job.Errors) != 0 {
			e.Errorf("replayed: %+v, %v", fresh.Job, err)
		}
	},
	"a worker hands its job back for later": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		d := span
		got := e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &d})
		if got.State != jobs.Scheduled || got.RunAt.Before(j.StartedAt.Add(d)) {
			e.Fatalf("handed back: %+v", got)
		}
		e.claimNone()
		e.pass(d)
		if again := e.claimOne(); again.Attempt != 2 {
			e.Fatalf("claimed %+v", again)
		}
	},
	"the default delay grows exponentially with jitter": func(e *env) {
		random := 0.0
		q := e.queue(jobs.Options{BackoffBase: 10 * time.Hour, BackoffMax: 50 * time.Hour, Random: func() float64 { return random }})
		for _, c := range []struct {
			attempt int
			random  float64
			want    time.Duration
		}{
			{1, 0, 5 * time.Hour}, {1, 0.5, 7*time.Hour + 30*time.Minute}, {2, 0, 10 * time.Hour}, {2, 0.999, 20 * time.Hour},
			{3, 0, 20 * time.Hour}, {4, 0, 25 * time.Hour}, {70, 0, 25 * time.Hour},
		} {
			a := e.job(jobs.Submission{MaxAttempts: 100})
			var j jobs.Job
			for range c.attempt {
				j = e.claimOne()
				if j.Attempt < c.attempt {
					e.retry(jobs.Retry{ID: a.ID, Token: j.Lease.Token, Delay: &zero})
				}
			}
			random = c.random
			before := e.now()
			got, err := q.Retry(e.ctx, jobs.Retry{ID: a.ID, Token: j.Lease.Token})
			e.ok(err)
			// The store's clock runs between the two looks at it.
			if d := got.RunAt.Sub(before); got.State != jobs.Scheduled || d < c.want-time.Minute || d > c.want+5*time.Minute {
				e.Errorf("attempt %d, random %v: delayed by %s, want %s", c.attempt, c.random, d, c.want)
			}
		}
	},
	"used up attempts cannot be retried by the worker": func(e *env) {
		e.job(jobs.Submission{ID: "a", MaxAttempts: 1})
		j := e.claimOne()
		e.retryConflict(jobs.Retry{ID: "a", Token: j.Lease.Token}, jobs.Active)
		e.finish(j, jobs.Failed) // the lease is still good
	},
	"a delivery that the worker could not use does not count": func(e *env) {
		s := jobs.Submission{ID: "a", MaxAttempts: 1, Dedup: untilExecuting}
		e.job(s)
		s.ID = ""
		for range 3 {
			j := e.claimOne()
			if j.Attempt != 1 {
				e.Fatalf("attempt %d", j.Attempt)
			}
			r := jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &zero, Uncounted: true}
			e.retry(r)
			e.wantDropped("a", s)
			if again := e.retry(r); again.Attempt != 0 {
				e.Fatalf("the second call counts: %+v", again)
			}
		}
		e.wantField("without a token", "uncounted", errOf(e.q.Retry(e.ctx, jobs.Retry{ID: "a", Uncounted: true})))
	},
	"a repeated call gets the same answer": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		r := jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: ptr(far)}
		first := e.retry(r)
		r.Delay = &zero
		if again := e.retry(r); again.State != jobs.Scheduled || !again.RunAt.Equal(first.RunAt) {
			e.Fatalf("the second call changed the job: %+v, then %+v", first, again)
		}
		if c, minute := e.q.Counters(), e.q.LastMinute("f"); c.Retried != 1 || minute.Retried != 1 {
			e.Errorf("the second call is counted: %+v, %+v", c, minute)
		}
		e.retry(jobs.Retry{ID: "a"}) // an operator brings it forward
		e.claimOne()
		e.wantFenced("a", j.Lease.Token)
	},
	"an operator retries a failed job": func(e *env) {
		e.job(jobs.Submission{ID: "a", MaxAttempts: 1})
		j := e.claimOne()
		if _, err := e.q.Finish(e.ctx, jobs.Finish{ID: "a", Token: j.Lease.Token, State: jobs.Failed, Error: "broken",
			Result: []byte(`"` + strings.Repeat("r", 1000) + `"`)}); err != nil {
			e.Fatal(err)
		}
		got := e.retry(jobs.Retry{ID: "a"})
		if got.State != jobs.Queued || got.Attempt != 0 || got.Result != nil || !got.FinishedAt.IsZero() {
			e.Fatalf("retried: %+v", got)
		}
		if letters := e.letters("f"); len(letters) != 0 {
			e.Fatalf("dead letters after the retry: %+v", letters)
		}
		e.wantFenced("a", j.Lease.Token)
		again := e.claimOne()
		if again.ID != "a" || again.Attempt != 1 || again.Result != nil {
			e.Fatalf("claimed %+v", again)
		}
		e.finish(again, jobs.Complete)
	},
	"an operator's retry that is sent again does not run a job that failed again": func(e *env) {
		e.job(jobs.Submission{ID: "a", MaxAttempts: 1})
		e.finish(e.claimOne(), jobs.Failed)
		seen, err := e.q.Get(e.ctx, "a")
		e.ok(err)
		if got := e.retry(jobs.Retry{ID: "a", EndedBy: seen.FinishedAt}); got.State != jobs.Queued {
			e.Fatalf("retried: %+v", got)
		}
		e.pass(time.Second)
		e.finish(e.claimOne(), jobs.Failed)
		if _, err := e.q.Retry(e.ctx, jobs.Retry{ID: "a", EndedBy: seen.FinishedAt}); refused(err, jobs.ErrConflict).State != jobs.Failed {
			e.Errorf("sent again: %v", err)
		}
		if err := e.q.DoAll(e.ctx, jobs.ActionRetry, []string{"a"}, seen.FinishedAt)[0]; !errors.Is(err, jobs.ErrConflict) {
			e.Errorf("sent again with others: %v", err)
		}
		if got := e.retry(jobs.Retry{ID: "a", EndedBy: seen.FinishedAt.Add(time.Hour)}); got.State != jobs.Queued {
			e.Errorf("retried: %+v", got)
		}
	},
	"an operator retries with a delay": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.finish(e.claimOne(), jobs.Failed)
		if got := e.retry(jobs.Retry{ID: "a", Delay: ptr(far)}); got.State != jobs.Scheduled {
			e.Fatalf("retried: %+v", got)
		}
		if got := e.retry(jobs.Retry{ID: "a"}); got.State != jobs.Queued {
			e.Fatalf("brought forward: %+v", got)
		}
	},
	"an operator retries a cancelled job": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.cancel("a")
		e.retry(jobs.Retry{ID: "a"})
		j := e.claimOne()
		e.cancel("a")
		e.finish(j, jobs.Cancelled)
		if got := e.retry(jobs.Retry{ID: "a"}); got.CancelRequested {
			e.Fatal("the new run starts cancelled")
		}
		e.finish(e.claimOne(), jobs.Complete)
	},
	"other states cannot be retried by an operator": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.retryConflict(jobs.Retry{ID: "a"}, jobs.Queued)
		j := e.claimOne()
		e.retryConflict(jobs.Retry{ID: "a"}, jobs.Active)
		e.finish(j, jobs.Complete)
		e.retryConflict(jobs.Retry{ID: "a"}, jobs.Complete)
		e.wantErr("unknown job", jobs.ErrNotFound, errOf(e.q.Retry(e.ctx, jobs.Retry{ID: "nobody"})))
	},
	"a cancelled job is not queued again": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		e.cancel("a")
		for range 2 { // the answer to the first call may have been lost
			if got := e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: &zero}); got.State != jobs.Cancelled {
				e.Fatalf("handed back after a cancel: %+v", got)
			}
		}
		e.claimNone()
	},
	"bad fields are named": func(e *env) {
		for field, r := range map[string]jobs.Retry{
			"id":          {ID: "a b"},
			"lease_token": {ID: "a", Token: "t t"},
			"delay_ms":    {ID: "a", Delay: ptr(jobs.MaxDelay + 1)},
			"delay_ms ":   {ID: "a", Delay: ptr(time.Duration(-1))},
			"error":       {ID: "a", Error: strings.Repeat("x", jobs.MaxErrorBytes+1)},
			"error ":      {ID: "a", Error: "M\xfcller"},
		} {
			e.wantField(field, strings.TrimSpace(field), errOf(e.q.Retry(e.ctx, r)))
		}
	},
}

var cancelTests = map[string]func(*env){
	"a cancelled job never runs": func(e *env) {
		e.job(jobs.Submission{ID: "queued"})
		e.job(jobs.Submission{ID: "scheduled", Delay: span})
		for _, id := range []string{"queued", "scheduled"} {
			got := e.cancel(id)
			if got.State != jobs.Cancelled || got.FinishedAt.IsZero() {
				e.Fatalf("cancelled: %+v", got)
			}
			if again := e.cancel(id); !again.FinishedAt.Equal(got.FinishedAt) {
				e.Fatalf("cancelled twice: %+v, then %+v", got, again)
			}
		}
		e.pass(span)
		e.claimNone()
	},
	"a worker learns of a cancel with its next heartbeat": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		got := e.cancel("a")
		if got.State != jobs.Active || !got.CancelRequested {
			e.Fatalf("cancelled while active: %+v", got)
		}
		if left := got.Lease.ExpiresIn; left <= 0 || left > j.Lease.Duration {
			e.Fatalf("the lease of the cancelled job has %v left of %v", left, j.Lease.Duration)
		}
		e.cancel("a")
		beat, err := e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 0, nil)
		if err != nil || !beat.Cancelled {
			e.Fatalf("heartbeat: %+v, %v", beat, err)
		}
		e.finish(j, jobs.Cancelled)
		e.claimNone()
		if n := e.q.Counters().CancelRequests; n != 1 {
			e.Fatalf("%d cancels counted", n)
		}
	},
	"a finish counts if the worker did not know of the cancel": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		e.cancel("a")
		e.finish(j, jobs.Complete)
	},
	"a terminal job cannot be cancelled": func(e *env) {
		for _, s := range []jobs.State{jobs.Complete, jobs.Failed} {
			a := e.job(jobs.Submission{})
			e.finish(e.claimOne(), s)
			_, err := e.q.Cancel(e.ctx, a.ID)
			if refused(err, jobs.ErrConflict).State != s {
				e.Errorf("cancel of a %s job: %v", s, err)
			}
		}
		e.wantErr("unknown job", jobs.ErrNotFound, errOf(e.q.Cancel(e.ctx, "nobody")))
		e.wantField("no id", "id", errOf(e.q.Cancel(e.ctx, "")))
	},
}
