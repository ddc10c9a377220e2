package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// LedgerCollector exports a ledger's Stats.
type LedgerCollector struct {
	stats func() (ledger.Stats, error)

	calls, entries, bytes, maxEntries, maxBytes, bare, waiters, fenced, lapsed, removed, waits, sweepErrors, batches, batchItems *prometheus.Desc
}

// NewLedgerCollector returns a collector; stats is called with each scrape and
// must be bounded in time.
func NewLedgerCollector(stats func() (ledger.Stats, error)) *LedgerCollector {
	return &LedgerCollector{
		stats:       stats,
		calls:       prometheus.NewDesc("oncegate_ledger_calls_total", "Ledger calls by operation and outcome.", []string{"op", "outcome"}, nil),
		entries:     prometheus.NewDesc("oncegate_ledger_entries", "Entries by state.", []string{"state"}, nil),
		bytes:       prometheus.NewDesc("oncegate_ledger_bytes", "What the entries take of oncegate_ledger_max_bytes.", nil, nil),
		maxEntries:  prometheus.NewDesc("oncegate_ledger_max_entries", "Entries that the window holds.", nil, nil),
		maxBytes:    prometheus.NewDesc("oncegate_ledger_max_bytes", "Bytes that the window holds.", nil, nil),
		bare:        prometheus.NewDesc("oncegate_ledger_answers_dropped_total", "Outcomes recorded without their answer, for want of room.", nil, nil),
		waiters:     prometheus.NewDesc("oncegate_ledger_waiters", "Reserves that wait now.", nil, nil),
		fenced:      prometheus.NewDesc("oncegate_ledger_fenced_total", "Calls refused because another attempt has the key, by operation.", []string{"op"}, nil),
		lapsed:      prometheus.NewDesc("oncegate_ledger_lapsed_total", "Reservations that ran out without an outcome and were stored as unknown.", nil, nil),
		removed:     prometheus.NewDesc("oncegate_ledger_removed_total", "Entries removed, by reason.", []string{"reason"}, nil),
		waits:       prometheus.NewDesc("oncegate_ledger_waits_unanswered_total", "Reserves that waited without a result or could not wait, by reason.", []string{"reason"}, nil),
		sweepErrors: prometheus.NewDesc("oncegate_ledger_sweep_errors_total", "Sweeps that the store cut short.", nil, nil),
		batches:     prometheus.NewDesc("oncegate_ledger_batches_total", "Groups of calls that came together on a stream.", nil, nil),
		batchItems:  prometheus.NewDesc("oncegate_ledger_batch_items_total", "Calls in these groups.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *LedgerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.calls, c.entries, c.bytes, c.maxEntries, c.maxBytes, c.bare, c.waiters, c.fenced, c.lapsed, c.removed, c.waits, c.sweepErrors, c.batches, c.batchItems} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *LedgerCollector) Collect(ch chan<- prometheus.Metric) {
	s, err := c.stats()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.entries, err)
		return
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	s.Each(func(op, outcome string, n uint64) { counter(c.calls, n, op, outcome) })
	gauge(c.entries, int64(s.Pending), "pending")
	gauge(c.entries, int64(s.Committed), "committed")
	gauge(c.entries, int64(s.Rejected), "rejected")
	gauge(c.entries, int64(s.Unknown), "unknown")
	if s.Bytes >= 0 {
		gauge(c.bytes, s.Bytes)
		gauge(c.maxBytes, s.MaxBytes)
	}
	gauge(c.maxEntries, int64(s.MaxEntries))
	counter(c.bare, s.WithoutAnswer)
	gauge(c.waiters, int64(s.Waiters))
	s.EachFenced(func(op string, n uint64) { counter(c.fenced, n, op) })
	counter(c.lapsed, s.Lapsed)
	counter(c.removed, s.Expired, "expired")
	counter(c.removed, s.Deleted, "deleted")
	counter(c.waits, s.WaitsRefused, "refused")
	counter(c.waits, s.WaitsTimedOut, "timed_out")
	counter(c.sweepErrors, s.SweepErrors)
	counter(c.batches, s.Batches)
	counter(c.batchItems, s.BatchItems)
}
