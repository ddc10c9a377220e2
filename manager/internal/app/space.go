package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// newSpaceCollector returns a collector of how full the store's server is. It asks the server once for each scrape. What is not
// known is absent.
func newSpaceCollector(space func(context.Context) store.Space) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		truth := map[bool]int{true: 1}
		s := space(m.Context)
		scrape.Set(m, "oncegate_store_majority", truth[s.Majority])
		if s.Bytes == 0 {
			return nil // no member answered
		}
		scrape.Set(m, "oncegate_store_full", truth[s.Full])
		scrape.Set(m, "oncegate_store_size_bytes", s.Bytes)
		if s.Quota > 0 {
			scrape.Set(m, "oncegate_store_quota_bytes", s.Quota)
		}
		return nil
	},
		scrape.Describe("oncegate_store_majority", "1 while a member of the store's server answers and knows a leader, so that a majority acknowledges writes."),
		scrape.Describe("oncegate_store_full", "1 while the store's server takes no more records, until an operator makes room."),
		scrape.Describe("oncegate_store_size_bytes", "Size of the fullest member's file."),
		scrape.Describe("oncegate_store_quota_bytes", "Size from which the store's server takes no more records; absent if it does not say."))
}

// clockCollector is the metric of a store's clock that is not a wall clock.
func clockCollector(behind func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_store_clock_behind_seconds", Help: "How far the store's time is behind this machine's wall clock; negative when it is ahead.",
	}, func() float64 { return behind().Seconds() })
}
