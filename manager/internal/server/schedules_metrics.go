package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// SchedulesCollector exports what becomes of the instants of schedules.
type SchedulesCollector struct {
	schedules *schedules.Schedules
	depth     func() (schedules.Depth, error)

	all, instants, late *prometheus.Desc
}

// NewSchedulesCollector returns a collector. Each scrape calls depth, which returns what Depth does and must be bounded in
// time.
func NewSchedulesCollector(s *schedules.Schedules, depth func() (schedules.Depth, error)) *SchedulesCollector {
	return &SchedulesCollector{
		schedules: s, depth: depth,
		all:      prometheus.NewDesc("oncegate_jobs_schedules", "Schedules in the store, by state.", []string{"state"}, nil),
		instants: prometheus.NewDesc("oncegate_jobs_schedule_instants_total", "Instants of schedules that this manager came to, by what became of them.", []string{"outcome"}, nil),
		late:     prometheus.NewDesc("oncegate_jobs_schedule_late_seconds", "For how long the instant of a schedule that waits longest for its job has been due, 0 without one.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *SchedulesCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.all
	ch <- c.instants
	ch <- c.late
}

// Collect implements prometheus.Collector.
func (c *SchedulesCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.schedules.Counters()
	for outcome, n := range map[string]int64{"enqueued": n.Enqueued, "missed": n.Missed, "overlapped": n.Overlapped} {
		ch <- prometheus.MustNewConstMetric(c.instants, prometheus.CounterValue, float64(n), outcome)
	}
	d, err := c.depth()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.all, err)
		return
	}
	for state, n := range map[string]int{"active": d.Active, "paused": d.Paused} {
		ch <- prometheus.MustNewConstMetric(c.all, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(c.late, prometheus.GaugeValue, d.Late.Seconds())
}
