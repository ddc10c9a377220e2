package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// logUnreadable logs each record that cannot be read once, up to unread.MaxKnown records.
func (a *app) logUnreadable(ctx context.Context) {
	logged := 0
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-a.unreadable.News():
			a.log.Error("a record cannot be read; only its key or job is affected",
				"collection", string(u.Collection), "key", u.Key, "reason", u.Reason)
			if logged++; logged == unread.MaxKnown {
				a.log.Error("further unreadable records are not logged; oncegate unreadable list has all of them", "logged", logged)
			}
		}
	}
}

// unreadableCollector exports what a tracker counts.
type unreadableCollector struct {
	tracker    *unread.Tracker
	known, met *prometheus.Desc
}

func newUnreadableCollector(t *unread.Tracker) *unreadableCollector {
	return &unreadableCollector{
		tracker: t,
		known:   prometheus.NewDesc("oncegate_unreadable_records", "Records that this manager met and could not read, up to 1000.", []string{"collection"}, nil),
		met:     prometheus.NewDesc("oncegate_unreadable_records_met_total", "How often this manager met a record that it could not read.", []string{"collection"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *unreadableCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.known
	ch <- c.met
}

// Collect implements prometheus.Collector.
func (c *unreadableCollector) Collect(ch chan<- prometheus.Metric) {
	for collection, n := range c.tracker.Counts() {
		ch <- prometheus.MustNewConstMetric(c.known, prometheus.GaugeValue, float64(n.Known), string(collection))
		ch <- prometheus.MustNewConstMetric(c.met, prometheus.CounterValue, float64(n.Met), string(collection))
	}
}
