package jobstest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (e *env) pause(f string) {
	e.Helper()
	if err := e.q.Pause(e.ctx, f); err != nil {
		e.Fatalf("Pause(%s): %v", f, err)
	}
}

func (e *env) resume(f string) {
	e.Helper()
	if err := e.q.Resume(e.ctx, f); err != nil {
		e.Fatalf("Resume(%s): %v", f, err)
	}
}

var pauseTests = map[string]func(*env){
	"paused jobs are delivered only after a resume": func(e *env) {
		e.job(jobs.Submission{ID: "f1"})
		e.pause("f")
		e.pause("f")
		e.job(jobs.Submission{ID: "f2", Priority: 9})
		e.job(jobs.Submission{ID: "f3", Delay: span})
		e.pass(span)
		e.claimNone()
		e.claimNone("f")
		e.claimNone("f", "g")
		e.wantState("f3", jobs.Queued) // due ones are queued, but stay
		e.resume("f")
		e.resume("f")
		e.wantIDs("after resume", e.claim(jobs.ClaimRequest{Limit: 10}), "f2", "f1", "f3")
	},
	"paused jobs do not delay other functions": func(e *env) {
		e.pause("f")
		e.pause("h")
		for i := range 40 {
			e.job(jobs.Submission{ID: fmt.Sprintf("f%02d", i), Priority: 10})
			e.job(jobs.Submission{ID: fmt.Sprintf("h%02d", i), Function: "h", Priority: 10})
		}
		e.job(jobs.Submission{ID: "g1", Function: "g", Priority: -1})
		e.job(jobs.Submission{ID: "i1", Function: "i"})
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{Limit: 10}), "i1", "g1")
		e.job(jobs.Submission{ID: "g2", Function: "g"})
		e.wantIDs("f or g", e.claim(jobs.ClaimRequest{Functions: []string{"f", "g"}, Limit: 10}), "g2")
		e.resume("h")
		if got := e.claim(jobs.ClaimRequest{Limit: 100}); len(got) != 40 || got[0].ID != "h00" {
			e.Fatalf("after the resume of h: %v", ids(got))
		}
	},
	"a pause does not affect leased jobs": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		e.pause("f")
		e.ok(errOf(e.q.Heartbeat(e.ctx, "a", j.Lease.Token, 0, nil)))
		e.finish(j, jobs.Complete)
		e.job(jobs.Submission{ID: "b", Dedup: untilExecuting})
		e.cancel("b")
	},
	"resume wakes waiting claims": func(e *env) {
		e.pause("f")
		e.job(jobs.Submission{ID: "a"})
		c := e.waiting(e.q, jobs.ClaimRequest{Functions: []string{"f"}})
		any := e.waiting(e.q, jobs.ClaimRequest{})
		e.resume("f")
		var got []jobs.Job
		select {
		case got = <-c:
			e.job(jobs.Submission{ID: "b"})
			got = append(got, e.receive(any)...)
		case got = <-any:
			e.job(jobs.Submission{ID: "b"})
			got = append(got, e.receive(c)...)
		case <-e.ctx.Done():
			e.Fatal("resume woke nobody")
		}
		e.wantIDs("claims", got, "a", "b")
	},
	"functions are listed": func(e *env) {
		e.pause("paused.only")
		e.job(jobs.Submission{Function: "b"})
		e.job(jobs.Submission{Function: "b", Delay: far})
		e.job(jobs.Submission{Function: "a"})
		e.job(jobs.Submission{Function: "a.b"})
		e.job(jobs.Submission{Function: "a.b"})
		got := e.claim(jobs.ClaimRequest{Functions: []string{"a.b"}, Limit: 2})
		e.finish(got[0], jobs.Failed)
		e.pause("b")
		want := []jobs.Function{
			{Name: "a", Queued: 1},
			{Name: "a.b", Active: 1, Dead: 1},
			{Name: "b", Paused: true, Queued: 1, Scheduled: 1},
			{Name: "paused.only", Paused: true},
		}
		for _, limit := range []int{0, 1, 2, 3, 4} {
			var all []jobs.Function
			for cursor := ""; ; {
				page, err := e.q.Functions(e.ctx, limit, cursor)
				e.ok(err)
				for _, f := range page.Functions {
					if f.Paused == f.PausedAt.IsZero() || f.Dead > 0 == f.DeadAt.IsZero() || f.Queued == 0 && f.Oldest != 0 || e.now().Sub(f.PausedAt) < 0 {
						e.Errorf("times of %+v", f)
					}
					f.PausedAt, f.DeadAt, f.Oldest = time.Time{}, time.Time{}, 0
					all = append(all, f)
				}
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			if fmt.Sprint(all) != fmt.Sprint(want) {
				e.Fatalf("limit %d: got %v, want %v", limit, all, want)
			}
		}
	},
	"bad fields are named": func(e *env) {
		var fe *jobs.FieldError
		for _, err := range []error{
			e.q.Pause(e.ctx, ""), e.q.Resume(e.ctx, "a/b"),
			errOf(e.q.Functions(e.ctx, 1001, "")),
			errOf(e.q.Functions(e.ctx, 0, "\x00")),
		} {
			if !errors.As(err, &fe) {
				e.Errorf("got %v, want a FieldError", err)
			}
		}
	},
}

// bury makes a dead letter.
func (e *env) bury(s jobs.Submission, reason string) jobs.Job {
	e.Helper()
	a := e.job(s)
	j := e.claimOne()
	if j.ID != a.ID {
		e.Fatalf("claimed %s, want %s", j.ID, a.ID)
	}
	done, err := e.q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Failed, Error: reason})
	e.ok(err)
	return done
}

// letters are the dead letters of a function, with their payloads.
func (e *env) letters(function string) []jobs.Job {
	e.Helper()
	return e.list(jobs.ListQuery{Function: function, State: jobs.Failed, Payloads: true})
}

var deadTests = map[string]func(*env){
	"failures are listed per function with reason and time": func(e *env) {
		payload := []byte(`"` + strings.Repeat("p", 1000) + `"`)
		a := e.bury(jobs.Submission{ID: "a", Payload: payload}, "no money")
		e.bury(jobs.Submission{ID: "b"}, "")
		e.bury(jobs.Submission{ID: "c", Function: "g"}, "other function")
		e.job(jobs.Submission{})
		e.finish(e.claimOne(), jobs.Complete)
		got := e.letters("f")
		if len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" || got[0].Error != "no money" || got[1].Error != "" ||
			!got[0].FinishedAt.Equal(a.FinishedAt) || string(got[0].Payload) != string(payload) || got[0].State != jobs.Failed {
			e.Fatalf("dead letters %+v", got)
		}
		if n := len(e.letters("g")) + len(e.letters("ff")); n != 1 {
			e.Fatalf("%d dead letters of g and ff, want 1", n)
		}
	},
	"a cursor lists all dead letters": func(e *env) {
		var want []string
		for i := range 25 {
			id := fmt.Sprintf("j%02d", i)
			e.bury(jobs.Submission{ID: id}, "x")
			want = append(want, id)
		}
		e.wantIDs("dead letters", e.list(jobs.ListQuery{Function: "f", State: jobs.Failed, Limit: 7}), want...)
	},
	"replay enqueues a fresh job and removes the letter": func(e *env) {
		payload := []byte(`"` + strings.Repeat("p", 1000) + `"`)
		e.bury(jobs.Submission{ID: "a", Key: "k", Payload: payload, Priority: 4, MaxAttempts: 2,
			WALLocations: jobs.WALLocations{{Database: "main", LSN: 7}}}, "x")
		out, err := e.q.Replay(e.ctx, "f", "a")
		if err != nil || !out.Created() {
			e.Fatalf("Replay: %+v, %v", out, err)
		}
		if n := len(e.letters("f")); n != 0 {
			e.Fatalf("%d dead letters are left", n)
		}
		j := e.claimOne()
		if j.ID != out.Job.ID || j.ID == "a" || string(j.Payload) != string(payload) || j.Key != "k" || j.Priority != 4 ||
			j.Attempt != 1 || j.MaxAttempts != 2 || j.WALLocations.Map()["main"] != "0/7" {
			e.Fatalf("replayed job %+v", j)
		}
		old := e.wantState("a", jobs.Replayed)
		if old.ReplayedAs != out.Job.ID || old.Error != "x" || string(old.Payload) != string(payload) {
			e.Fatalf("the replayed job %+v", old)
		}
		e.wantIDs("replayed jobs", e.list(jobs.ListQuery{State: jobs.Replayed}), "a")
		e.wantIDs("failed jobs", e.list(jobs.ListQuery{State: jobs.Failed}))
	},
	"a replayed job runs as its copy and never again": func(e *env) {
		a := e.bury(jobs.Submission{ID: "a"}, "x")
		b := e.bury(jobs.Submission{ID: "b"}, "x")
		for _, j := range []jobs.Job{a, b} {
			out, err := e.q.Replay(e.ctx, "f", j.ID)
			e.ok(err)
			for name, call := range map[string]func() error{
				"retry":  func() error { _, err := e.q.Retry(e.ctx, jobs.Retry{ID: j.ID}); return err },
				"replay": func() error { _, err := e.q.Replay(e.ctx, "f", j.ID); return err },
				"cancel": func() error { _, err := e.q.Cancel(e.ctx, j.ID); return err },
			} {
				if err := call(); refused(err, jobs.ErrConflict).State != jobs.Replayed || !strings.Contains(err.Error(), out.Job.ID) {
					e.Errorf("%s of a replayed job: %v", name, err)
				}
			}
			e.wantErr("replay of another function's", jobs.ErrNotFound, errOf(e.q.Replay(e.ctx, "g", j.ID)))
			e.finish(e.claimOne(), jobs.Complete)
		}
		e.claimNone()
	},
	"a worker whose answer was lost learns that its failed job was replayed": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		j := e.claimOne()
		f := jobs.Finish{ID: "a", Token: j.Lease.Token, State: jobs.Failed}
		e.finish(j, jobs.Failed)
		e.ok(errOf(e.q.Replay(e.ctx, "f", "a")))
		if again, err := e.q.Finish(e.ctx, f); err != nil || again.State != jobs.Replayed {
			e.Errorf("the finish again: %+v, %v", again, err)
		}
		f.State = jobs.Replayed
		e.wantField("finished as replayed", "status", errOf(e.q.Finish(e.ctx, f)))
	},
	"a replayed job is kept from its replay on": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span})
		e.bury(jobs.Submission{ID: "a"}, "x")
		e.pass(span)
		e.ok(errOf(e.q.Replay(e.ctx, "f", "a")))
		e.duties(q)
		e.wantState("a", jobs.Replayed)
		e.pass(span)
		e.duties(q)
		e.wantErr("after its time", jobs.ErrNotFound, errOf(e.q.Get(e.ctx, "a")))
	},
	"the letter stays when the replay is not enqueued": func(e *env) {
		e.bury(jobs.Submission{ID: "a", Key: "k"}, "x")
		holder := e.job(jobs.Submission{Key: "k"})
		e.wantErr("replay while the key is held", jobs.ErrDuplicateKey, errOf(e.q.Replay(e.ctx, "f", "a")))
		if n := len(e.letters("f")); n != 1 {
			e.Fatalf("%d dead letters after the refusal, want 1", n)
		}
		e.cancel(holder.ID)
		s := jobs.Submission{Function: "g", Dedup: untilExecuted}
		e.bury(s, "x")
		s.ID = "live"
		e.job(s)
		out, err := e.q.Replay(e.ctx, "g", e.letters("g")[0].ID)
		if err != nil || !out.Deduplicated || out.Job.ID != "live" {
			e.Fatalf("replay of a duplicate: %+v, %v", out, err)
		}
		if n := len(e.letters("g")); n != 1 {
			e.Fatalf("%d dead letters after the duplicate, want 1", n)
		}
		e.cancel("live")
		for _, f := range []string{"f", "g"} {
			if _, err := e.q.Replay(e.ctx, f, e.letters(f)[0].ID); err != nil {
				e.Fatalf("replay when the way is free: %v", err)
			}
		}
	},
	"only dead letters of the function can be replayed": func(e *env) {
		e.bury(jobs.Submission{ID: "a"}, "x")
		e.job(jobs.Submission{ID: "live"})
		for _, c := range [][2]string{{"g", "a"}, {"f", "live"}, {"f", "nobody"}} {
			e.wantErr(fmt.Sprintf("Replay(%s, %s)", c[0], c[1]), jobs.ErrNotFound, errOf(e.q.Replay(e.ctx, c[0], c[1])))
		}
		var fe *jobs.FieldError
		for _, err := range []error{
			errOf(e.q.Replay(e.ctx, "", "a")),
			errOf(e.q.Replay(e.ctx, "f", "")),
			errOf(e.q.List(e.ctx, jobs.ListQuery{Function: "f", State: jobs.Failed, Limit: -1})),
			errOf(e.q.List(e.ctx, jobs.ListQuery{Function: "f", State: jobs.Failed, Cursor: "!"})),
			errOf(e.q.List(e.ctx, jobs.ListQuery{Function: "f", State: jobs.Failed, Cursor: "_wAB"})),
		} {
			if !errors.As(err, &fe) {
				e.Errorf("got %v, want a FieldError", err)
			}
		}
	},
}
