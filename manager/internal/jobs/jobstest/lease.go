package jobstest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// wantFenced checks that every call with the token is refused.
func (e *env) wantFenced(id, token string) {
	e.Helper()
	calls := map[string]error{}
	_, calls["heartbeat"] = e.q.Heartbeat(e.ctx, id, token, 0, nil)
	_, calls["finish"] = e.q.Finish(e.ctx, jobs.Finish{ID: id, Token: token, State: jobs.Complete})
	_, calls["retry"] = e.q.Retry(e.ctx, jobs.Retry{ID: id, Token: token})
	for name, err := range calls {
		if !errors.Is(err, jobs.ErrFenced) || refused(err, jobs.ErrFenced).ID != id {
			e.Errorf("%s with a stale token: got %v, want ErrFenced", name, err)
		}
	}
}

var leaseTests = map[string]func(*env){
	"while a lease holds nobody else gets the job": func(e *env) {
		e.job(jobs.Submission{})
		e.claimOne()
		e.claimNone()
		e.duties(e.q)
		e.claimNone()
	},
	"a lease that runs out delivers the job again": func(e *env) {
		a := e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b"})
		first := e.claim(jobs.ClaimRequest{Worker: "crashes", Lease: span})[0]
		e.pass(span)
		second := e.claimOne() // a before b: it keeps its place
		if second.ID != a.ID || second.Attempt != 2 || second.Lease.Token == first.Lease.Token {
			e.Fatalf("second delivery %+v after %+v", second, first)
		}
		if !strings.Contains(second.Error, "crashes") || !strings.Contains(second.Error, "attempt 1 of 25") {
			e.Fatalf("error %q does not tell what happened", second.Error)
		}
		e.wantFenced("a", first.Lease.Token)
		e.finish(second, jobs.Complete)
		e.wantFenced("a", first.Lease.Token)
	},
	"a lease lost with all attempts used up is a dead letter": func(e *env) {
		e.job(jobs.Submission{ID: "a", MaxAttempts: 2})
		var last jobs.Job
		for range 2 {
			last = e.claim(jobs.ClaimRequest{Worker: "crashes", Lease: span})[0]
			e.pass(span)
		}
		e.claimNone()
		j := e.wantState("a", jobs.Failed)
		if j.State != jobs.Failed || j.Attempt != 2 || !strings.Contains(j.Error, "attempt 2 of 2") || j.FinishedAt.IsZero() {
			e.Fatalf("job %+v", j)
		}
		e.wantFenced("a", last.Lease.Token)
		if letters := e.letters("f"); len(letters) != 1 || letters[0].Error != j.Error {
			e.Fatalf("dead letters %+v", letters)
		}
	},
	"lost leases and dead letters are reported once": func(e *env) {
		var mu sync.Mutex
		var reported []string
		e.q = e.queue(jobs.Options{
			Lost: func(j jobs.Job, worker string) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, fmt.Sprintf("%s of %s lost %s and is %s", j.ID, j.Function, worker, j.State))
			},
			Died: func(j jobs.Job) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, fmt.Sprintf("%s died after %d", j.ID, j.Attempt))
			},
		})
		e.job(jobs.Submission{ID: "a", MaxAttempts: 2})
		e.claim(jobs.ClaimRequest{Worker: "w1", Lease: span})
		e.pass(span)
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Worker: "w2", Lease: span}), "a") // revokes the lease itself
		e.pass(span)
		e.duties(e.q)
		e.duties(e.q)
		e.job(jobs.Submission{ID: "b"})
		j := e.claimOne()
		e.finish(j, jobs.Failed)
		e.finish(j, jobs.Failed) // repeated
		e.job(jobs.Submission{ID: "c"})
		e.ok(errOf(e.q.FinishMany(e.ctx, []jobs.Finish{{ID: "c", Token: e.claimOne().Lease.Token, State: jobs.Failed}})))
		mu.Lock()
		defer mu.Unlock()
		want := []string{"a of f lost w1 and is queued", "a of f lost w2 and is failed", "a died after 2", "b died after 1", "c died after 1"}
		if !slices.Equal(reported, want) {
			e.Errorf("reported %q, want %q", reported, want)
		}
		if r := e.q.LastMinute("f"); r.Retried != 1 || r.Failed != 3 {
			e.Errorf("rates %+v", r)
		}
	},
	"a heartbeat extends the lease": func(e *env) {
		a := e.job(jobs.Submission{})
		j := e.claim(jobs.ClaimRequest{Lease: 5 * time.Minute})[0]
		beat, err := e.q.Heartbeat(e.ctx, a.ID, j.Lease.Token, 0, nil)
		if err != nil || beat.Cancelled || beat.ExpiresIn != 5*time.Minute {
			e.Fatalf("heartbeat: %+v, %v", beat, err)
		}
		before := e.now().Truncate(time.Microsecond)
		beat, err = e.q.Heartbeat(e.ctx, a.ID, j.Lease.Token, 20*time.Hour, nil)
		if err != nil || beat.ExpiresIn != 20*time.Hour {
			e.Fatalf("heartbeat: %+v, %v", beat, err)
		}
		if until := e.get(a.ID).Lease.Until; until.Before(before.Add(20 * time.Hour)) {
			e.Fatalf("lease until %s, beat after %s", until, before)
		}
		e.pass(19 * time.Hour)
		e.claimNone()
	},
	"a heartbeat may shorten the lease": func(e *env) {
		a := e.job(jobs.Submission{})
		j := e.claim(jobs.ClaimRequest{Lease: time.Hour})[0]
		e.ok(errOf(e.q.Heartbeat(e.ctx, a.ID, j.Lease.Token, jobs.MinLease, nil)))
		e.pass(jobs.MinLease)
		if got := e.claimOne(); got.ID != a.ID {
			e.Fatalf("claimed %s", got.ID)
		}
	},
	"a lease that ran out is still its worker's until it is revoked": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b"})
		got := e.claim(jobs.ClaimRequest{Lease: span, Limit: 2})
		e.pass(span)
		if _, err := e.q.Heartbeat(e.ctx, "a", got[0].Lease.Token, time.Hour, nil); err != nil {
			e.Fatalf("late heartbeat: %v", err)
		}
		e.finish(got[1], jobs.Complete)
		e.claimNone()
		e.finish(got[0], jobs.Complete)
	},
	"a token of another job is stale": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b"})
		got := e.claim(jobs.ClaimRequest{Limit: 2})
		e.wantFenced("a", got[1].Lease.Token)
		e.wantFenced("b", "made-up")
		e.wantState("a", jobs.Active)
		e.job(jobs.Submission{ID: "queued"})
		e.wantFenced("queued", got[0].Lease.Token)
		if n := e.q.Counters().Fenced; n != 9 {
			e.Fatalf("%d fenced calls counted, want 9", n)
		}
	},
	"a lost worker's cancelled job is over": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.claim(jobs.ClaimRequest{Lease: span})
		e.cancel("a")
		e.pass(span)
		e.claimNone()
		e.wantState("a", jobs.Cancelled)
	},
	"bad fields are named": func(e *env) {
		a := e.job(jobs.Submission{})
		j := e.claimOne()
		for _, c := range []struct {
			field, id, token string
			lease            time.Duration
		}{
			{"id", "", j.Lease.Token, 0},
			{"id", "a b", j.Lease.Token, 0},
			{"lease_token", a.ID, "", 0},
			{"lease_token", a.ID, strings.Repeat("x", 65), 0},
			{"lease_ms", a.ID, j.Lease.Token, time.Millisecond},
			{"lease_ms", a.ID, j.Lease.Token, jobs.MaxLease + 1},
			{"lease_ms", a.ID, j.Lease.Token, -time.Second},
		} {
			e.wantField(fmt.Sprintf("%+v", c), c.field, errOf(e.q.Heartbeat(e.ctx, c.id, c.token, c.lease, nil)))
		}
		_, err := e.q.Heartbeat(e.ctx, "nobody", j.Lease.Token, 0, nil)
		if !errors.Is(err, jobs.ErrNotFound) || refused(err, jobs.ErrNotFound).ID != "nobody" {
			e.Errorf("unknown job: %v", err)
		}
	},
}

var finishTests = map[string]func(*env){
	"complete keeps the result": func(e *env) {
		for _, result := range []string{``, `{"n": 1}`, `null`, `"` + strings.Repeat("r", 3000) + `"`} {
			a := e.job(jobs.Submission{})
			j := e.claimOne()
			f := jobs.Finish{ID: a.ID, Token: j.Lease.Token, State: jobs.Complete}
			if result != "" {
				f.Result = []byte(result)
			}
			done, err := e.q.Finish(e.ctx, f)
			e.ok(err)
			for _, got := range []jobs.Job{done, e.get(a.ID)} {
				if string(got.Result) != result || (got.Result == nil) != (f.Result == nil) || got.State != jobs.Complete ||
					got.Lease != nil || got.FinishedAt.Before(got.StartedAt) {
					e.Fatalf("finished with %.20s: %+v", result, got)
				}
			}
		}
		e.claimNone()
	},
	"a failed job is terminal and a dead letter": func(e *env) {
		a := e.job(jobs.Submission{MaxAttempts: 10})
		j := e.claimOne()
		_, err := e.q.Finish(e.ctx, jobs.Finish{ID: a.ID, Token: j.Lease.Token, State: jobs.Failed, Error: "no such card", Result: []byte("3")})
		e.ok(err)
		got := e.wantState(a.ID, jobs.Failed)
		if got.Error != "no such card" || string(got.Result) != "3" || got.State != jobs.Failed || got.Attempt != 1 {
			e.Fatalf("job %+v", got)
		}
		e.claimNone()
	},
	"a repeated call gets the same answer": func(e *env) {
		for _, s := range []jobs.State{jobs.Complete, jobs.Failed, jobs.Cancelled} {
			a := e.job(jobs.Submission{})
			j := e.claimOne()
			first := e.finish(j, s)
			again := e.finish(j, s)
			if !again.FinishedAt.Equal(first.FinishedAt) {
				e.Fatalf("the second call changed the job: %+v, then %+v", first, again)
			}
			other := jobs.Complete
			if s == jobs.Complete {
				other = jobs.Failed
			}
			_, err := e.q.Finish(e.ctx, jobs.Finish{ID: a.ID, Token: j.Lease.Token, State: other})
			if refused(err, jobs.ErrConflict).State != s {
				e.Fatalf("finished as %s, then as %s: %v", s, other, err)
			}
			e.wantState(a.ID, s)
		}
	},
	"many finishes in one call are each judged by itself": func(e *env) {
		var calls []jobs.Finish
		for range 5 {
			a := e.job(jobs.Submission{Dedup: reschedule, Payload: []byte(fmt.Sprint(len(calls)))})
			calls = append(calls, jobs.Finish{ID: a.ID, Token: e.claimOne().Lease.Token, State: jobs.Complete})
		}
		calls[1].Token = "stale"
		calls[2].ID = "nobody"
		calls[3].Result = []byte("{")
		calls = append(calls, calls[0], calls[4])
		calls[6].State = jobs.Failed
		got, err := e.q.FinishMany(e.ctx, calls)
		if err != nil || len(got) != len(calls) {
			e.Fatalf("%d answers, %v", len(got), err)
		}
		for i, want := range []error{nil, jobs.ErrFenced, jobs.ErrNotFound, jobs.ErrInvalid, nil, nil, jobs.ErrConflict} {
			if !errors.Is(got[i].Err, want) || want == nil && (got[i].Err != nil || got[i].Job.ID != calls[i].ID) {
				e.Errorf("call %d: %+v, want %v", i, got[i], want)
			}
		}
		for i, want := range []jobs.State{jobs.Complete, jobs.Active, 0, jobs.Active, jobs.Complete} {
			if want != 0 {
				e.wantState(calls[i].ID, want)
			}
		}
		if c := e.q.Counters(); c.Completed != 2 || c.Fenced != 1 {
			e.Errorf("counters %+v", c)
		}
		for _, bad := range [][]jobs.Finish{nil, make([]jobs.Finish, jobs.MaxLimit+1)} {
			e.wantField(fmt.Sprintf("%d calls", len(bad)), "finishes", errOf(e.q.FinishMany(e.ctx, bad)))
		}
	},
	"bad fields are named": func(e *env) {
		a := e.job(jobs.Submission{})
		ok := jobs.Finish{ID: a.ID, Token: e.claimOne().Lease.Token, State: jobs.Complete}
		big := []byte(`"` + strings.Repeat("x", jobs.MaxResultBytes) + `"`)
		for _, c := range []struct {
			field string
			edit  func(*jobs.Finish)
			kind  error
		}{
			{"id", func(f *jobs.Finish) { f.ID = "" }, jobs.ErrInvalid},
			{"lease_token", func(f *jobs.Finish) { f.Token = "" }, jobs.ErrInvalid},
			{"status", func(f *jobs.Finish) { f.State = jobs.Queued }, jobs.ErrInvalid},
			{"status", func(f *jobs.Finish) { f.State = 0 }, jobs.ErrInvalid},
			{"status", func(f *jobs.Finish) { f.State = 77 }, jobs.ErrInvalid},
			{"result", func(f *jobs.Finish) { f.Result = []byte("{") }, jobs.ErrInvalid},
			{"result", func(f *jobs.Finish) { f.Result = []byte("") }, jobs.ErrInvalid},
			{"result", func(f *jobs.Finish) { f.Result = big }, jobs.ErrTooLarge},
			{"error", func(f *jobs.Finish) { f.Error = string(big) }, jobs.ErrTooLarge},
			{"result", func(f *jobs.Finish) { f.Result = []byte("\"M\xfcller\"") }, jobs.ErrInvalid},
			{"error", func(f *jobs.Finish) { f.Error = "M\xfcller" }, jobs.ErrInvalid},
		} {
			f := ok
			c.edit(&f)
			err := errOf(e.q.Finish(e.ctx, f))
			e.wantField(c.field, c.field, err)
			e.wantErr(c.field, c.kind, err)
		}
		e.wantState(a.ID, jobs.Active)
		e.wantErr("unknown job", jobs.ErrNotFound, errOf(e.q.Finish(e.ctx, jobs.Finish{ID: "nobody", Token: "t", State: jobs.Complete})))
	},
}
