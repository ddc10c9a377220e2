package ship

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the Prometheus metrics of a Shipper.
type Metrics struct {
	shipper                   *Shipper
	term                      atomic.Uint64
	objects, bytes, errors    atomic.Uint64
	gaps                      atomic.Uint64
	dLease, dLag, dRecords    *prometheus.Desc
	dFailing                  *prometheus.Desc
	dObjects, dBytes, dErrors *prometheus.Desc
	dGaps                     *prometheus.Desc
}

func newMetrics(s *Shipper) *Metrics {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("oncegate_ship_"+name, help, nil, nil)
	}
	return &Metrics{
		shipper:  s,
		dLease:   d("lease_term", "Term of the shipping lease that this manager holds; 0 while it holds none and ships nothing."),
		dLag:     d("lag_seconds", "For how long the oldest durable record that is not shipped has waited."),
		dRecords: d("lag_records", "Durable records that are not shipped yet."),
		dFailing: d("failing_seconds", "For how long nothing could be shipped; 0 while shipping works."),
		dObjects: d("objects_total", "Objects with records that were written."),
		dBytes:   d("bytes_total", "Bytes of the objects with records that were written."),
		dErrors:  d("errors_total", "Requests to the object store that failed and were tried again or given up."),
		dGaps:    d("gaps_total", "How often records were not shipped before a snapshot replaced them."),
	}
}

func (m *Metrics) shipped(bytes, objects int) {
	m.bytes.Add(uint64(bytes))
	m.objects.Add(uint64(objects))
}
func (m *Metrics) failed(error)      { m.errors.Add(1) }
func (m *Metrics) gap()              { m.gaps.Add(1) }
func (m *Metrics) lease(term uint64) { m.term.Store(term) }

// Describe is prometheus.Collector's.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.dLease, m.dLag, m.dRecords, m.dFailing, m.dObjects, m.dBytes, m.dErrors, m.dGaps} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	counter := func(d *prometheus.Desc, v *atomic.Uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()))
	}
	now := time.Now()
	gauge(m.dLease, float64(m.term.Load()))
	if st := m.shipper.stream.Load(); st != nil {
		lag, records := st.lag(now)
		gauge(m.dLag, lag.Seconds())
		gauge(m.dRecords, float64(records))
	}
	failing := 0.0
	m.shipper.mu.Lock()
	if since := m.shipper.failsSince(); !since.IsZero() {
		failing = now.Sub(since).Seconds()
	}
	m.shipper.mu.Unlock()
	gauge(m.dFailing, failing)
	counter(m.dObjects, &m.objects)
	counter(m.dBytes, &m.bytes)
	counter(m.dErrors, &m.errors)
	counter(m.dGaps, &m.gaps)
}
