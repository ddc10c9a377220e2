package jobstest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// list goes through all pages of a query.
func (e *env) list(l jobs.ListQuery) []jobs.Job {
	e.Helper()
	var all []jobs.Job
	for {
		page, err := e.q.List(e.ctx, l)
		if err != nil {
			e.Fatalf("List(%+v): %v", l, err)
		}
		if l.Limit > 0 && len(page.Jobs) > l.Limit {
			e.Fatalf("List(%+v): %d jobs", l, len(page.Jobs))
		}
		all = append(all, page.Jobs...)
		if l.Cursor = page.Cursor; l.Cursor == "" {
			return all
		}
	}
}

var readTests = map[string]func(*env){
	"lists by function and state in their order": func(e *env) {
		sub := func(id, f string) jobs.Job { return e.job(jobs.Submission{ID: id, Function: f}) }
		for _, f := range []string{"f", "g"} {
			for _, s := range []jobs.State{jobs.Failed, jobs.Complete, jobs.Cancelled, jobs.Failed} {
				id := f + "-" + s.String()
				if s == jobs.Failed && len(e.list(jobs.ListQuery{Function: f, State: jobs.Failed})) == 1 {
					id = f + "-replayed"
				}
				sub(id, f)
				e.finish(e.claimOne(), s)
			}
			sub(f+"-active", f)
			e.claimOne()
		}
		for _, f := range []string{"f", "g"} {
			e.ok(errOf(e.q.Replay(e.ctx, f, f+"-replayed")))
		}
		e.cancel(e.list(jobs.ListQuery{Function: "f", State: jobs.Queued})[0].ID) // the replays
		e.cancel(e.list(jobs.ListQuery{Function: "g", State: jobs.Queued})[0].ID)
		e.job(jobs.Submission{ID: "f-q2", Function: "f"})
		e.job(jobs.Submission{ID: "f-q1", Function: "f", Priority: 1})
		e.job(jobs.Submission{ID: "g-q3", Function: "g"})
		e.job(jobs.Submission{ID: "f-s2", Function: "f", Delay: far})
		e.job(jobs.Submission{ID: "f-s1", Function: "f", Delay: far / 2})

		all := e.list(jobs.ListQuery{})
		if len(all) != 17 {
			e.Fatalf("%d jobs in all: %v", len(all), ids(all))
		}
		rank := []jobs.State{jobs.Active, jobs.Queued, jobs.Scheduled, jobs.Failed}
		for i := 1; i < len(all); i++ {
			a, b := slices.Index(rank, all[i-1].State), slices.Index(rank, all[i].State)
			if a >= 0 && b >= 0 && a > b {
				e.Fatalf("%s before %s", all[i-1].State, all[i].State)
			}
		}
		for q, want := range map[jobs.ListQuery][]string{
			{Function: "f", State: jobs.Active}:    {"f-active"},
			{State: jobs.Active}:                   {"f-active", "g-active"},
			{Function: "f", State: jobs.Queued}:    {"f-q1", "f-q2"},
			{State: jobs.Queued}:                   {"f-q1", "f-q2", "g-q3"},
			{Function: "f", State: jobs.Scheduled}: {"f-s1", "f-s2"},
			{State: jobs.Scheduled}:                {"f-s1", "f-s2"},
			{Function: "g", State: jobs.Complete}:  {"g-complete"},
			{State: jobs.Complete}:                 {"f-complete", "g-complete"},
			{Function: "g", State: jobs.Failed}:    {"g-failed"},
			{State: jobs.Failed}:                   {"f-failed", "g-failed"},
			{Function: "g", State: jobs.Replayed}:  {"g-replayed"},
			{State: jobs.Replayed}:                 {"f-replayed", "g-replayed"},
			{Function: "h"}:                        nil,
		} {
			for _, limit := range []int{0, 1, 2} {
				q.Limit = limit
				e.wantIDs(fmt.Sprintf("%+v", q), e.list(q), want...)
			}
		}
		for _, limit := range []int{1, 2, 5, 17, 18} {
			got := e.list(jobs.ListQuery{Limit: limit})
			if fmt.Sprint(ids(got)) != fmt.Sprint(ids(all)) {
				e.Fatalf("limit %d: got %v, want %v", limit, ids(got), ids(all))
			}
		}
	},
	"lists leave payloads out unless asked": func(e *env) {
		payload := []byte(`"` + strings.Repeat("p", 600) + `"`)
		e.job(jobs.Submission{Payload: payload})
		j := e.claimOne()
		e.ok(errOf(e.q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete, Result: payload})))
		e.job(jobs.Submission{Payload: []byte("1")})
		for _, j := range e.list(jobs.ListQuery{}) {
			if j.Payload != nil || j.Result != nil {
				e.Fatalf("job %+v", j)
			}
		}
		got := e.list(jobs.ListQuery{Payloads: true})
		if len(got) != 2 || string(got[0].Payload) != "1" || string(got[1].Payload) != string(payload) || string(got[1].Result) != string(payload) {
			e.Fatalf("jobs %+v", got)
		}
	},
	"large payloads end a page early": func(e *env) {
		payload := []byte(`"` + strings.Repeat("x", jobs.MaxPayloadBytes-2) + `"`)
		const n = jobs.MaxAnswerBytes/jobs.MaxPayloadBytes + 2
		for range n {
			e.job(jobs.Submission{Payload: payload})
		}
		page, err := e.q.List(e.ctx, jobs.ListQuery{Payloads: true})
		if err != nil || page.Cursor == "" || len(page.Jobs) == 0 || len(page.Jobs)*len(payload) > jobs.MaxAnswerBytes {
			e.Fatalf("%d jobs, cursor %q, %v", len(page.Jobs), page.Cursor, err)
		}
		if got := e.list(jobs.ListQuery{Payloads: true}); len(got) != n {
			e.Fatalf("%d jobs in all pages, want %d", len(got), n)
		}
	},
	"a page may end between two states": func(e *env) {
		payload := []byte(`"` + strings.Repeat("x", jobs.MaxPayloadBytes-2) + `"`)
		const n = jobs.MaxAnswerBytes / jobs.MaxPayloadBytes
		var want []string
		for i := range n + 1 {
			want = append(want, fmt.Sprintf("j%d", i))
			e.job(jobs.Submission{ID: want[i], Payload: payload})
		}
		for range n { // all but the last; together they fill a page
			e.claimOne()
		}
		page, err := e.q.List(e.ctx, jobs.ListQuery{Payloads: true})
		if err != nil || len(page.Jobs) != n || page.Cursor == "" {
			e.Fatalf("first page: %v, cursor %q, %v", ids(page.Jobs), page.Cursor, err)
		}
		e.wantIDs("all pages", e.list(jobs.ListQuery{Payloads: true}), want...)
	},
	"bad fields are named": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b"})
		page, err := e.q.List(e.ctx, jobs.ListQuery{Limit: 1})
		e.ok(err)
		for field, l := range map[string]jobs.ListQuery{
			"limit":    {Limit: 1001},
			"limit ":   {Limit: -1},
			"function": {Function: "a b"},
			"state":    {State: 99},
			"cursor":   {Cursor: "%"},
			"cursor ":  {Cursor: "AA"},
			"cursor  ": {Cursor: page.Cursor, State: jobs.Complete}, // of another query
		} {
			e.wantField(field, strings.TrimSpace(field), errOf(e.q.List(e.ctx, l)))
		}
	},
	"the depth counts jobs by state": func(e *env) {
		for range 3 {
			e.job(jobs.Submission{Delay: far})
		}
		for range 5 {
			e.job(jobs.Submission{})
		}
		got := e.claim(jobs.ClaimRequest{Limit: 4})
		e.finish(got[0], jobs.Failed)
		e.finish(got[1], jobs.Complete)
		e.finish(got[2], jobs.Cancelled)
		want := jobs.Depth{Scheduled: 3, Queued: 1, Active: 1, Dead: 1, Done: 2}
		e.eventually("the depth is right", func() bool { // shared engines may be a little behind
			d, err := e.q.Depth(e.ctx)
			return err == nil && d == want
		})
		c := e.q.Counters()
		if c.Enqueued != 8 || c.Claimed != 4 || c.Completed != 1 || c.Failed != 1 || c.Cancelled != 1 {
			e.Fatalf("counters %+v", c)
		}
	},
	"the oldest queued job is found in all priorities": func(e *env) {
		age := func() time.Duration {
			f, err := e.q.Function(e.ctx, "f")
			e.ok(err)
			return f.Oldest
		}
		e.job(jobs.Submission{Delay: far})
		if d := age(); d != 0 {
			e.Fatalf("nothing is queued, and the oldest waits for %v", d)
		}
		const while = 50 * time.Millisecond
		e.job(jobs.Submission{Priority: jobs.MinPriority})
		e.eventually("a job has waited", func() bool { return age() >= while })
		for p := range 40 {
			e.job(jobs.Submission{Priority: p})
		}
		if d := age(); d < while {
			e.Fatalf("the oldest waits for %v", d)
		}
		e.claim(jobs.ClaimRequest{Limit: 50})
		e.eventually("nothing waits", func() bool { return age() == 0 }) // scans may be stale
	},
}

// bulk enqueues many jobs in few transactions.
func (e *env) bulk(n int, function string, id func(int) string) {
	e.Helper()
	for from := 0; from < n; from += 500 {
		var batch []*jobs.Prepared
		for i := from; i < min(from+500, n); i++ {
			p, err := e.q.Prepare(jobs.Submission{Function: function, ID: id(i)})
			e.ok(err)
			batch = append(batch, p)
		}
		e.enqueueAll(batch)
	}
}

// enqueueAll enqueues jobs in one transaction.
func (e *env) enqueueAll(all []*jobs.Prepared) {
	e.Helper()
	e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error {
		for _, p := range all {
			if _, err := e.q.EnqueueTx(tx, p); err != nil {
				return err
			}
		}
		return nil
	}))
}
