// Package scrape makes collectors of metrics whose values are read at each scrape.
package scrape

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector implements prometheus.Collector.
type Collector struct {
	read  func(Sample) error
	first *prometheus.Desc
	descs map[string]*prometheus.Desc
}

// Metric describes a metric of a Collector.
type Metric struct {
	name string
	desc *prometheus.Desc
}

// Describe describes a metric: a counter if its name ends with _total, and else a gauge.
func Describe(name, help string, labels ...string) Metric {
	return Metric{name, prometheus.NewDesc(name, help, labels, nil)}
}

// scrapeTime bounds a scrape.
const scrapeTime = 5 * time.Second

// New returns a collector of some metrics, at least one. Each scrape calls read. Its error makes the scrape report that
// the first metric failed.
func New(read func(Sample) error, metrics ...Metric) *Collector {
	s := &Collector{read: read, first: metrics[0].desc, descs: make(map[string]*prometheus.Desc)}
	for _, m := range metrics {
		s.descs[m.name] = m.desc
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	if err := s.read(Sample{ctx, s.descs, ch}); err != nil {
		ch <- prometheus.NewInvalidMetric(s.first, err)
	}
}

// Sample takes the values of one scrape. Context bounds it in time.
type Sample struct {
	Context context.Context

	descs map[string]*prometheus.Desc
	ch    chan<- prometheus.Metric
}

// Set exports the value of a metric with some values of its labels. It panics if the Collector has no such metric.
func Set[N int | int64 | uint64 | float64](s Sample, name string, v N, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	s.ch <- prometheus.MustNewConstMetric(s.descs[name], kind, float64(v), labels...)
}
