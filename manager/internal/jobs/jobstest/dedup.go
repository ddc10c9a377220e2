package jobstest

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func dedup(d jobs.Dedup) *jobs.Dedup { return &d }

// wantDropped submits s, which must be dropped as a duplicate of kept.
func (e *env) wantDropped(kept string, s jobs.Submission) jobs.Outcome {
	e.Helper()
	out := e.submit(s)
	if !out.Deduplicated || out.Created() || out.Job.ID != kept {
		e.Fatalf("outcome %+v, want a duplicate of %s", out, kept)
	}
	return out
}

var (
	untilExecuting = dedup(jobs.Dedup{})
	untilExecuted  = dedup(jobs.Dedup{Strategy: jobs.UntilExecuted})
	reschedule     = dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true})
)

var dedupTests = map[string]func(*env){
	"until_executing drops duplicates until the job starts": func(e *env) {
		s := jobs.Submission{Payload: []byte(`{"a":1}`), Dedup: untilExecuting}
		a := e.job(s)
		e.wantDropped(a.ID, s)
		e.wantDropped(a.ID, s)
		if got := e.claimOne(); got.ID != a.ID {
			e.Fatalf("claimed %s", got.ID)
		}
		e.claimNone()
		b := e.job(s) // a runs, so its lock is free
		e.wantDropped(b.ID, s)
	},
	"until_executed drops duplicates until the job is over": func(e *env) {
		for _, s := range []jobs.State{jobs.Complete, jobs.Failed, jobs.Cancelled} {
			sub := jobs.Submission{Payload: []byte(`1`), Dedup: untilExecuted}
			a := e.job(sub)
			e.wantDropped(a.ID, sub)
			j := e.claimOne()
			e.wantDropped(a.ID, sub)
			e.finish(j, s)
			e.cancel(e.job(sub).ID)
		}
	},
	"the lock of a job that is retried holds until it is over": func(e *env) {
		s := jobs.Submission{Dedup: untilExecuted}
		a := e.job(s)
		j := e.claimOne()
		e.retry(jobs.Retry{ID: a.ID, Token: j.Lease.Token, Delay: ptr(time.Duration(0))})
		e.wantDropped(a.ID, s)
		e.finish(e.claimOne(), jobs.Complete)
		e.job(s)
	},
	"the identity is function and payload": func(e *env) {
		s := jobs.Submission{Payload: []byte(`{"a": [1, 2]}`), Dedup: untilExecuting}
		a := e.job(s)
		s.Payload = []byte("{\"a\":\n[1,2]}")
		e.wantDropped(a.ID, s)
		s.Payload = []byte(`{"a": [2, 1]}`)
		e.job(s)
		s.Payload = []byte(`{"b":1,"a":{"d":"é","c":[1,100]}}`)
		b := e.job(s)
		s.Payload = []byte(`{"a": {"c": [1.0, 1e2], "d": "\u00e9"}, "b": 1.00}`)
		e.wantDropped(b.ID, s)
		s.Function = "g"
		e.job(s)
		s.Dedup = nil
		e.job(s) // without the object nothing is dropped
	},
	"owners do not share identities, but keys": func(e *env) {
		s := jobs.Submission{Dedup: untilExecuted, Owner: "ann"}
		a := e.job(s)
		s.Owner = "bob"
		b := e.job(s)
		e.wantDropped(b.ID, s)
		s.Owner = "ann"
		e.wantDropped(a.ID, s)
		e.job(jobs.Submission{Key: "a b", Owner: "ann"})
		e.wantErr("another owner's key", jobs.ErrDuplicateKey, errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "a b", Owner: "bob"})))
	},
	"a key replaces the payload in the identity": func(e *env) {
		s := jobs.Submission{Payload: []byte(`1`), Key: "k", Dedup: untilExecuting}
		a := e.job(s)
		s.Payload = []byte(`2`)
		e.wantDropped(a.ID, s) // as a duplicate, before its key is looked at
		s.Key = "other"
		e.job(s)
	},
	"a dedup key is independent of the job's key": func(e *env) {
		s := jobs.Submission{Payload: []byte(`1`), Dedup: dedup(jobs.Dedup{Key: "a b"})}
		a := e.job(s)
		s.Payload = []byte(`2`)
		e.wantDropped(a.ID, s)
		e.claimOne()
		b := e.job(s)
		e.wantDropped(b.ID, s)
		if b.Key != "" {
			e.Fatalf("the job got the key %q", b.Key)
		}
		s.Dedup = dedup(jobs.Dedup{Key: "other"})
		e.job(s)
	},
	"one live job per key also among jobs with dedup": func(e *env) {
		s := jobs.Submission{Key: "k", Dedup: untilExecuting}
		a := e.job(s)
		e.claimOne()
		e.wantHeld(a.ID, errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k", Dedup: untilExecuting})))
	},
	"a scheduled job is a duplicate as any other": func(e *env) {
		for _, d := range []*jobs.Dedup{untilExecuting, untilExecuted} {
			s := jobs.Submission{Dedup: d, Delay: span}
			a := e.job(s)
			e.wantDropped(a.ID, s)
			now := s
			now.Delay = 0
			e.wantDropped(a.ID, now)
			e.pass(span)
			e.wantDropped(a.ID, s) // it is due
			e.duties(e.q)
			e.wantDropped(a.ID, now)
			e.finish(e.claimOne(), jobs.Complete)
			e.claimNone()
			b := e.job(now)
			e.wantDropped(b.ID, s)
			e.cancel(b.ID)
		}
	},
	"an operator's retry is a duplicate again, or refused": func(e *env) {
		for i, end := range []jobs.State{jobs.Failed, jobs.Cancelled} {
			for _, d := range []*jobs.Dedup{untilExecuting, untilExecuted} {
				s := jobs.Submission{Payload: []byte(fmt.Sprint(i)), Dedup: d}
				a := e.job(s)
				e.finish(e.claimOne(), end)
				e.retry(jobs.Retry{ID: a.ID})
				e.wantDropped(a.ID, s)
				e.finish(e.claimOne(), end)

				b := e.job(s)
				_, err := e.q.Retry(e.ctx, jobs.Retry{ID: a.ID})
				if dup := refused(err, jobs.ErrDuplicateKey); dup.ID != b.ID || dup.Key != "" {
					e.Fatalf("retry beside another holder: %v", err)
				}
				e.wantState(a.ID, end)
				e.finish(e.claimOne(), jobs.Complete)
				e.retry(jobs.Retry{ID: a.ID, Delay: ptr(span)})
				e.wantDropped(a.ID, s) // also while it is scheduled
				e.cancel(a.ID)
			}
		}
	},
	"a cancelled job keeps lock and key until its worker lets go": func(e *env) {
		for _, lost := range []bool{false, true} {
			s := jobs.Submission{Key: "k", Dedup: untilExecuted}
			a := e.job(s)
			j := e.claim(jobs.ClaimRequest{Lease: span})[0]
			e.cancel(a.ID)
			if out := e.wantDropped(a.ID, s); out.Job.State != jobs.Active || !out.Job.CancelRequested {
				e.Fatalf("the answer hides that the first one still runs: %+v", out.Job)
			}
			_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})
			if dup := refused(err, jobs.ErrDuplicateKey); dup.ID != a.ID || dup.State != jobs.Active || !dup.CancelRequested {
				e.Fatalf("the key: %v", err)
			}
			e.claimNone()
			if lost {
				e.pass(span)
				e.duties(e.q)
			} else {
				e.finish(j, jobs.Cancelled)
			}
			e.cancel(e.job(s).ID)
		}
	},
	"reschedule_once follows a cancel if duplicates came after it": func(e *env) {
		s := jobs.Submission{Dedup: reschedule}
		a := e.job(s)
		j := e.claimOne()
		e.cancel(a.ID)
		e.wantDropped(a.ID, s)
		e.cancel(a.ID) // changes nothing
		e.finish(j, jobs.Cancelled)
		e.finish(e.claimOne(), jobs.Complete)
		e.claimNone()
	},
	"the lock's time moves with run_at": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, TTL: span})}
		e.job(s)
		s.ID = ""
		e.retry(jobs.Retry{ID: "a", Token: e.claimOne().Lease.Token, Delay: ptr(2 * span)}) // backs off
		e.pass(span)
		e.wantDropped("a", s)
		e.retry(jobs.Retry{ID: "a", Delay: ptr(far)}) // an operator moves it
		e.pass(2 * span)
		e.wantDropped("a", s)
		e.retry(jobs.Retry{ID: "a"})
		e.pass(span)
		e.job(s) // and back
	},
	"the lock's time counts from run_at": func(e *env) {
		d := span
		s := jobs.Submission{Dedup: dedup(jobs.Dedup{TTL: far}), Delay: d}
		a := e.job(s)
		e.pass(d)
		e.wantDropped(a.ID, s)
	},
	"a ttl frees a leaked lock": func(e *env) {
		s := jobs.Submission{Dedup: dedup(jobs.Dedup{TTL: span})}
		a := e.job(s)
		e.wantDropped(a.ID, s)
		e.pass(span)
		b := e.job(s)
		e.wantDropped(b.ID, s)
		// a's start does not free the lock that b took over.
		s.Dedup = dedup(jobs.Dedup{TTL: far})
		e.pass(span)
		c := e.job(s)
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Limit: 2}), a.ID, b.ID)
		e.wantDropped(c.ID, s)
	},
	"the default ttl is six hours": func(e *env) {
		s := jobs.Submission{Dedup: untilExecuting}
		a := e.job(s)
		e.pass(6*time.Hour - time.Minute)
		e.wantDropped(a.ID, s)
		e.pass(time.Minute)
		e.job(s)
	},
	"a cancelled job's lock is free": func(e *env) {
		s := jobs.Submission{Dedup: untilExecuted}
		e.cancel(e.job(s).ID)
		e.job(s)
	},
	"reschedule_once runs the job once more when duplicates came": func(e *env) {
		payload := []byte(fmt.Sprintf(`"%02000d"`, 7)) // in a record of its own
		s := jobs.Submission{ID: "a", Key: "k", Payload: payload, Priority: 3, MaxAttempts: 4, Dedup: reschedule}
		e.job(s)
		s.ID = ""
		first := e.claimOne()
		e.wantDropped("a", s)
		e.wantDropped("a", s)
		e.claimNone()
		e.finish(first, jobs.Complete)
		again := e.claimOne()
		if again.ID == "a" || string(again.Payload) != string(payload) || again.Key != "k" || again.Priority != 3 ||
			again.Attempt != 1 || again.MaxAttempts != 4 {
			e.Fatalf("second run %+v", again)
		}
		e.wantState("a", jobs.Complete)
		e.wantDropped(again.ID, s) // it holds lock and key as the first did
		e.finish(again, jobs.Failed)
		third := e.claimOne()
		e.finish(third, jobs.Complete)
		e.claimNone() // no duplicates came to the third
	},
	"reschedule_once counts duplicates that came before the start": func(e *env) {
		s := jobs.Submission{Dedup: reschedule}
		a := e.job(s)
		e.wantDropped(a.ID, s)
		e.finish(e.claimOne(), jobs.Complete)
		e.finish(e.claimOne(), jobs.Complete)
		e.claimNone()
	},
	"reschedule_once does nothing without duplicates or after a cancel": func(e *env) {
		s := jobs.Submission{Dedup: reschedule}
		e.job(s)
		e.finish(e.claimOne(), jobs.Complete)
		e.claimNone()
		b := e.job(s)
		e.wantDropped(b.ID, s)
		e.cancel(b.ID)
		e.claimNone()
		c := e.job(s)
		e.wantDropped(c.ID, s)
		e.finish(e.claimOne(), jobs.Cancelled)
		e.claimNone()
	},
	"reschedule_once follows a job that lost its last lease": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: reschedule, MaxAttempts: 1}
		e.job(s)
		s.ID = ""
		e.claim(jobs.ClaimRequest{Lease: span})
		e.wantDropped("a", s)
		e.pass(span)
		if got := e.claimOne(); got.ID == "a" {
			e.Fatal("the failed job was delivered again")
		}
		e.wantState("a", jobs.Failed)
	},
	"reschedule_once survives the end of the lock's time": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true, TTL: span})}
		e.job(s)
		s.ID = ""
		e.wantDropped("a", s)
		first := e.claim(jobs.ClaimRequest{Lease: jobs.MaxLease})[0]
		e.pass(span)
		e.duties(e.q) // removes the lock
		e.finish(first, jobs.Complete)
		if again := e.claimOne(); again.ID == "a" {
			e.Fatal("no second run")
		}
	},
	"a later holder of the lock stands for earlier duplicates": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true, TTL: span}),
			WALLocations: jobs.WALLocations{{Database: "main", LSN: 9}}}
		e.job(s)
		s.ID = ""
		e.wantDropped("a", s)
		first := e.claim(jobs.ClaimRequest{Lease: jobs.MaxLease})[0]
		e.pass(span)
		s.Dedup = dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true})
		s.WALLocations = nil
		s.ID = "b"
		e.job(s)
		e.finish(first, jobs.Complete)
		b := e.claimOne()
		if b.ID != "b" || b.WALLocations.Map()["main"] != "0/9" {
			e.Fatalf("claimed %+v", b)
		}
		e.claimNone()
	},
	"a run that follows never takes another job's id": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span})
		s := jobs.Submission{ID: "a", Dedup: dedup(jobs.Dedup{Strategy: jobs.UntilExecuted, RescheduleOnce: true, TTL: span})}
		run := func() jobs.Job {
			e.job(s)
			dup := s
			dup.ID = ""
			e.wantDropped("a", dup)
			j := e.claimOne()
			e.finish(j, jobs.Complete)
			return j
		}
		run()
		follow := e.claim(jobs.ClaimRequest{Lease: jobs.MaxLease})[0] // keeps its id in use
		e.pass(span)                                                  // frees the lock
		e.duties(q)                                                   // forgets a
		run()
		second := e.claimOne()
		if second.ID == follow.ID || second.ID == "a" {
			e.Fatalf("the second run that follows is %s, the first %s", second.ID, follow.ID)
		}
		e.wantState(follow.ID, jobs.Active)
	},
	"duplicates hand over their database positions": func(e *env) {
		at := func(m map[string]string) jobs.WALLocations {
			w, err := jobs.ParseWALLocations(m)
			e.ok(err)
			return w
		}
		s := jobs.Submission{Dedup: reschedule, WALLocations: at(map[string]string{"main": "9/F", "ci": "0/5"})}
		a := e.job(s)
		s.WALLocations = at(map[string]string{"main": "10/1", "ci": "0/4", "new": "0/1"}) // 10/1 is later than 9/F
		out := e.wantDropped(a.ID, s)
		want := "map[ci:0/5 main:10/1 new:0/1]"
		if got := fmt.Sprint(out.Job.WALLocations.Map()); got != want {
			e.Fatalf("answer: got %s, want %s", got, want)
		}
		s.WALLocations = nil
		e.wantDropped(a.ID, s)
		j := e.claimOne()
		if got := fmt.Sprint(j.WALLocations.Map()); got != want {
			e.Fatalf("claim: got %s, want %s", got, want)
		}
		// While it runs they are kept for the run that follows.
		s.WALLocations = at(map[string]string{"ci": "0/6"})
		e.wantDropped(a.ID, s)
		e.finish(j, jobs.Complete)
		if got := fmt.Sprint(e.claimOne().WALLocations.Map()); got != "map[ci:0/6 main:10/1 new:0/1]" {
			e.Fatalf("second run: got %s", got)
		}
	},
	"more databases than a job can carry are refused": func(e *env) {
		s := jobs.Submission{Dedup: untilExecuting, WALLocations: jobs.WALLocations{{Database: "z", LSN: 1}}}
		a := e.job(s)
		s.WALLocations = nil
		for i := range jobs.MaxWALLocations {
			s.WALLocations = append(s.WALLocations, jobs.WALLocation{Database: fmt.Sprintf("db%02d", i), LSN: 1})
		}
		s.Function = "f"
		e.wantField("one too many", "wal_locations", errOf(e.q.Enqueue(e.ctx, s)))
		if got := e.get(a.ID).WALLocations.Map(); len(got) != 1 {
			e.Fatalf("positions after the refusal: %v", got)
		}
	},
}
