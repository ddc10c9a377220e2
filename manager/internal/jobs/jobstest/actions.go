package jobstest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// doBulk repeats a bulk action until nothing is left of it. In a dry run, done is how many jobs match.
func (e *env) doBulk(b jobs.Bulk) (done int, refused []string) {
	e.Helper()
	for {
		res, err := e.q.Bulk(e.ctx, b)
		if err != nil {
			e.Fatalf("Bulk(%+v): %v", b, err)
		}
		if b.Limit > 0 && res.Matched > b.Limit || !b.DryRun && res.Matched != res.Done+len(res.Refused) || b.DryRun && res.Done != 0 {
			e.Fatalf("Bulk(%+v): %+v", b, res)
		}
		if done += res.Done; b.DryRun {
			done += res.Matched
		}
		for _, r := range res.Refused {
			refused = append(refused, r.ID)
		}
		if b.Cursor = res.Cursor; b.Cursor == "" {
			return done, refused
		}
	}
}

var actionTests = map[string]func(*env){
	"a deleted job is gone with all that it had": func(e *env) {
		large := []byte(`"` + strings.Repeat("p", 2000) + `"`)
		for _, c := range []struct {
			name    string
			prepare func(jobs.Submission) jobs.Job
			want    bool
		}{
			{"queued", e.job, true},
			{"scheduled", func(s jobs.Submission) jobs.Job {
				s.Delay = span
				return e.job(s)
			}, true},
			{"failed", func(s jobs.Submission) jobs.Job { return e.bury(s, "no") }, true},
			{"cancelled", func(s jobs.Submission) jobs.Job { return e.cancel(e.job(s).ID) }, true},
			{"complete", func(s jobs.Submission) jobs.Job {
				e.job(s)
				j := e.claimOne()
				done, err := e.q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete, Result: large})
				e.ok(err)
				return done
			}, true},
		} {
			s := jobs.Submission{ID: "x", Function: "f", Key: "k", Payload: large, Dedup: untilExecuted}
			was := c.prepare(s)
			got, err := e.q.Delete(e.ctx, "x")
			if err != nil || got.ID != "x" || got.State != was.State {
				e.Fatalf("delete of a %s job: %+v, %v", c.name, got, err)
			}
			e.wantErr(fmt.Sprintf("a deleted %s job", c.name), jobs.ErrNotFound, errOf(e.q.Get(e.ctx, "x")))
			e.wantErr("delete of what is gone", jobs.ErrNotFound, errOf(e.q.Delete(e.ctx, "x")))
			for _, col := range []store.Collection{"jobs", "job_blobs", "job_keys", "job_locks"} {
				e.eventually(fmt.Sprintf("nothing of the %s job is left in %s", c.name, col), func() bool {
					n, err := e.in.Store.Len(e.ctx, col, "")
					return err == nil && n == 0
				})
			}
			e.claimNone()
		}
	},
	"a running job is not deleted": func(e *env) {
		e.job(jobs.Submission{ID: "x", Key: "k"})
		j := e.claimOne()
		for range 2 {
			e.wantErr("delete of a running job", jobs.ErrConflict, errOf(e.q.Delete(e.ctx, "x")))
			e.cancel("x")
		}
		e.finish(j, jobs.Cancelled)
		e.ok(errOf(e.q.Delete(e.ctx, "x")))
	},
	"a finished job is deleted without the key and the lock of its successor": func(e *env) {
		s := jobs.Submission{ID: "old", Key: "k", Dedup: untilExecuted}
		e.bury(s, "no")
		s.ID = "new"
		e.job(s)
		e.ok(errOf(e.q.Delete(e.ctx, "old")))
		s.ID = ""
		if out := e.submit(s); !out.Deduplicated || out.Job.ID != "new" {
			e.Fatalf("a duplicate of the successor: %+v", out)
		}
		s.Dedup = nil
		s.Function = "f"
		e.wantErr("the successor's key", jobs.ErrDuplicateKey, errOf(e.q.Enqueue(e.ctx, s)))
		if h, err := e.q.Holders(e.ctx, "new"); err != nil || h.Key != "new" || h.Lock != "new" || h.LockUntil.IsZero() {
			e.Fatalf("holders: %+v, %v", h, err)
		}
	},
	"a call that waits for a job learns that it was deleted": func(e *env) {
		e.job(jobs.Submission{ID: "x"})
		got := make(chan error, 1)
		go func() {
			_, err := e.q.Wait(e.ctx, "x", jobs.MaxWait)
			got <- err
		}()
		e.eventually("the call waits", func() bool { return e.q.Counters().Waiting == 1 })
		e.ok(errOf(e.q.Delete(e.ctx, "x")))
		if err := <-got; !errors.Is(err, jobs.ErrNotFound) {
			e.Fatal(err)
		}
		if n := e.q.Counters().Deleted; n != 1 {
			e.Errorf("%d deletes are counted", n)
		}
	},
	"queries select by submitter, age, keys and error": func(e *env) {
		e.bury(jobs.Submission{ID: "a", Owner: "ann"}, "order 100417 was not found: HTTP 404\nstack")
		e.bury(jobs.Submission{ID: "b", Owner: "bob"}, "order 2 was not found: HTTP 404")
		e.bury(jobs.Submission{ID: "c", Owner: "ann"}, "order 100418 was not found: HTTP 404")
		e.bury(jobs.Submission{ID: "d"}, "")
		e.pass(span)
		e.job(jobs.Submission{ID: "e", Owner: "ann", Key: "order 7", ConcurrencyKey: "acme"})
		e.job(jobs.Submission{ID: "g", Function: "g", Key: "order 8", ConcurrencyKey: "acme"})
		for q, want := range map[jobs.ListQuery][]string{
			{Owner: "ann"}:                                 {"e", "a", "c"},
			{Owner: "nobody"}:                              nil,
			{OlderThan: span}:                              {"a", "b", "c", "d"},
			{Key: "order 7"}:                               {"e"},
			{Key: "order"}:                                 nil,
			{ConcurrencyKey: "acme"}:                       {"e", "g"},
			{ConcurrencyKey: "acme", Function: "g"}:        {"g"},
			{ErrorText: "http 404"}:                        {"a", "b", "c"},
			{ErrorText: "Stack"}:                           {"a"},
			{ErrorText: "HTTP 503"}:                        nil,
			{OlderThan: span + time.Hour}:                  nil,
			{NewerThan: span}:                              {"e", "g"},
			{OlderThan: span, NewerThan: span + time.Hour}: {"a", "b", "c", "d"},
			{NewerThan: span, State: jobs.Failed}:          nil,
			{Function: "f", State: jobs.Failed, OlderThan: time.Hour, Owner: "bob"}:    {"b"},
			{Function: "f", State: jobs.Queued, OlderThan: time.Hour}:                  nil,
			{State: jobs.Failed, Error: "order 31337 was not found: HTTP 404\n other"}: {"a", "c"},
			{State: jobs.Failed, Error: "order # was not found: HTTP 404"}:             {"a", "c"},
			{Error: "order 2 was not found: HTTP 404"}:                                 {"b"},
			{Error: "order 2 was not found: HTTP 503"}:                                 nil,
		} {
			for _, limit := range []int{0, 1} {
				q.Limit = limit
				e.wantIDs(fmt.Sprintf("%+v", q), e.list(q), want...)
			}
		}
		for field, q := range map[string]jobs.ListQuery{
			"older_than_ms": {OlderThan: -1}, "newer_than_ms": {OlderThan: time.Hour, NewerThan: time.Hour}, "submitter": {Owner: strings.Repeat("x", jobs.MaxNameBytes+1)}, "error": {Error: "\xff"},
			"key": {Key: " k"}, "concurrency_key": {ConcurrencyKey: "k "}, "error_text": {ErrorText: strings.Repeat("x", jobs.MaxErrorTextBytes+1)},
		} {
			e.wantField(fmt.Sprintf("%+v", q), field, errOf(e.q.List(e.ctx, q)))
		}
	},
	"a bulk action changes the jobs of its query, part by part": func(e *env) {
		const n = 11
		for i := range n {
			e.job(jobs.Submission{ID: fmt.Sprintf("f%02d", i)})
			e.job(jobs.Submission{ID: fmt.Sprintf("g%02d", i), Function: "g"})
		}
		all := jobs.Bulk{Action: jobs.ActionCancel, ListQuery: jobs.ListQuery{Function: "f", State: jobs.Queued, Limit: 3}}
		dry := all
		dry.DryRun = true
		if done, refused := e.doBulk(dry); done != n || refused != nil {
			e.Fatalf("dry run: %d, refused %v", done, refused)
		}
		if got := e.list(jobs.ListQuery{State: jobs.Cancelled}); len(got) != 0 {
			e.Fatalf("the dry run cancelled %v", ids(got))
		}
		if done, refused := e.doBulk(all); done != n || refused != nil {
			e.Fatalf("cancelled %d, refused %v", done, refused)
		}
		if got := e.list(jobs.ListQuery{Function: "g", State: jobs.Queued}); len(got) != n {
			e.Fatalf("of the other function there are %v", ids(got))
		}
		all.Action, all.State = jobs.ActionRetry, jobs.Cancelled
		if done, refused := e.doBulk(all); done != n || refused != nil {
			e.Fatalf("retried %d, refused %v", done, refused)
		}
		// A queue is emptied.
		all.Action, all.State = jobs.ActionDelete, jobs.Queued
		if done, refused := e.doBulk(all); done != n || refused != nil {
			e.Fatalf("deleted %d, refused %v", done, refused)
		}
		e.wantIDs("jobs of f", e.list(jobs.ListQuery{Function: "f"}))
	},
	"a bulk action continues after a refusal": func(e *env) {
		for _, id := range []string{"a", "b", "c"} {
			e.bury(jobs.Submission{ID: id, Key: id}, "no")
		}
		holder := e.job(jobs.Submission{Key: "b"})
		all := jobs.Bulk{Action: jobs.ActionRetry, ListQuery: jobs.ListQuery{State: jobs.Failed, Limit: 1}}
		if done, refused := e.doBulk(all); done != 2 || !slices.Equal(refused, []string{"b"}) {
			e.Fatalf("retried %d, refused %v", done, refused)
		}
		e.cancel(holder.ID)
		all.Action = jobs.ActionReplay
		if done, refused := e.doBulk(all); done != 1 || refused != nil {
			e.Fatalf("replayed %d, refused %v", done, refused)
		}
		e.wantState("b", jobs.Replayed)
	},
	"a replay of a duplicate is refused": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: untilExecuted}
		e.bury(s, "no")
		s.ID = "b"
		e.job(s)
		e.wantHeld("b", errOf(e.q.Do(e.ctx, jobs.ActionReplay, "a", time.Time{})))
	},
	"bulk actions name a state that they apply to": func(e *env) {
		states := []jobs.State{0, jobs.Scheduled, jobs.Queued, jobs.Active, jobs.Complete, jobs.Failed, jobs.Cancelled, jobs.Replayed}
		for _, a := range []jobs.Action{jobs.ActionCancel, jobs.ActionRetry, jobs.ActionReplay, jobs.ActionDelete} {
			for _, s := range states {
				_, err := e.q.Bulk(e.ctx, jobs.Bulk{Action: a, ListQuery: jobs.ListQuery{State: s}})
				var fe *jobs.FieldError
				if wrong := errors.As(err, &fe) && fe.Field == "state"; wrong == slices.Contains(a.States(), s) || err != nil && !wrong {
					e.Errorf("%v of jobs that are %v: %v", a, s, err)
				}
			}
		}
		for field, b := range map[string]jobs.Bulk{
			"action": {}, "limit": {Action: jobs.ActionCancel, ListQuery: jobs.ListQuery{State: jobs.Queued, Limit: jobs.MaxLimit + 1}},
			"cursor": {Action: jobs.ActionCancel, ListQuery: jobs.ListQuery{State: jobs.Queued, Cursor: "!"}},
		} {
			e.wantField(fmt.Sprintf("%+v", b), field, errOf(e.q.Bulk(e.ctx, b)))
		}
	},
}
