package server

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// metrics of the HTTP side. Series of a route are made once, so that a request
// looks nothing up.
type metrics struct {
	requests     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	shed         prometheus.Counter
	refused      prometheus.Counter
	unauthorized prometheus.Counter
	strays       prometheus.Counter
	unmatched    *routeMetrics
}

type routeMetrics struct {
	classes [6]prometheus.Counter // by first digit of the status
	seconds prometheus.Observer
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oncegate_http_requests_total", Help: "Requests answered, by route and status class.",
		}, []string{"route", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "oncegate_http_request_seconds", Help: "Time from a complete request to its answer, waiting included.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"route"}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oncegate_http_shed_total", Help: "Requests answered 503 because too many were at work.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oncegate_http_connections_refused_total", Help: "Connections closed because too many were open.",
		}),
		unauthorized: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oncegate_http_unauthorized_total", Help: "Requests answered 401.",
		}),
		strays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oncegate_http_wrong_shard_total", Help: "Requests answered 421 because they meant another shard: something is wired wrongly.",
		}),
	}
	m.unmatched = m.route("", "unmatched")
	return m
}

func (m *metrics) route(method, path string) *routeMetrics {
	name := strings.TrimSpace(method + " " + path)
	r := &routeMetrics{seconds: m.seconds.WithLabelValues(name)}
	for class, label := range []string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		r.classes[class] = m.requests.WithLabelValues(name, label)
	}
	return r
}

func (r *routeMetrics) observe(status int, d time.Duration) {
	class := status / 100
	if class < 1 || class > 5 {
		class = 0
	}
	r.classes[class].Inc()
	r.seconds.Observe(d.Seconds())
}

// Collectors are the server's metrics for a registry.
func (s *Server) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{
		m.requests, m.seconds, m.shed, m.refused, m.unauthorized, m.strays,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "oncegate_http_in_flight", Help: "Requests at work right now, held ones apart.",
		}, func() float64 { return float64(s.load.busy.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "oncegate_http_held", Help: "Requests held right now.",
		}, func() float64 { return float64(s.load.held.Load()) }),
	}
}

// LedgerCollector exports a ledger's Stats.
type LedgerCollector struct {
	stats func() (ledger.Stats, error)

	calls, entries, bytes, maxEntries, maxBytes, evictedAge, bare, waiters, fenced, lapsed, removed, waits, sweepErrors, batches, batchItems *prometheus.Desc
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
		evictedAge:  prometheus.NewDesc("oncegate_ledger_evicted_age_seconds", "Age of the entry that was evicted last, before its time; 0 before there was one.", nil, nil),
		bare:        prometheus.NewDesc("oncegate_ledger_answers_dropped_total", "Outcomes recorded without their answer, for want of room.", nil, nil),
		waiters:     prometheus.NewDesc("oncegate_ledger_waiters", "Reserves held right now.", nil, nil),
		fenced:      prometheus.NewDesc("oncegate_ledger_fenced_total", "Calls refused because their token was superseded.", nil, nil),
		lapsed:      prometheus.NewDesc("oncegate_ledger_lapsed_total", "Reservations that ran out without an outcome and were stored as unknown.", nil, nil),
		removed:     prometheus.NewDesc("oncegate_ledger_removed_total", "Entries removed, by reason.", []string{"reason"}, nil),
		waits:       prometheus.NewDesc("oncegate_ledger_waits_in_vain_total", "Reserves that waited for nothing or could not wait, by reason.", []string{"reason"}, nil),
		sweepErrors: prometheus.NewDesc("oncegate_ledger_sweep_errors_total", "Sweeps that the store cut short.", nil, nil),
		batches:     prometheus.NewDesc("oncegate_ledger_batches_total", "Batches of calls.", nil, nil),
		batchItems:  prometheus.NewDesc("oncegate_ledger_batch_items_total", "Calls that came in batches.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *LedgerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.calls, c.entries, c.bytes, c.maxEntries, c.maxBytes, c.evictedAge, c.bare, c.waiters, c.fenced, c.lapsed, c.removed, c.waits, c.sweepErrors, c.batches, c.batchItems} {
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
	ch <- prometheus.MustNewConstMetric(c.evictedAge, prometheus.GaugeValue, s.EvictedAge.Seconds())
	counter(c.bare, s.Bare)
	gauge(c.waiters, int64(s.Waiters))
	counter(c.fenced, s.Fenced())
	counter(c.lapsed, s.Lapsed)
	counter(c.removed, s.Expired, "expired")
	counter(c.removed, s.Evicted, "capacity")
	counter(c.removed, s.Deleted, "deleted")
	counter(c.waits, s.WaitsRefused, "refused")
	counter(c.waits, s.WaitsTimedOut, "timed_out")
	counter(c.sweepErrors, s.SweepErrors)
	counter(c.batches, s.Batches)
	counter(c.batchItems, s.BatchItems)
}
