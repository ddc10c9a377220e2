package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/jobs"
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

// JobsCollector exports a queue's counters and depth.
type JobsCollector struct {
	queue *jobs.Queue
	depth func() (JobsDepth, error)

	operations, jobs, waiting, oldest, bytes, retained, maxBytes *prometheus.Desc
	byFunction, oldestOf, operationsOf                           *prometheus.Desc
}

// JobsDepth is how many jobs there are, what they take, and what there is of each function.
type JobsDepth struct {
	jobs.Depth
	Usage     jobs.Usage
	Functions []jobs.Series
}

// NewJobsCollector returns a collector. Each scrape calls depth, which returns what Depth, Usage and Series do and must
// be bounded in time.
func NewJobsCollector(q *jobs.Queue, depth func() (JobsDepth, error)) *JobsCollector {
	return &JobsCollector{
		queue: q, depth: depth,
		operations:   prometheus.NewDesc("oncegate_jobs_operations_total", "Operations on jobs at this manager, by outcome.", []string{"outcome"}, nil),
		jobs:         prometheus.NewDesc("oncegate_jobs", "Jobs in the store, by state.", []string{"state"}, nil),
		waiting:      prometheus.NewDesc("oncegate_jobs_waiting", "Claims and waits for a result that are held now.", nil, nil),
		oldest:       prometheus.NewDesc("oncegate_jobs_oldest_queued_age_seconds", "For how long the job that waits longest could have run, 0 without one.", nil, nil),
		byFunction:   prometheus.NewDesc("oncegate_jobs_by_function", "Jobs in the store, by function and state.", []string{"function", "state"}, nil),
		oldestOf:     prometheus.NewDesc("oncegate_jobs_by_function_oldest_queued_age_seconds", "For how long the function's job that waits longest could have run, 0 without one.", []string{"function"}, nil),
		operationsOf: prometheus.NewDesc("oncegate_jobs_by_function_operations_total", "Operations on a function's jobs at this manager, by outcome.", []string{"function", "outcome"}, nil),
		bytes:        prometheus.NewDesc("oncegate_jobs_bytes", "What the jobs take of oncegate_jobs_max_bytes, finished ones and dead letters included.", nil, nil),
		retained:     prometheus.NewDesc("oncegate_jobs_retained_bytes", "What finished jobs and dead letters take, at most a quarter of oncegate_jobs_max_bytes.", nil, nil),
		maxBytes:     prometheus.NewDesc("oncegate_jobs_max_bytes", "Bytes of jobs beyond which new ones are refused.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *JobsCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.operations
	ch <- c.jobs
	ch <- c.waiting
	ch <- c.oldest
	ch <- c.bytes
	ch <- c.retained
	ch <- c.maxBytes
	ch <- c.byFunction
	ch <- c.oldestOf
	ch <- c.operationsOf
}

// Collect implements prometheus.Collector.
func (c *JobsCollector) Collect(ch chan<- prometheus.Metric) {
	counters := c.queue.Counters()
	for outcome, n := range jobCounts(counters) {
		ch <- prometheus.MustNewConstMetric(c.operations, prometheus.CounterValue, float64(n), outcome)
	}
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(counters.Waiting))
	d, err := c.depth()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.jobs, err)
		return
	}
	var oldest time.Duration
	for i := range d.Functions {
		f := &d.Functions[i]
		oldest = max(oldest, f.Oldest)
		ch <- prometheus.MustNewConstMetric(c.oldestOf, prometheus.GaugeValue, f.Oldest.Seconds(), f.Name)
		for state, n := range map[string]int{"queued": f.Queued, "scheduled": f.Scheduled, "active": f.Active, "dead": f.Dead} {
			ch <- prometheus.MustNewConstMetric(c.byFunction, prometheus.GaugeValue, float64(n), f.Name, state)
		}
		r := &f.Rates
		for outcome, n := range map[string]int64{"enqueued": r.Enqueued, "claimed": r.Claimed, "completed": r.Completed, "failed": r.Failed, "retried": r.Retried} {
			ch <- prometheus.MustNewConstMetric(c.operationsOf, prometheus.CounterValue, float64(n), f.Name, outcome)
		}
	}
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, oldest.Seconds())
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(d.Usage.Total))
	ch <- prometheus.MustNewConstMetric(c.retained, prometheus.GaugeValue, float64(d.Usage.Retained))
	ch <- prometheus.MustNewConstMetric(c.maxBytes, prometheus.GaugeValue, float64(d.Usage.MaxTotal))
	for state, n := range map[string]int{"scheduled": d.Scheduled, "queued": d.Queued, "active": d.Active, "dead": d.Dead, "done": d.Done} {
		ch <- prometheus.MustNewConstMetric(c.jobs, prometheus.GaugeValue, float64(n), state)
	}
}
