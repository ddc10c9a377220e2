package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

type jobCount struct {
	name string
	n    int64
}

// jobCounts names what a queue counts, for statistics and metrics alike.
func jobCounts(c jobs.Counters) []jobCount {
	return []jobCount{
		{"enqueued", c.Enqueued}, {"existing", c.Existing}, {"deduplicated", c.Deduplicated}, {"claimed", c.Claimed},
		{"completed", c.Completed}, {"failed", c.Failed}, {"cancelled", c.Cancelled}, {"retried", c.Retried},
		{"cancel_requested", c.CancelRequests}, {"promoted", c.Promoted}, {"reclaimed", c.Reclaimed},
		{"dead_by_lease", c.DeadByLease}, {"fenced", c.Fenced},
	}
}

// JobsCollector exports a queue's counters and depth.
type JobsCollector struct {
	queue *jobs.Queue
	depth func() (jobs.Depth, error)

	calls, jobs, waiting *prometheus.Desc
}

// NewJobsCollector returns a collector; depth is called with each scrape and
// must be bounded in time.
func NewJobsCollector(q *jobs.Queue, depth func() (jobs.Depth, error)) *JobsCollector {
	return &JobsCollector{
		queue: q, depth: depth,
		calls:   prometheus.NewDesc("oncegate_jobs_total", "What this manager did with jobs.", []string{"what"}, nil),
		jobs:    prometheus.NewDesc("oncegate_jobs", "Jobs in the store, by state.", []string{"state"}, nil),
		waiting: prometheus.NewDesc("oncegate_jobs_waiting", "Claims and waits for a result that are held now.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *JobsCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.calls
	ch <- c.jobs
	ch <- c.waiting
}

// Collect implements prometheus.Collector.
func (c *JobsCollector) Collect(ch chan<- prometheus.Metric) {
	counters := c.queue.Counters()
	for _, x := range jobCounts(counters) {
		ch <- prometheus.MustNewConstMetric(c.calls, prometheus.CounterValue, float64(x.n), x.name)
	}
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(counters.Waiting))
	d, err := c.depth()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.jobs, err)
		return
	}
	for state, n := range map[string]int{"scheduled": d.Scheduled, "queued": d.Queued, "active": d.Active, "dead": d.Dead, "done": d.Done} {
		ch <- prometheus.MustNewConstMetric(c.jobs, prometheus.GaugeValue, float64(n), state)
	}
}
