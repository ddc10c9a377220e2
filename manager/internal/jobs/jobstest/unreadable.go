package jobstest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// many is more than one transaction of the duties looks at.
const many = 150

var unreadableTests = map[string]func(*env){
	"calls that name the job return an error with the record": func(e *env) {
		for name, damage := range damages {
			id := strings.ReplaceAll(name, " ", "-")
			e.job(jobs.Submission{ID: id})
			e.rewrite("jobs", damage, id)
			e.callAll(id)
		}
	},
	"claims skip many unreadable jobs": func(e *env) {
		e.q = e.queue(jobs.Options{Random: func() float64 { return 0 }})
		bad := names("bad", many)
		e.bulk(many, "f", func(i int) string { return bad[i] })
		e.rewrite("jobs", damages["another version"], bad...)
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("good", i)})
		}
		e.job(jobs.Submission{ID: "other", Function: "g"})
		e.wantIDs("one function", e.claim(jobs.ClaimRequest{Functions: []string{"f"}}), "good0")
		e.wantIDs("two functions", e.claim(jobs.ClaimRequest{Functions: []string{"f", "g"}, Limit: 2}), "other", "good1")
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{Limit: 5}), "good2")
		e.claimNone()
		// What comes first is found at once, whatever is known of those after it.
		e.job(jobs.Submission{ID: "urgent", Priority: 5})
		e.wantIDs("the highest priority", e.claim(jobs.ClaimRequest{}), "urgent")
		met := e.met("jobs")
		e.claimNone()
		if again := e.met("jobs") - met; again > many {
			e.Errorf("another claim looked at %d of %d again", again, many)
		}
		e.callAll(bad[7])
	},
	"duties skip many unreadable jobs": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span, DeadFor: span})
		all := map[string][]string{}
		each := func(kind string, s jobs.Submission) {
			all[kind] = names(kind, many+3)
			for _, id := range all[kind] {
				s.ID, s.Function = id, kind
				e.job(s)
			}
		}
		each("done", jobs.Submission{})
		each("dead", jobs.Submission{})
		for kind, state := range map[string]jobs.State{"done": jobs.Complete, "dead": jobs.Failed} {
			var fs []jobs.Finish
			for _, j := range e.claim(jobs.ClaimRequest{Functions: []string{kind}, Limit: 1000, Lease: time.Hour}) {
				fs = append(fs, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: state})
			}
			e.ok(errOf(e.q.FinishMany(e.ctx, fs)))
		}
		each("later", jobs.Submission{Delay: span})
		each("out", jobs.Submission{})
		if got := e.claim(jobs.ClaimRequest{Functions: []string{"out"}, Limit: 1000, Lease: span}); len(got) != many+3 {
			e.Fatalf("claimed %d", len(got))
		}
		for _, ids := range all {
			e.rewrite("jobs", damages["cut short"], ids[:many]...)
		}
		e.pass(span)
		report := e.duties(q)
		if report.Promoted != 3 || report.Reclaimed != 3 || report.Purged != 6 {
			e.Fatalf("report %+v", report)
		}
		met := q.Unreadable().Counts()["jobs"].Met
		if again := e.duties(q); again != (jobs.DutyReport{}) {
			e.Fatalf("second round: %+v", again)
		}
		if again := q.Unreadable().Counts()["jobs"].Met - met; again > 8 {
			e.Errorf("a second round looked at %d of them again", again)
		}
		if got := e.claim(jobs.ClaimRequest{Limit: 100}); len(got) != 6 {
			e.Fatalf("claimed %s", ids(got))
		}
		e.wantIDs("a list", e.list(jobs.ListQuery{}), ids(e.list(jobs.ListQuery{State: jobs.Active}))...)
		for _, ids := range all {
			e.callAll(ids[0])
		}
		// On a shared engine a depth may be some seconds old.
		e.eventually("the depth counts them", func() bool {
			d, err := e.q.Depth(e.ctx)
			return err == nil && d == jobs.Depth{Scheduled: many, Active: many + 6, Done: many, Dead: many}
		})
	},
	"claims do what is due after many unreadable jobs": func(e *env) {
		bad := names("bad", 2*many)
		for _, id := range bad {
			e.job(jobs.Submission{ID: id, Delay: span})
		}
		e.rewrite("jobs", damages["nonsense"], bad...)
		e.job(jobs.Submission{ID: "good", Delay: span})
		e.pass(span)
		var got []jobs.Job
		e.eventually("the job after them is claimed", func() bool {
			got = append(got, e.claim(jobs.ClaimRequest{})...)
			return len(got) > 0
		})
		e.wantIDs("claimed", got, "good")
	},
	"each unreadable record is reported once": func(e *env) {
		for i := range 3 {
			e.job(jobs.Submission{ID: fmt.Sprint("bad", i)})
		}
		e.rewrite("jobs", damages["another version"], "bad0", "bad1", "bad2")
		for range 3 {
			e.claimNone()
			e.duties(e.q)
			e.list(jobs.ListQuery{})
		}
		counts := map[string]int{}
		for len(counts) < 3 {
			select {
			case u := <-e.q.Unreadable().News():
				counts[u.Key]++
			case <-e.ctx.Done():
				e.Fatalf("reported: %v", counts)
			}
		}
		select {
		case u := <-e.q.Unreadable().News():
			e.Errorf("reported again: %v", u)
		default:
		}
		if c := e.q.Unreadable().Counts()["jobs"]; c.Known != 3 || c.Met < 9 {
			e.Errorf("counts %+v", c)
		}
	},
	"a job whose payload is missing or no JSON can only be cancelled": func(e *env) {
		big := fmt.Sprintf(`"%0600d"`, 1)
		for _, id := range []string{"gone", "short", "nonsense"} {
			e.job(jobs.Submission{ID: id, Payload: []byte(big)})
		}
		e.job(jobs.Submission{ID: "inline", Payload: []byte(`{"a":1}`)})
		e.job(jobs.Submission{ID: "good", Payload: []byte(big)})
		e.rewrite("job_blobs", damages["cut short"], "short/p")
		e.rewrite("job_blobs", damages["nonsense"], "nonsense/p")
		e.rewrite("jobs", func(b []byte) []byte { return bytes.Replace(b, []byte(`{"a":1}`), []byte(`{"a":1`+"\x00"), 1) }, "inline")
		err := e.in.Store.Update(e.ctx, func(tx store.Tx) error { return tx.Delete("job_blobs", "gone/p") })
		e.ok(err)
		page, err := e.q.List(e.ctx, jobs.ListQuery{Payloads: true})
		e.ok(err)
		e.wantIDs("a list with payloads", page.Jobs, "good")
		e.wantIDs("a claim", e.claim(jobs.ClaimRequest{Limit: 10}), "good")
		for _, id := range []string{"gone", "short", "nonsense", "inline"} {
			_, err := e.q.Get(e.ctx, id)
			e.wantUnreadable("Get "+id, err, "jobs", id)
			// It needs no payload to be cancelled.
			e.cancel(id)
		}
	},
	"jobs of a batch that are deleted because they cannot be read have failed": func(e *env) {
		for _, state := range []jobs.State{jobs.Scheduled, jobs.Queued, jobs.Active, jobs.Complete} {
			s := jobs.Submission{ID: "bad-" + state.String(), Function: state.String(), Payload: []byte(fmt.Sprintf(`"%0600d"`, 1))}
			blob := s
			blob.ID = "blob-" + state.String()
			if state == jobs.Scheduled {
				s.Delay, blob.Delay = span, span
			}
			end := "end-" + state.String()
			b, _, err := e.enqueueBatch(&jobs.Submission{Function: "callback", ID: end}, s, blob, jobs.Submission{ID: "good-" + state.String()})
			e.ok(err)
			want := []int{3, 0, 1, 2, 0, 0}
			if state == jobs.Active || state == jobs.Complete {
				got := e.claim(jobs.ClaimRequest{Functions: []string{s.Function}, Limit: 2, Lease: span})
				if state == jobs.Complete {
					e.finish(got[0], state)
					e.finish(got[1], state)
					want = []int{3, 0, 3, 0, 0, 0}
				}
			}
			e.rewrite("jobs", damages["nonsense"], s.ID)
			e.rewrite("job_blobs", damages["nonsense"], blob.ID+"/p")
			e.deleteUnreadable("jobs", s.ID)
			e.finish(e.claim(jobs.ClaimRequest{Functions: []string{"f"}})[0], jobs.Complete)
			e.deleteUnreadable("jobs", blob.ID)
			e.wantBatch(b.ID, want...)
			e.wantIDs("the callback", e.claim(jobs.ClaimRequest{Functions: []string{"callback"}, Limit: 5}), end)
		}
	},
	"a run that cannot follow keeps its job": func(e *env) {
		d := *reschedule
		d.Key = "d"
		a := e.job(jobs.Submission{Payload: []byte(fmt.Sprintf(`"%0600d"`, 1)), Dedup: &d, Key: "k"})
		e.wantDropped(a.ID, jobs.Submission{Dedup: &d})
		j := e.claimOne()
		e.rewrite("job_blobs", damages["cut short"], a.ID+"/p")
		before := e.value("jobs", a.ID)
		_, err := e.q.Finish(e.ctx, jobs.Finish{ID: a.ID, Token: j.Lease.Token, State: jobs.Complete, Result: []byte(fmt.Sprintf(`"%0700d"`, 2))})
		e.wantUnreadable("Finish", err, "jobs", a.ID)
		if after := e.value("jobs", a.ID); !bytes.Equal(before, after) {
			e.Errorf("the job was %x and is %x", before, after)
		}
		if string(e.value("job_keys", "k")) != a.ID {
			e.Error("its key is gone")
		}
	},
	"a lock that cannot be read costs its own submissions": func(e *env) {
		dedup := &jobs.Dedup{Strategy: jobs.UntilExecuted, Key: "d", TTL: span}
		a := e.job(jobs.Submission{Dedup: dedup})
		locks := e.locks()
		if len(locks) != 1 {
			e.Fatalf("locks %q", locks)
		}
		e.rewrite("job_locks", damages["another version"], locks...)
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Dedup: dedup})
		e.wantUnreadable("Enqueue", err, "job_locks", locks[0])
		e.job(jobs.Submission{ID: "other", Dedup: &jobs.Dedup{Key: "e", TTL: span}})
		got := e.claim(jobs.ClaimRequest{Limit: 2, Lease: time.Hour})
		e.wantIDs("claimed", got, a.ID, "other")
		e.finish(got[0], jobs.Complete)
		e.pass(span)
		e.duties(e.q)
		if left := e.locks(); !slices.Equal(left, locks) {
			e.Errorf("locks %q", left)
		}
	},
	"a holder that cannot be read keeps its key and lock": func(e *env) {
		dedup := &jobs.Dedup{Strategy: jobs.UntilExecuted, Key: "d", TTL: span}
		e.job(jobs.Submission{ID: "holder", Key: "k", Dedup: dedup})
		e.rewrite("jobs", damages["another version"], "holder")
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})
		e.wantUnreadable("the key", err, "jobs", "holder")
		_, err = e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Dedup: dedup})
		e.wantUnreadable("the lock", err, "jobs", "holder")
		e.pass(span)
		e.duties(e.q)
		e.job(jobs.Submission{Dedup: dedup})
	},
	"of a damaged list of paused functions the readable part is in force": func(e *env) {
		e.pause("f")
		e.pause("g")
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b", Function: "g"})
		e.job(jobs.Submission{ID: "c", Function: "h"})
		e.rewrite("job_control", func(b []byte) []byte { return append(b, 200) }, "functions")
		// Those before the damage stay paused.
		e.wantIDs("claimed", e.claim(jobs.ClaimRequest{Limit: 10}), "c")
		e.wantUnreadable("Pause", e.q.Pause(e.ctx, "h"), "job_control", "functions")
		e.wantUnreadable("Resume", e.q.Resume(e.ctx, "f"), "job_control", "functions")
		e.rewrite("job_control", damages["another version"], "functions")
		e.wantIDs("claimed", e.claim(jobs.ClaimRequest{Limit: 10}), "a", "b")
		e.ok(errOf(e.q.Functions(e.ctx, 0, "")))
	},
	"index entries without a job are skipped": func(e *env) {
		// A job of another name left them.
		for _, index := range []string{"queued", "scheduled", "active", "done", "dead"} {
			e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error {
				for _, id := range names("x-"+index, many) {
					err := tx.Put("jobs", id, []byte{1}, store.Entry{Index: index, SortKey: "\x00"},
						store.Entry{Index: "function", SortKey: "f\x00q" + id})
					if err != nil {
						return err
					}
				}
				return nil
			}))
		}
		e.job(jobs.Submission{ID: "good"})
		e.job(jobs.Submission{ID: "soon", Delay: span})
		e.pass(span)
		e.duties(e.q)
		e.wantIDs("claimed", e.claim(jobs.ClaimRequest{Limit: 3}), "good", "soon")
		e.ok(errOf(e.q.Functions(e.ctx, 0, "")))
	},
	"index entries that do not match their jobs are skipped": func(e *env) {
		// They say that jobs which are out are due, and the other way round.
		bad := names("bad", 2*many)
		e.bulk(2*many, "f", func(i int) string { return bad[i] })
		for i, id := range bad {
			index := []string{"active", "scheduled"}[i%2]
			value := e.value("jobs", id)
			e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error {
				return tx.Put("jobs", id, value, store.Entry{Index: index, SortKey: strings.Repeat("\x00", 8)})
			}))
		}
		e.job(jobs.Submission{ID: "soon", Delay: span})
		e.job(jobs.Submission{ID: "out", Function: "g"})
		if got := e.claim(jobs.ClaimRequest{Lease: span}); len(got) != 1 {
			e.Fatalf("claimed %s", ids(got))
		}
		e.pass(span)
		if report := e.duties(e.q); report.Promoted != 1 || report.Reclaimed != 1 {
			e.Errorf("report %+v", report)
		}
		if got := e.claim(jobs.ClaimRequest{Limit: 3}); len(got) != 2 {
			e.Errorf("claimed %s", ids(got))
		}
	},
	"any mix of damage costs only the damaged jobs": func(e *env) {
		rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
		kinds := make([]string, 0, len(damages))
		for name := range damages {
			kinds = append(kinds, name)
		}
		slices.Sort(kinds)
		const n = 120
		bad, goodIDs := map[string]bool{}, map[string]bool{}
		var claimed []jobs.Job
		for i := range n {
			s := jobs.Submission{ID: fmt.Sprint("j", i), Function: fmt.Sprint("f", i%3), Priority: rnd.IntN(3), MaxAttempts: 1 + rnd.IntN(2)}
			if rnd.IntN(3) == 0 {
				s.Delay = span
			}
			if rnd.IntN(3) == 0 {
				s.Key = fmt.Sprint("k", i)
			}
			e.job(s)
			if rnd.IntN(4) == 0 {
				claimed = append(claimed, e.claim(jobs.ClaimRequest{Lease: span})...)
			}
			if rnd.IntN(3) == 0 {
				kind := kinds[rnd.IntN(len(kinds))]
				e.Logf("job j%d: %s", i, kind)
				e.rewrite("jobs", damages[kind], s.ID)
				bad[s.ID] = true
			} else {
				goodIDs[s.ID] = true
			}
		}
		held := map[string]jobs.Job{}
		for _, j := range claimed {
			held[j.ID] = j
		}
		var fs []jobs.Finish
		for _, j := range held {
			if rnd.IntN(2) == 0 {
				fs = append(fs, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete})
			}
		}
		over := map[string]bool{}
		if len(fs) > 0 {
			out, err := e.q.FinishMany(e.ctx, fs)
			e.ok(err)
			for i := range out {
				if bad[fs[i].ID] {
					e.wantUnreadable("FinishMany", out[i].Err, "jobs", fs[i].ID)
				} else if over[fs[i].ID] = true; out[i].Err != nil {
					e.Errorf("finish %s: %v", fs[i].ID, out[i].Err)
				}
			}
		}
		e.pass(span)
		e.duties(e.q)
		for {
			got := e.claim(jobs.ClaimRequest{Limit: 1 + rnd.IntN(10), Functions: [][]string{nil, {"f0", "f1", "f2"}}[rnd.IntN(2)], Lease: time.Hour})
			if len(got) == 0 {
				break
			}
			for _, j := range got {
				if bad[j.ID] || over[j.ID] {
					e.Errorf("claimed %s", j.ID)
				}
				over[j.ID] = true
				e.finish(j, jobs.Complete)
			}
		}
		listed := map[string]bool{}
		for _, j := range e.list(jobs.ListQuery{}) {
			listed[j.ID] = true
			if !j.State.Terminal() {
				e.Errorf("job %s is %s", j.ID, j.State)
			}
		}
		for id := range goodIDs {
			if !listed[id] {
				e.Errorf("job %s is not listed", id)
			}
		}
		for id := range bad {
			if listed[id] {
				e.Errorf("job %s is listed", id)
			}
			e.callAll(id)
		}
	},
}
