package server

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// jobCounts names what a queue counts, for statistics and metrics alike.
func jobCounts(c jobs.Counters) map[string]int64 {
	return map[string]int64{
		"enqueued": c.Enqueued, "existing": c.Existing, "deduplicated": c.Deduplicated, "claimed": c.Claimed,
		"completed": c.Completed, "failed": c.Failed, "cancelled": c.Cancelled, "retried": c.Retried,
		"cancel_requested": c.CancelRequests, "deleted": c.Deleted, "promoted": c.Promoted, "reclaimed": c.Reclaimed,
		"dead_by_lease": c.DeadByLease, "expired": c.Expired, "timed_out": c.TimedOut, "fenced": c.Fenced, "full": c.Full, "over_share": c.OverShare,
	}
}

// JobsDepth is how many jobs there are, what they take, and what there is of each function.
type JobsDepth struct {
	jobs.Depth
	Usage     jobs.Usage
	Functions []jobs.Series
}

// NewJobsCollector returns a collector of a queue's counters and depth. Each scrape calls depth, which returns what Depth,
// Usage and Series do.
func NewJobsCollector(q *jobs.Queue, depth func(context.Context) (JobsDepth, error)) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		counters := q.Counters()
		for outcome, n := range jobCounts(counters) {
			scrape.Set(m, "oncegate_jobs_operations_total", n, outcome)
		}
		scrape.Set(m, "oncegate_jobs_waiting", counters.Waiting)
		d, err := depth(m.Context)
		if err != nil {
			return err
		}
		var oldest time.Duration
		for i := range d.Functions {
			f := &d.Functions[i]
			oldest = max(oldest, f.Oldest)
			scrape.Set(m, "oncegate_jobs_by_function_oldest_queued_age_seconds", f.Oldest.Seconds(), f.Name)
			for state, n := range map[string]int{"queued": f.Queued, "scheduled": f.Scheduled, "active": f.Active, "dead": f.Dead} {
				scrape.Set(m, "oncegate_jobs_by_function", n, f.Name, state)
			}
			r := &f.Rates
			for outcome, n := range map[string]int64{"enqueued": r.Enqueued, "claimed": r.Claimed, "completed": r.Completed, "failed": r.Failed, "retried": r.Retried} {
				scrape.Set(m, "oncegate_jobs_by_function_operations_total", n, f.Name, outcome)
			}
		}
		scrape.Set(m, "oncegate_jobs_oldest_queued_age_seconds", oldest.Seconds())
		scrape.Set(m, "oncegate_jobs_bytes", d.Usage.Total)
		scrape.Set(m, "oncegate_jobs_retained_bytes", d.Usage.Retained)
		scrape.Set(m, "oncegate_jobs_max_bytes", d.Usage.MaxTotal)
		for state, n := range map[string]int{"scheduled": d.Scheduled, "queued": d.Queued, "active": d.Active, "dead": d.Dead, "done": d.Done} {
			scrape.Set(m, "oncegate_jobs", n, state)
		}
		return nil
	},
		scrape.Describe("oncegate_jobs", "Jobs in the store, by state.", "state"),
		scrape.Describe("oncegate_jobs_operations_total", "Operations on jobs at this manager, by outcome.", "outcome"),
		scrape.Describe("oncegate_jobs_waiting", "Claims and waits for a result that are held now."),
		scrape.Describe("oncegate_jobs_oldest_queued_age_seconds", "For how long the job that waits longest could have run, 0 without one."),
		scrape.Describe("oncegate_jobs_by_function", "Jobs in the store, by function and state.", "function", "state"),
		scrape.Describe("oncegate_jobs_by_function_oldest_queued_age_seconds", "For how long the function's job that waits longest could have run, 0 without one.", "function"),
		scrape.Describe("oncegate_jobs_by_function_operations_total", "Operations on a function's jobs at this manager, by outcome.", "function", "outcome"),
		scrape.Describe("oncegate_jobs_bytes", "What the jobs take of oncegate_jobs_max_bytes, finished ones and dead letters included."),
		scrape.Describe("oncegate_jobs_retained_bytes", "What finished jobs and dead letters take, at most a quarter of oncegate_jobs_max_bytes."),
		scrape.Describe("oncegate_jobs_max_bytes", "Bytes of jobs beyond which new ones are refused."))
}
