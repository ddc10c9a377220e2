package jobstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// managers opens three queues, as three managers would.
func (e *env) managers(o jobs.Options) []*jobs.Queue {
	e.Helper()
	qs := []*jobs.Queue{e.queue(o)}
	for range 2 {
		qs = append(qs, e.queueOn(e.peer(), o))
	}
	return qs
}

// delivery is what a worker knows about one claimed job.
type delivery struct {
	job     string
	attempt int
	from    time.Time // by the store's clock
	until   time.Time // end of the last lease that the worker knows of
	end     string    // finished, returned or lost
	at      time.Time // of finished and returned
}

// history collects deliveries.
type history struct {
	mu   sync.Mutex
	list []delivery
}

func (h *history) add(d delivery) {
	h.mu.Lock()
	h.list = append(h.list, d)
	h.mu.Unlock()
}

// check fails the test unless each job was finished once, by its last delivery,
// and no delivery began while an earlier lease held.
func (h *history) check(e *env, want int) {
	e.Helper()
	byJob := map[string][]delivery{}
	for _, d := range h.list {
		byJob[d.job] = append(byJob[d.job], d)
	}
	if len(byJob) != want {
		e.Errorf("%d jobs were delivered, want %d", len(byJob), want)
	}
	lost := 0
	for id, ds := range byJob {
		slices.SortFunc(ds, func(a, b delivery) int { return a.attempt - b.attempt })
		for i, d := range ds {
			if d.attempt != i+1 {
				e.Fatalf("job %s: attempts %+v, want each of them once", id, ds)
			}
			if (d.end == "finished") != (i == len(ds)-1) {
				e.Fatalf("job %s: deliveries %+v, want the last and only that one finished", id, ds)
			}
			if d.end == "lost" {
				lost++
			}
			if i == 0 {
				continue
			}
			free := ds[i-1].until
			if ds[i-1].end == "returned" {
				free = ds[i-1].at
			}
			if d.from.Before(free) {
				e.Fatalf("job %s: delivery %d began at %s, but the one before held until %s", id, d.attempt, d.from, free)
			}
		}
	}
	e.Logf("%d jobs in %d deliveries, %d lost", len(byJob), len(h.list), lost)
}

// together runs f n times concurrently and waits.
func together(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

var concurrentTests = map[string]func(*env){
	"every job is done once and no leases overlap while workers die": func(e *env) {
		n, workers := e.engine.Jobs, e.engine.Workers
		if n == 0 {
			n = 10_000
		}
		if workers == 0 {
			workers = 50
		}
		n = deep.Rounds(n/10, n)
		qs := e.managers(jobs.Options{MaxAttempts: 1000})
		functions := []string{"a", "b", "c"}
		for _, f := range functions {
			e.bulk(n/3, f, func(i int) string { return fmt.Sprintf("%s%06d", f, i) })
		}
		n = n / 3 * 3
		var h history
		var done atomic.Int64
		together(workers, func(w int) {
			q := qs[w%len(qs)]
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for done.Load() < int64(n) && e.ctx.Err() == nil {
				c := jobs.ClaimRequest{
					Worker: fmt.Sprint("worker-", w), Limit: 1 + random.IntN(5),
					Lease: 500 * time.Millisecond, Wait: 50 * time.Millisecond,
				}
				switch random.IntN(3) {
				case 0:
					c.Functions = functions[random.IntN(3):][:1]
				case 1:
					c.Functions = functions
				}
				got, err := q.Claim(e.ctx, c)
				if err != nil {
					if !errors.Is(err, store.ErrConflict) {
						e.Errorf("claim: %v", err)
						return
					}
					continue
				}
				dies := random.IntN(200) == 0 // with everything it holds
				for _, j := range got {
					d := delivery{job: j.ID, attempt: j.Attempt, from: j.StartedAt, until: j.Lease.Until, end: "lost"}
					if !dies {
						e.work(q, random, j, &d)
					}
					if d.end == "finished" {
						done.Add(1)
					}
					h.add(d)
				}
			}
		})
		if e.ctx.Err() != nil {
			e.Fatalf("only %d of %d jobs were done in time", done.Load(), n)
		}
		h.check(e, n)
		if got, err := e.q.Claim(e.ctx, jobs.ClaimRequest{Worker: "w"}); err != nil || len(got) != 0 {
			e.Fatalf("left over: %v, %v", ids(got), err)
		}
	},
	"64 submissions with one key make one job": func(e *env) {
		qs := e.managers(jobs.Options{})
		for round := range 5 {
			s := jobs.Submission{Function: "f", Key: fmt.Sprint("k", round)}
			var created, refused atomic.Int64
			together(64, func(i int) {
				_, err := qs[i%len(qs)].Enqueue(e.ctx, s)
				switch {
				case err == nil:
					created.Add(1)
				case errors.Is(err, jobs.ErrDuplicateKey):
					refused.Add(1)
				default:
					e.Errorf("submission: %v", err)
				}
			})
			if created.Load() != 1 || refused.Load() != 63 {
				e.Fatalf("%d created, %d refused", created.Load(), refused.Load())
			}
			if got := e.list(jobs.ListQuery{State: jobs.Queued}); len(got) != round+1 {
				e.Fatalf("%d jobs after round %d", len(got), round)
			}
		}
	},
	"64 submissions with lost answers make one job": func(e *env) {
		f := &flaky{Store: e.in.Store}
		f.after.Store(32) // half of the commits are reported as failures
		q := e.queueOn(f, jobs.Options{})
		seen := make(chan string, 64)
		together(64, func(int) {
			for e.ctx.Err() == nil {
				out, err := q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k", ReturnExisting: true})
				if err == nil {
					seen <- out.Job.ID
					return
				}
				if !errors.Is(err, store.ErrUnavailable) {
					e.Errorf("submission: %v", err)
					return
				}
			}
		})
		close(seen)
		first := ""
		for id := range seen {
			if first == "" {
				first = id
			}
			if id != first {
				e.Fatalf("submissions were answered with %s and %s", first, id)
			}
		}
		e.wantIDs("jobs", e.list(jobs.ListQuery{}), first)
	},
	"64 duplicates make one job": func(e *env) {
		qs := e.managers(jobs.Options{})
		var created, dropped atomic.Int64
		together(64, func(i int) {
			out, err := qs[i%len(qs)].Enqueue(e.ctx, jobs.Submission{Function: "f", Dedup: untilExecuted,
				WALLocations: jobs.WALLocations{{Database: "main", LSN: jobs.LSN(1 + i*7%64)}}})
			switch {
			case err != nil:
				e.Errorf("submission: %v", err)
			case out.Deduplicated:
				dropped.Add(1)
			default:
				created.Add(1)
			}
		})
		if created.Load() != 1 || dropped.Load() != 63 {
			e.Fatalf("%d created, %d dropped", created.Load(), dropped.Load())
		}
		if got := e.claimOne().WALLocations; got[0].LSN != 64 {
			e.Fatalf("positions %v, want the latest of all", got.Map())
		}
	},
	"one of many finishers wins": func(e *env) {
		qs := e.managers(jobs.Options{})
		for range 10 {
			j := e.job(jobs.Submission{})
			got := e.claimOne()
			var won [3]atomic.Int64
			ends := []jobs.State{jobs.Complete, jobs.Failed, jobs.Cancelled}
			together(30, func(i int) {
				_, err := qs[i%len(qs)].Finish(e.ctx, jobs.Finish{ID: j.ID, Token: got.Lease.Token, State: ends[i%3]})
				switch {
				case err == nil:
					won[i%3].Add(1)
				case !errors.Is(err, jobs.ErrConflict):
					e.Errorf("finish: %v", err)
				}
			})
			final := e.get(j.ID).State
			for i, s := range ends {
				if n := won[i].Load(); s == final && n != 10 || s != final && n != 0 {
					e.Fatalf("%d calls won with %s, the job is %s", n, s, final)
				}
			}
		}
	},
	"no claim that starts after a pause delivers": func(e *env) {
		qs := e.managers(jobs.Options{})
		e.bulk(300, "f", func(i int) string { return fmt.Sprintf("j%03d", i) })
		stop := make(chan struct{})
		var claimers sync.WaitGroup
		for i := range 6 {
			claimers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := qs[i%len(qs)].Claim(e.ctx, jobs.ClaimRequest{Worker: "w", Lease: time.Hour}); err != nil && !errors.Is(err, store.ErrConflict) {
						e.Errorf("claim: %v", err)
						return
					}
				}
			})
		}
		for range 10 {
			e.pause("f")
			for _, q := range qs {
				got, err := q.Claim(e.ctx, jobs.ClaimRequest{Worker: "late", Limit: 5})
				if err != nil || len(got) != 0 {
					e.Errorf("claim after the pause: %v, %v", ids(got), err)
				}
			}
			e.resume("f")
		}
		close(stop)
		claimers.Wait()
	},
}

// work does what a living worker does with a job.
func (e *env) work(q *jobs.Queue, random *rand.Rand, j jobs.Job, d *delivery) {
	if random.IntN(10) == 0 {
		before := e.now()
		beat, err := q.Heartbeat(e.ctx, j.ID, j.Lease.Token, 0, nil)
		if err != nil {
			e.stale("heartbeat", err)
			return
		}
		// The lease holds at least until then.
		d.until = before.Add(beat.ExpiresIn).Truncate(time.Microsecond)
	}
	if random.IntN(20) == 0 {
		got, err := q.Retry(e.ctx, jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: &zero})
		if err != nil {
			e.stale("retry", err)
			return
		}
		d.end, d.at = "returned", got.RunAt
		return
	}
	got, err := q.Finish(e.ctx, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete})
	if err != nil {
		e.stale("finish", err)
		return
	}
	d.end, d.at = "finished", got.FinishedAt
}

// stale accepts the refusal of a worker that was too slow, and nothing else.
func (e *env) stale(call string, err error) {
	if !errors.Is(err, jobs.ErrFenced) && !errors.Is(err, store.ErrConflict) {
		e.Errorf("%s: %v", call, err)
	}
}
