package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// spaceCollector exports how full the store's server is. It asks the server once for each scrape.
type spaceCollector struct {
	space                       func(context.Context) store.Space
	majority, full, size, quota *prometheus.Desc
}

func newSpaceCollector(space func(context.Context) store.Space) *spaceCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &spaceCollector{
		space:    space,
		majority: desc("oncegate_store_majority", "1 while a member of the store's server answers and knows a leader, so that a majority acknowledges writes."),
		full:     desc("oncegate_store_full", "1 while the store's server takes no more records, until an operator makes room."),
		size:     desc("oncegate_store_size_bytes", "Size of the fullest member's file."),
		quota:    desc("oncegate_store_quota_bytes", "Size from which the store's server takes no more records; absent if it does not say."),
	}
}

// Describe implements prometheus.Collector.
func (c *spaceCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.majority
	ch <- c.full
	ch <- c.size
	ch <- c.quota
}

// Collect implements prometheus.Collector. What is not known is absent.
func (c *spaceCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	truth := map[bool]float64{true: 1}
	s := c.space(context.Background())
	gauge(c.majority, truth[s.Majority])
	if s.Bytes == 0 {
		return // no member answered
	}
	gauge(c.full, truth[s.Full])
	gauge(c.size, float64(s.Bytes))
	if s.Quota > 0 {
		gauge(c.quota, float64(s.Quota))
	}
}

// clockCollector is the metric of a store's clock that is not a wall clock.
func clockCollector(behind func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_store_clock_behind_seconds", Help: "How far the store's time is behind this machine's wall clock; negative when it is ahead.",
	}, func() float64 { return behind().Seconds() })
}
