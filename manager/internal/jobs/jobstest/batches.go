package jobstest

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// enqueueBatch enqueues a batch in a transaction of its own.
func (e *env) enqueueBatch(callback *jobs.Submission, all ...jobs.Submission) (jobs.Batch, []jobs.Outcome, error) {
	e.Helper()
	for i := range all {
		if all[i].Function == "" {
			all[i].Function = "f"
		}
	}
	p, err := e.q.PrepareBatch(all, callback, "shop")
	if err != nil {
		return jobs.Batch{}, nil, err
	}
	var b *jobs.Batch
	var outs []jobs.Outcome
	err = e.in.Store.Update(e.ctx, func(tx store.Tx) (err error) {
		b, outs, err = e.q.EnqueueBatchTx(tx, p)
		return err
	})
	if err != nil {
		return jobs.Batch{}, nil, err
	}
	for _, out := range outs {
		e.q.Committed(out)
	}
	return *b, outs, nil
}

// someBatch is a batch of n jobs b-0, b-1 and so on with the callback "end".
func (e *env) someBatch(n int) jobs.Batch {
	e.Helper()
	var all []jobs.Submission
	for i := range n {
		all = append(all, jobs.Submission{ID: fmt.Sprint("b-", i), MaxAttempts: 2})
	}
	b, _, err := e.enqueueBatch(&jobs.Submission{Function: "callback", ID: "end"}, all...)
	e.ok(err)
	return b
}

// wantBatch compares the counts of a batch: total, pending, complete, failed, cancelled, expired.
func (e *env) wantBatch(id string, want ...int) jobs.Batch {
	e.Helper()
	b, err := e.q.Batch(e.ctx, id, 0)
	e.ok(err)
	if got := []int{b.Total, b.Pending, b.Complete, b.Failed, b.Cancelled, b.Expired}; fmt.Sprint(got) != fmt.Sprint(want) || (b.Pending == 0) == b.FinishedAt.IsZero() {
		e.Fatalf("batch: %+v, want %v", b, want)
	}
	return b
}

var batchTests = map[string]func(*env){
	"a callback runs once when the last job has ended": func(e *env) {
		b := e.someBatch(6)
		e.wantBatch(b.ID, 6, 6, 0, 0, 0, 0)
		if j := e.wantState("end", jobs.Scheduled); j.After != b.ID || j.Owner != "shop" {
			e.Errorf("callback %+v", j)
		}
		if j := e.get("b-0"); j.Batch != b.ID || j.Owner != "shop" {
			e.Errorf("job %+v", j)
		}
		e.pass(far)
		e.claimNone("callback")
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: 4, Lease: span})
		e.finish(got[0], jobs.Complete)
		e.finish(got[1], jobs.Failed)
		e.cancel(got[2].ID)
		e.finish(got[2], jobs.Cancelled)
		e.retry(jobs.Retry{ID: got[3].ID, Token: got[3].Lease.Token, Delay: &zero})
		e.cancel("b-4")
		e.ok(errOf(e.q.Delete(e.ctx, "b-5")))
		e.wantBatch(b.ID, 6, 1, 1, 1, 3, 0)
		e.claimNone("callback")
		e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Lease: span})
		e.pass(span) // the last attempt loses its lease
		e.duties(e.q)
		e.wantBatch(b.ID, 6, 0, 1, 2, 3, 0)
		end := e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5})
		e.wantIDs("the callback", end, "end")
		if end[0].After != b.ID {
			e.Errorf("callback %+v", end[0])
		}
		e.finish(end[0], jobs.Complete)
		// What operators do later runs no callback again.
		e.retry(jobs.Retry{ID: "b-1"})
		e.finish(e.claimOne(), jobs.Complete)
		e.wantBatch(b.ID, 6, 0, 1, 2, 3, 0)
		e.claimNone()
	},
	"a job that runs again before the end is pending again": func(e *env) {
		b := e.someBatch(2)
		e.finish(e.claimOne(), jobs.Failed)
		e.retry(jobs.Retry{ID: "b-0"})
		e.wantBatch(b.ID, 2, 2, 0, 0, 0, 0)
		for range 2 {
			e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		}
		e.wantBatch(b.ID, 2, 0, 2, 0, 0, 0)
		e.finish(e.claimOne(), jobs.Complete)
		e.wantState("end", jobs.Complete)
	},
	"a replay stays a failure of its batch": func(e *env) {
		b := e.someBatch(2)
		e.finish(e.claimOne(), jobs.Failed)
		e.ok(errOf(e.q.Replay(e.ctx, "f", "b-0")))
		for range 2 {
			e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		}
		e.wantBatch(b.ID, 2, 0, 1, 1, 0, 0)
	},
	"expired jobs end a batch": func(e *env) {
		b, _, err := e.enqueueBatch(nil, jobs.Submission{ExpiresIn: time.Hour}, jobs.Submission{ExpiresIn: time.Hour, DeadIfExpired: true})
		if err != nil || b.Callback != "" {
			e.Fatal(b, err)
		}
		e.pass(time.Hour)
		e.duties(e.q)
		e.wantBatch(b.ID, 2, 0, 0, 1, 0, 1)
	},
	"each way in which a job ends counts once": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: time.Second, DeadFor: time.Second})
		var all []jobs.Submission
		for i := range 7 {
			all = append(all, jobs.Submission{ID: fmt.Sprint("b-", i), Function: fmt.Sprint("f", i)})
		}
		all[3].ExpiresIn = time.Hour
		b, _, err := e.enqueueBatch(&jobs.Submission{Function: "callback", ID: "end"}, all...)
		e.ok(err)
		var got []jobs.Job
		for i := range 6 {
			got = append(got, e.claim(jobs.ClaimRequest{Functions: []string{fmt.Sprint("f", i)}, Lease: time.Minute})...)
		}
		for i := range 3 {
			e.cancel(got[i].ID)
		}
		e.ok(e.q.PutBack(got[:1]))
		e.retry(jobs.Retry{ID: "b-1", Token: got[1].Lease.Token})
		e.finish(got[4], jobs.Failed)
		e.ok(errOf(e.q.Delete(e.ctx, "b-4")))
		e.finish(got[5], jobs.Complete)
		e.pass(time.Hour)
		e.duties(q) // b-2 and b-3 lose their leases
		e.pass(time.Hour)
		e.duties(q) // all are too old
		e.wantBatch(b.ID, 7, 1, 1, 1, 3, 1)
		e.claimNone("callback")
		e.ok(errOf(e.q.Delete(e.ctx, "b-6")))
		e.wantBatch(b.ID, 7, 0, 1, 1, 4, 1)
		e.wantIDs("the callback", e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5}), "end")
	},
	"jobs that others stand for do not belong to the batch": func(e *env) {
		e.job(jobs.Submission{ID: "there", Key: "k"})
		b, outs, err := e.enqueueBatch(&jobs.Submission{Function: "callback", ID: "end"}, jobs.Submission{Key: "k", ReturnExisting: true},
			jobs.Submission{ID: "new", Dedup: untilExecuted}, jobs.Submission{Dedup: untilExecuted})
		if err != nil || len(outs) != 4 || outs[0].Job.ID != "there" || outs[2].Job.ID != "new" || b.Total != 1 {
			e.Fatalf("%+v, %+v, %v", b, outs, err)
		}
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		e.wantBatch(b.ID, 1, 1, 0, 0, 0, 0)
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		e.wantBatch(b.ID, 1, 0, 1, 0, 0, 0)
		// Nothing is left to wait for.
		e.job(jobs.Submission{ID: "again", Key: "k2"})
		b, _, err = e.enqueueBatch(&jobs.Submission{Function: "callback", ID: "end2"}, jobs.Submission{Key: "k2", ReturnExisting: true})
		e.ok(err)
		e.wantBatch(b.ID, 0, 0, 0, 0, 0, 0)
		e.wantIDs("callbacks", e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5}), "end", "end2")
	},
	"all jobs of a batch or none": func(e *env) {
		e.job(jobs.Submission{ID: "there", Key: "k", Function: "g"})
		if _, _, err := e.enqueueBatch(&jobs.Submission{Function: "callback"}, jobs.Submission{}, jobs.Submission{Key: "k"}); !errors.Is(err, jobs.ErrDuplicateKey) {
			e.Errorf("a key that is held: %v", err)
		}
		e.claimNone("f", "callback")
		if page, err := e.q.Batches(e.ctx, 0, ""); err != nil || len(page.Batches) != 0 {
			e.Errorf("%+v, %v", page, err)
		}
	},
	"an operator may run or cancel a callback": func(e *env) {
		b := e.someBatch(1)
		e.retry(jobs.Retry{ID: "end"})
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"callback"}})[0], jobs.Complete)
		e.finish(e.claimOne(), jobs.Complete)
		e.wantBatch(b.ID, 1, 0, 1, 0, 0, 0)
		e.claimNone()
	},
	"a wait ends with the batch": func(e *env) {
		b := e.someBatch(2)
		before := e.q.Counters().Waiting
		got := make(chan jobs.Batch, 1)
		go func() {
			b, err := e.q.Batch(e.ctx, b.ID, jobs.MaxWait)
			if err != nil {
				e.Errorf("wait: %v", err)
			}
			got <- b
		}()
		e.eventually("the call waits", func() bool { return e.q.Counters().Waiting > before })
		for range 2 {
			e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		}
		select {
		case b := <-got:
			if b.Complete != 2 || b.FinishedAt.IsZero() {
				e.Errorf("%+v", b)
			}
		case <-e.ctx.Done():
			e.Fatal("the wait does not end")
		}
		if b, err := e.q.Batch(e.ctx, b.ID, time.Millisecond); err != nil || b.Complete != 2 {
			e.Errorf("%+v, %v", b, err)
		}
	},
	"batches are listed, outlive a restart, and go when they are old": func(e *env) {
		var want []string
		for i := range 3 {
			b, _, err := e.enqueueBatch(nil, jobs.Submission{Function: fmt.Sprint("f", i)})
			e.ok(err)
			want = append(want, b.ID)
			e.pass(time.Minute)
		}
		if e.in.Reopen != nil {
			e.restart(jobs.Options{})
		}
		var got []string
		for cursor, more := "", true; more; more = cursor != "" {
			page, err := e.q.Batches(e.ctx, 2, cursor)
			e.ok(err)
			for _, b := range page.Batches {
				got = append(got, b.ID)
			}
			cursor = page.Cursor
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			e.Errorf("listed %q, want %q", got, want)
		}
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f0"}})[0], jobs.Complete)
		e.pass(far)
		e.duties(e.q)
		if _, err := e.q.Batch(e.ctx, want[0], 0); !errors.Is(err, jobs.ErrNotFound) {
			e.Errorf("an old batch: %v", err)
		}
		e.wantBatch(want[1], 1, 1, 0, 0, 0, 0)
	},
	"the last of many that end at once runs the callback": func(e *env) {
		qs := e.managers(jobs.Options{})
		const n = 24
		b := e.someBatch(n)
		got := e.claim(jobs.ClaimRequest{Functions: []string{"f"}, Limit: n, Lease: jobs.MaxLease})
		var failed atomic.Int64
		together(len(got), func(i int) {
			for {
				_, err := qs[i%len(qs)].Finish(e.ctx, jobs.Finish{ID: got[i].ID, Token: got[i].Lease.Token, State: jobs.Complete})
				if errors.Is(err, store.ErrConflict) {
					continue
				}
				if err != nil {
					failed.Add(1)
					e.Errorf("finish: %v", err)
				}
				return
			}
		})
		e.wantBatch(b.ID, n, 0, n, 0, 0, 0)
		e.wantIDs("the callback", e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5}), "end")
		e.claimNone()
	},
	"a batch that cannot be read does not keep its jobs from ending": func(e *env) {
		b := e.someBatch(2)
		e.rewrite("job_batches", damages["another version"], b.ID)
		_, err := e.q.Batch(e.ctx, b.ID, 0)
		e.wantUnreadable("Batch", err, "job_batches", b.ID)
		for range 2 {
			e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		}
		e.deleteUnreadable("job_batches", b.ID)
		e.retry(jobs.Retry{ID: "end"}) // which is an operator's to decide
	},
	"a callback whose key cannot be read does not keep a batch from ending": func(e *env) {
		e.job(jobs.Submission{ID: "other", Function: "callback", ConcurrencyKey: "a"})
		b, _, err := e.enqueueBatch(&jobs.Submission{Function: "callback", ID: "end", ConcurrencyKey: "a"}, jobs.Submission{ID: "one", MaxAttempts: 1})
		e.ok(err)
		e.rewrite("job_slots", damages["another version"], "callback\x00a")
		e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
		e.wantState("one", jobs.Complete)
		e.wantBatch(b.ID, 1, 0, 1, 0, 0, 0)
		e.deleteUnreadable("job_slots", "callback\x00a")
		e.retry(jobs.Retry{ID: "end"}) // it waits for an operator
		e.wantIDs("the callback", e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5}), "other", "end")
	},
	"no more batches are kept than jobs": func(e *env) {
		q := e.queue(jobs.Options{RetainCount: 2})
		var all []string
		for range 4 {
			b, outs, err := e.enqueueBatch(nil, jobs.Submission{})
			e.ok(err)
			all = append(all, b.ID)
			e.cancel(outs[0].Job.ID)
			e.pass(time.Minute)
		}
		e.eventually("the oldest are removed", func() bool { // of shared stores the number is an estimate
			e.duties(q)
			page, err := q.Batches(e.ctx, 0, "")
			return err == nil && len(page.Batches) <= 2
		})
		if page, err := q.Batches(e.ctx, 0, ""); err != nil || len(page.Batches) == 0 || page.Batches[len(page.Batches)-1].ID != all[3] {
			e.Errorf("%+v, %v, want the last of %q", page, err, all)
		}
	},
	"bad batches are refused by the name of what is wrong": func(e *env) {
		many := make([]jobs.Submission, jobs.MaxBatchJobs+1)
		for field, call := range map[string]func() error{
			"jobs":  func() error { _, _, err := e.enqueueBatch(nil); return err },
			"jobs ": func() error { _, _, err := e.enqueueBatch(nil, many...); return err },
			"jobs[1].function": func() error {
				_, _, err := e.enqueueBatch(nil, jobs.Submission{}, jobs.Submission{Function: "a b"})
				return err
			},
			"callback.function": func() error {
				_, _, err := e.enqueueBatch(&jobs.Submission{}, jobs.Submission{})
				return err
			},
			"callback.delay_ms": func() error {
				_, _, err := e.enqueueBatch(&jobs.Submission{Function: "f", Delay: time.Hour}, jobs.Submission{})
				return err
			},
		} {
			e.wantField(field, strings.TrimSpace(field), call())
		}
		e.wantErr("a bad id", jobs.ErrInvalid, errOf(e.q.Batch(e.ctx, "a b", 0)))
	},
}
