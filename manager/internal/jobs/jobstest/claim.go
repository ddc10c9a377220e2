package jobstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// startWaiting starts a claim that waits unless there is a job.
func (e *env) startWaiting(q *jobs.Queue, c jobs.ClaimRequest) <-chan []jobs.Job {
	c.Worker, c.Wait = "waiter", jobs.MaxWait
	out := make(chan []jobs.Job, 1)
	go func() {
		got, err := q.Claim(e.ctx, c)
		if err != nil {
			e.Errorf("waiting claim: %v", err)
		}
		out <- got
	}()
	return out
}

// waiting starts a claim that waits and returns when it does.
func (e *env) waiting(q *jobs.Queue, c jobs.ClaimRequest) <-chan []jobs.Job {
	e.Helper()
	before := q.Counters().Waiting
	out := e.startWaiting(q, c)
	e.eventually("the claim waits", func() bool { return q.Counters().Waiting > before })
	return out
}

func (e *env) receive(c <-chan []jobs.Job) []jobs.Job {
	e.Helper()
	select {
	case got := <-c:
		return got
	case <-e.ctx.Done():
		e.Fatal("the waiting claim did not return")
		return nil
	}
}

var claimTests = map[string]func(*env){
	"highest priority first, then oldest": func(e *env) {
		e.job(jobs.Submission{ID: "mid1"})
		e.job(jobs.Submission{ID: "low", Priority: -32768})
		e.job(jobs.Submission{ID: "high1", Priority: 5})
		e.job(jobs.Submission{ID: "top", Priority: 32767})
		e.job(jobs.Submission{ID: "mid2"})
		e.job(jobs.Submission{ID: "high2", Priority: 5})
		e.job(jobs.Submission{ID: "neg", Priority: -1})
		want := []string{"top", "high1", "high2", "mid1", "mid2", "neg", "low"}
		e.wantIDs("first three", e.claim(jobs.ClaimRequest{Limit: 3}), want[:3]...)
		for _, id := range want[3:] {
			if got := e.claimOne(); got.ID != id {
				e.Fatalf("claimed %s, want %s", got.ID, id)
			}
		}
	},
	"a claim has its lease and attempt": func(e *env) {
		a := e.job(jobs.Submission{})
		before := e.now().Truncate(time.Microsecond)
		got := e.claim(jobs.ClaimRequest{Worker: "host:1", Lease: time.Minute})[0]
		after := e.now()
		l := got.Lease
		if got.ID != a.ID || got.Attempt != 1 || l.Worker != "host:1" || l.Duration != time.Minute || l.ExpiresIn != time.Minute ||
			len(l.Token) < 32 || l.Until.Before(before.Add(time.Minute)) || l.Until.After(after.Add(time.Minute)) ||
			got.StartedAt.Before(before) || got.StartedAt.After(after) {
			e.Fatalf("claimed %+v with lease %+v between %s and %s", got, l, before, after)
		}
		stored := e.wantState(a.ID, jobs.Active)
		if stored.Lease.Token != l.Token || !stored.Lease.Until.Equal(l.Until) || stored.Lease.ExpiresIn > time.Minute {
			e.Fatalf("stored lease %+v, claimed %+v", stored.Lease, l)
		}
	},
	"a claim gets only jobs of its functions": func(e *env) {
		e.q = e.queue(jobs.Options{Random: func() float64 { return 0 }})
		for i, f := range []string{"a", "b", "c", "a", "b", "ab", "a.b"} {
			e.job(jobs.Submission{ID: fmt.Sprintf("%d%s", i, f), Function: f, Priority: i % 2})
		}
		e.claimNone("x", "A")
		e.wantIDs("b and c", e.claim(jobs.ClaimRequest{Functions: []string{"c", "b", "b"}, Limit: 10}), "1b", "4b", "2c")
		e.wantIDs("a", e.claim(jobs.ClaimRequest{Functions: []string{"a"}, Limit: 10}), "3a", "0a")
		e.wantIDs("the rest", e.claim(jobs.ClaimRequest{Limit: 10}), "5ab", "6a.b")
	},
	"the functions of a claim take turns within a priority": func(e *env) {
		turn := 0.
		e.q = e.queue(jobs.Options{Random: func() float64 { return turn }})
		e.bulk(1000, "a", func(i int) string { return fmt.Sprintf("a%04d", i) })
		e.bulk(6, "b", func(i int) string { return fmt.Sprintf("b%d", i) })
		e.job(jobs.Submission{ID: "low", Function: "b", Priority: -1})
		e.job(jobs.Submission{ID: "high", Function: "a", Priority: 1})
		both := []string{"a", "b"}
		e.wantIDs("four", e.claim(jobs.ClaimRequest{Functions: both, Limit: 4}), "high", "a0000", "b0", "a0001")
		turn = 0.9
		e.wantIDs("b begins", e.claim(jobs.ClaimRequest{Functions: both}), "b1")
		e.wantIDs("five", e.claim(jobs.ClaimRequest{Functions: both, Limit: 5}), "b2", "a0002", "b3", "a0003", "b4")
		e.wantIDs("any function", e.claim(jobs.ClaimRequest{}), "a0004")
		e.wantIDs("the rest of b", e.claim(jobs.ClaimRequest{Functions: both, Limit: 3}), "b5", "a0005", "a0006")
		e.pause("c")
		e.wantIDs("any function while one is paused", e.claim(jobs.ClaimRequest{}), "a0007")
		e.wantIDs("a lower priority waits", e.claim(jobs.ClaimRequest{Functions: both}), "a0008")
		e.wantIDs("alone", e.claim(jobs.ClaimRequest{Functions: []string{"b"}}), "low")
	},
	"a function with a long queue starves no other": func(e *env) {
		e.bulk(500, "a", func(i int) string { return fmt.Sprintf("a%04d", i) })
		e.bulk(5, "b", func(i int) string { return fmt.Sprintf("b%d", i) })
		for claims, left := 0, 5; left > 0; claims++ { // each second one is for b, so 5 of 200 claims fail to come with odds of 1e-50
			got := e.claim(jobs.ClaimRequest{Functions: []string{"a", "b"}})
			if len(got) != 1 || claims == 200 {
				e.Fatalf("claim %d has %v, and %d jobs of b wait", claims, ids(got), left)
			}
			if got[0].Function == "b" {
				left--
			}
		}
	},
	"the limit bounds the jobs of a claim": func(e *env) {
		for range 7 {
			e.job(jobs.Submission{})
		}
		if n := len(e.claim(jobs.ClaimRequest{})); n != 1 {
			e.Fatalf("without a limit: %d jobs", n)
		}
		if n := len(e.claim(jobs.ClaimRequest{Limit: 4})); n != 4 {
			e.Fatalf("limit 4: %d jobs", n)
		}
		if n := len(e.claim(jobs.ClaimRequest{Limit: 1000})); n != 2 {
			e.Fatalf("the rest: %d jobs", n)
		}
	},
	"large payloads end an answer early": func(e *env) {
		payload := []byte(`"` + strings.Repeat("x", jobs.MaxPayloadBytes-2) + `"`)
		const n = 10
		for range n {
			e.job(jobs.Submission{Payload: payload})
		}
		total := 0
		for total < n {
			got := e.claim(jobs.ClaimRequest{Limit: n})
			if len(got) == 0 || len(got)*len(payload) > jobs.MaxClaimBytes {
				e.Fatalf("%d jobs of %d bytes after %d", len(got), len(payload), total)
			}
			total += len(got)
		}
		for range n {
			e.job(jobs.Submission{Payload: append(payload[:jobs.MaxClaimBytes/3-1000:jobs.MaxClaimBytes/3-1000], '"')})
		}
		for _, want := range []int{3, 3, 3, 1} {
			if got := e.claim(jobs.ClaimRequest{Limit: n}); len(got) != want {
				e.Fatalf("%d jobs of a third of the limit, want %d", len(got), want)
			}
		}
	},
	"bad fields are named": func(e *env) {
		many := make([]string, 101)
		for i := range many {
			many[i] = fmt.Sprint("f", i)
		}
		for field, c := range map[string]jobs.ClaimRequest{
			"worker":     {},
			"worker ":    {Worker: "a b"},
			"functions":  {Worker: "w", Functions: many},
			"functions ": {Worker: "w", Functions: []string{""}},
			"limit":      {Worker: "w", Limit: 1001},
			"limit ":     {Worker: "w", Limit: -1},
			"lease_ms":   {Worker: "w", Lease: time.Millisecond},
			"lease_ms ":  {Worker: "w", Lease: 25 * time.Hour},
			"wait_ms":    {Worker: "w", Wait: -1},
			"wait_ms ":   {Worker: "w", Wait: jobs.MaxWait + 1},
		} {
			e.wantField(fmt.Sprintf("%+v", c), strings.TrimSpace(field), errOf(e.q.Claim(e.ctx, c)))
		}
	},
	"a waiting claim gets a job when it is submitted": func(e *env) {
		any := e.waiting(e.q, jobs.ClaimRequest{})
		a := e.job(jobs.Submission{Function: "f"})
		e.wantIDs("waiting for any", e.receive(any), a.ID)
		f := e.waiting(e.q, jobs.ClaimRequest{Functions: []string{"f"}})
		several := e.waiting(e.q, jobs.ClaimRequest{Functions: []string{"g", "h"}})
		h := e.job(jobs.Submission{Function: "h"})
		e.wantIDs("waiting for g and h", e.receive(several), h.ID)
		b := e.job(jobs.Submission{Function: "f"})
		e.wantIDs("waiting for f", e.receive(f), b.ID)
	},
	"a waiting claim is woken by another manager": func(e *env) {
		if e.in.Peer == nil {
			c := e.waiting(e.queue(jobs.Options{}), jobs.ClaimRequest{})
			a := e.job(jobs.Submission{})
			e.wantIDs("the other queue", e.receive(c), a.ID)
			return
		}
		peer := e.queueOn(e.in.Peer(e), jobs.Options{})
		c := e.waiting(peer, jobs.ClaimRequest{Functions: []string{"f"}})
		a := e.job(jobs.Submission{})
		e.wantIDs("the peer", e.receive(c), a.ID)
	},
	"a waiting claim gets a job when it is due": func(e *env) {
		defer e.run(e.q, func(_ jobs.DutyReport, err error) {
			if err != nil {
				e.Errorf("Run: %v", err)
			}
		})()
		a := e.job(jobs.Submission{Delay: span})
		c := e.waiting(e.q, jobs.ClaimRequest{})
		e.pass(span)
		e.wantIDs("after the delay", e.receive(c), a.ID)
	},
	"one job wakes one of many waiting claims": func(e *env) {
		const n = 20
		got := make(chan []jobs.Job, n)
		for range n {
			c := e.waiting(e.q, jobs.ClaimRequest{Functions: []string{"f"}})
			go func() { got <- <-c }()
		}
		want := map[string]bool{}
		for range n {
			want[e.job(jobs.Submission{}).ID] = true
		}
		for range n {
			for _, j := range e.receive(got) {
				if !want[j.ID] {
					e.Fatalf("job %s came twice", j.ID)
				}
				delete(want, j.ID)
			}
		}
		if len(want) != 0 {
			e.Fatalf("jobs %v did not arrive", want)
		}
	},
	"a wait that ends returns no jobs": func(e *env) {
		got, err := e.q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Wait: 5 * time.Millisecond})
		if err != nil || len(got) != 0 {
			e.Fatalf("got %v, %v", got, err)
		}
		if n := e.q.Counters().Waiting; n != 0 {
			e.Fatalf("%d calls still wait", n)
		}
	},
	"waiting calls are bounded": func(e *env) {
		q := e.queue(jobs.Options{MaxWaiters: 1})
		c := e.waiting(q, jobs.ClaimRequest{})
		e.wantErr("second waiting claim", jobs.ErrOverloaded, errOf(q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Wait: time.Hour / 100})))
		a := e.job(jobs.Submission{Function: "x"})
		e.receive(c)
		b := e.job(jobs.Submission{})
		d := e.waiting(q, jobs.ClaimRequest{Functions: []string{"never"}})
		e.wantErr("waiting for a result", jobs.ErrOverloaded, errOf(q.Wait(e.ctx, b.ID, time.Minute)))
		// Calls that need not wait are not affected.
		if _, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w"}); err != nil {
			e.Errorf("claim without wait: %v", err)
		}
		if _, err := q.Wait(e.ctx, a.ID, 0); err != nil {
			e.Errorf("wait of no time: %v", err)
		}
		e.job(jobs.Submission{Function: "never"})
		e.receive(d)
	},
	"a caller that leaves gets no job": func(e *env) {
		for i := range 40 {
			ctx, cancel := context.WithCancel(e.ctx)
			done := make(chan struct{})
			var got []jobs.Job
			go func() {
				defer close(done)
				got, _ = e.q.Claim(ctx, jobs.ClaimRequest{Worker: "leaver", Lease: jobs.MaxLease, Wait: time.Minute})
			}()
			a := e.job(jobs.Submission{ID: fmt.Sprint("a", i)})
			cancel()
			<-done
			if len(got) == 0 { // it left without the job, which must come back by itself
				e.eventually("the job is back", func() bool { return e.get(a.ID).State == jobs.Queued })
				got = []jobs.Job{e.claimOne()}
			}
			if got[0].ID != a.ID || got[0].Attempt != 1 {
				e.Fatalf("got %+v, want the first attempt of %s", got[0], a.ID)
			}
			e.finish(got[0], jobs.Complete)
		}
	},
	"a claim that nobody waits for any more is undone": func(e *env) {
		e.job(jobs.Submission{ID: "a"})
		e.job(jobs.Submission{ID: "b", MaxAttempts: 1})
		e.job(jobs.Submission{ID: "c"})
		ctx, cancel := context.WithCancel(e.ctx)
		left := make(chan struct{})
		f := &flaky{Store: e.in.Store}
		var once sync.Once
		f.committed = func() { // the claim is durable, its caller does not know yet
			once.Do(func() {
				e.cancel("c")
				cancel()
				<-left
			})
		}
		q := e.queueOn(f, jobs.Options{})
		_, err := q.Claim(ctx, jobs.ClaimRequest{Worker: "leaver", Limit: 3, Lease: jobs.MaxLease})
		if !errors.Is(err, context.Canceled) {
			e.Fatalf("claim: %v", err)
		}
		for _, id := range []string{"a", "b", "c"} {
			e.wantState(id, jobs.Active)
		}
		close(left)
		e.eventually("the jobs are back", func() bool {
			return e.get("a").State == jobs.Queued && e.get("b").State == jobs.Queued && e.get("c").State == jobs.Cancelled
		})
		for _, j := range e.claim(jobs.ClaimRequest{Limit: 3}) {
			if j.Attempt != 1 {
				e.Fatalf("the undone claim counts as an attempt: %+v", j)
			}
		}
	},
	"a claim that is undone acquires the deduplication lock again": func(e *env) {
		s := jobs.Submission{ID: "a", Dedup: untilExecuting}
		e.job(s)
		s.ID = ""
		e.ok(e.q.PutBack([]jobs.Job{e.claimOne()}))
		e.wantDropped("a", s)
		// A duplicate that came while it was claimed was none.
		first := e.claimOne()
		b := e.job(s)
		e.ok(e.q.PutBack([]jobs.Job{first}))
		e.wantDropped(b.ID, s)
		e.wantIDs("claims", e.claim(jobs.ClaimRequest{Limit: 3, Lease: time.Hour}), "a", b.ID)
		e.job(s) // all have started
	},
	"a drained queue answers its waiting calls": func(e *env) {
		q := e.queue(jobs.Options{})
		a := e.job(jobs.Submission{Delay: far})
		claims := e.waiting(q, jobs.ClaimRequest{})
		several := e.waiting(q, jobs.ClaimRequest{Functions: []string{"f", "g"}})
		type answer struct {
			job jobs.Job
			err error
		}
		waited := make(chan answer, 1)
		go func() {
			j, err := q.Wait(e.ctx, a.ID, jobs.MaxWait)
			waited <- answer{j, err}
		}()
		e.eventually("all wait", func() bool { return q.Counters().Waiting == 3 })
		q.Drain()
		q.Drain()
		e.wantIDs("claim", e.receive(claims))
		e.wantIDs("claim of several functions", e.receive(several))
		if got := <-waited; got.err != nil || got.job.ID != a.ID || got.job.State != jobs.Scheduled {
			e.Fatalf("wait for a result: %+v", got)
		}
		if got, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Wait: jobs.MaxWait}); err != nil || len(got) != 0 {
			e.Fatalf("claim after Drain: %v, %v", ids(got), err)
		}
		b := e.job(jobs.Submission{}) // everything but waiting continues
		if got, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Wait: jobs.MaxWait}); err != nil || len(got) != 1 || got[0].ID != b.ID {
			e.Fatalf("claim after Drain: %v, %v", ids(got), err)
		}
	},
	"a closed queue ends its waiting calls": func(e *env) {
		q := e.queue(jobs.Options{})
		a := e.job(jobs.Submission{Delay: far})
		errs := make(chan error, 2)
		go func() {
			_, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Wait: time.Minute})
			errs <- err
		}()
		go func() {
			_, err := q.Wait(e.ctx, a.ID, time.Minute)
			errs <- err
		}()
		e.eventually("both wait", func() bool { return q.Counters().Waiting == 2 })
		q.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, jobs.ErrClosed) {
				e.Errorf("got %v, want ErrClosed", err)
			}
		}
		e.wantErr("claim after Close", jobs.ErrClosed, errOf(q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w"})))
	},
}
