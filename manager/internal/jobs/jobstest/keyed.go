package jobstest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// keyedTests are about the settings of functions that have jobs with concurrency keys, or had some.
var keyedTests = map[string]func(*env){
	"a function that has no jobs with keys any more has no setting": func(e *env) {
		e.keyed("a", 2)
		e.job(jobs.Submission{ID: "later", ConcurrencyKey: "a", Delay: 3 * span})
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 5, Lease: jobs.MaxLease})
		e.wantIDs("claims", got, "a-0", "a-1")
		used := func(what string, want bool) {
			e.Helper()
			for range 3 {
				e.pass(time.Hour)
				e.duties(e.q)
			}
			if e.hasSettings() != want {
				e.Fatalf("%s: settings: %v", what, !want)
			}
		}
		e.finish(got[0], jobs.Complete)
		used("one runs, one is scheduled", true)
		e.finish(got[1], jobs.Failed)
		used("one is scheduled", true)
		used("it is queued", true)
		e.pause("f")
		used("it is paused", true)
		e.resume("f")
		e.finish(e.claimOne(), jobs.Complete)
		used("all have ended", false)
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{Limit: 5}))
		e.keyed("b", 1)
		used("another one waits", true)
		e.limit("f", jobs.Limits{MaxRunning: 5})
		e.finish(e.claimOne(), jobs.Complete)
		used("a limit", true)
		e.limit("f", jobs.Limits{})
		used("no limit", false)
	},
	"jobs that begin to wait with a key are found without a setting": func(e *env) {
		forget := func() {
			e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error {
				return errors.Join(tx.Delete("job_control", "functions"), tx.Delete("job_control", "functions_version"))
			}))
		}
		found := func(what string, want ...string) []jobs.Job {
			e.Helper()
			got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 5, Lease: time.Hour})
			e.wantIDs(what, got, want...)
			forget()
			return got
		}
		e.job(jobs.Submission{ID: "a", ConcurrencyKey: "k", Delay: time.Hour, Timeout: span})
		forget()
		e.pass(time.Hour)
		found("scheduled", "a")
		e.pass(time.Hour)
		got := found("its lease was lost", "a")
		e.ok(e.q.PutBack(got))
		got = found("put back", "a")
		e.retry(jobs.Retry{ID: "a", Token: got[0].Lease.Token, Delay: &zero})
		got = found("its worker's retry", "a")
		e.finish(got[0], jobs.Failed)
		e.retry(jobs.Retry{ID: "a"})
		got = found("an operator's retry", "a")
		e.finish(got[0], jobs.Failed)
		out, err := e.q.Replay(e.ctx, "f", "a")
		e.ok(err)
		e.finish(found("replayed", out.Job.ID)[0], jobs.Complete)
		d := *reschedule
		e.job(jobs.Submission{ID: "b", ConcurrencyKey: "k", Dedup: &d})
		got = found("submitted", "b")
		e.wantDropped("b", jobs.Submission{Dedup: &d})
		e.finish(got[0], jobs.Complete)
		e.finish(found("followed", "b~1")[0], jobs.Complete)
		if _, _, err := e.enqueueBatch(&jobs.Submission{Function: "f", ID: "end", ConcurrencyKey: "k"}, jobs.Submission{ID: "one", Function: "g"}); err != nil {
			e.Fatal(err)
		}
		forget()
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"g"}})[0], jobs.Complete)
		found("a callback", "end")
	},
	"a job that begins to wait while its function's setting is removed is found": func(e *env) {
		// Another manager's submission comes after a look at the function's jobs. Where transactions run one after the other, it
		// comes before.
		other, hooked := e.q, &hookedStore{Store: e.in.Store, index: "function"}
		if e.in.Peer != nil {
			other = e.queueOn(e.peer(), jobs.Options{})
		}
		q := e.queueOn(hooked, jobs.Options{})
		for i := range 4 {
			e.keyed(fmt.Sprint("old", i), 1)
			e.finish(e.claimOne(), jobs.Complete)
			id := fmt.Sprint("new-", i)
			submit := func() {
				if _, err := other.Enqueue(e.ctx, jobs.Submission{ID: id, Function: "f", ConcurrencyKey: "b"}); err != nil {
					e.Errorf("Enqueue: %v", err)
				}
			}
			for round := range 2 { // the second one removes the setting
				e.pass(time.Hour)
				switch {
				case round != i%2:
				case e.in.Peer != nil:
					hooked.hook = submit
				default:
					submit()
				}
				e.duties(q)
				if hooked.hook != nil {
					e.Fatalf("round %d did not look at the function's jobs", round)
				}
			}
			got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}})
			e.wantIDs("the new job", got, id)
			e.finish(got[0], jobs.Complete)
		}
	},
}

// hasSettings reports whether anything is stored about any function.
func (e *env) hasSettings() bool {
	e.Helper()
	err := e.in.Store.View(e.ctx, func(tx store.Tx) error {
		_, err := tx.Get("job_control", "functions")
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		e.Fatal(err)
	}
	return err == nil
}

// hookedStore calls hook once after a transaction has looked for jobs in an index, without claiming them.
type hookedStore struct {
	store.Store
	index string
	hook  func()
}

func (h *hookedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return h.Store.Update(ctx, func(tx store.Tx) error { return fn(hookedTx{tx, h}) })
}

type hookedTx struct {
	store.Tx
	store *hookedStore
}

func (t hookedTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	hits, err := t.Tx.Scan(c, index, r)
	if hook := t.store.hook; hook != nil && c == "jobs" && index == t.store.index && !r.Claim {
		t.store.hook = nil
		hook()
	}
	return hits, err
}
