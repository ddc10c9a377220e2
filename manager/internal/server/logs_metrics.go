package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// LogsCollector exports what is known of each log. There are few, as the engine bounds them.
type LogsCollector struct {
	engine logs.Engine

	appends, keys, windowBytes, evicted, evictedAge, entries, disk, failed, readers *prometheus.Desc
}

// NewLogsCollector returns a collector.
func NewLogsCollector(engine logs.Engine) *LogsCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"log"}, labels...), nil)
	}
	return &LogsCollector{
		engine:      engine,
		appends:     desc("oncegate_logs_appends_total", "Entries that writers asked to append, by outcome.", "outcome"),
		keys:        desc("oncegate_logs_window_keys", "Ids, or clients, that the window holds."),
		windowBytes: desc("oncegate_logs_window_bytes", "Memory that the window takes."),
		evicted:     desc("oncegate_logs_window_evicted_total", "Ids forgotten before their time, as the window was full."),
		evictedAge:  desc("oncegate_logs_window_evicted_age_seconds", "Age of the id that was forgotten last before its time; 0 before there was one."),
		entries:     desc("oncegate_logs_entries", "Entries that are kept."),
		disk:        desc("oncegate_logs_disk_bytes", "Disk that the log takes."),
		failed:      desc("oncegate_logs_failed", "1 when the log cannot be read, so that it refuses all calls."),
		readers:     desc("oncegate_logs_readers", "Readers that are held."),
	}
}

// Describe implements prometheus.Collector.
func (c *LogsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.appends, c.keys, c.windowBytes, c.evicted, c.evictedAge, c.entries, c.disk, c.failed, c.readers} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *LogsCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	infos, err := c.engine.List(ctx, "", 10_000)
	if err != nil {
		return // the engine keeps no logs, or is away
	}
	for i := range infos {
		l := &infos[i]
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{l.Name}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l.Name)
		}
		for _, x := range []struct {
			outcome string
			n       uint64
		}{{"appended", l.Appended}, {"duplicate", l.Duplicates}, {"mismatch", l.Mismatches}, {"gap", l.Gaps}, {"fenced", l.Fenced}, {"refused", l.Refused}} {
			count(c.appends, x.n, x.outcome)
		}
		gauge(c.keys, float64(l.Keys))
		gauge(c.windowBytes, float64(l.WindowBytes))
		count(c.evicted, l.Evicted)
		gauge(c.evictedAge, l.EvictedAge.Seconds())
		gauge(c.entries, float64(l.Last+1-l.First))
		gauge(c.disk, float64(l.DiskBytes))
		failed := 0.0
		if l.Failed != "" {
			failed = 1
		}
		gauge(c.failed, failed)
		gauge(c.readers, float64(l.Readers))
	}
}
