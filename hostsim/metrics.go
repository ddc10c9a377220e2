package hostsim

import (
	"bufio"
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// histogramBounds are the upper bounds of Envoy's default histogram buckets.
var histogramBounds = [...]float64{0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 600000, 1800000, 3600000}

// metric is one stat. Counters, gauges and histograms of one name are different
// stats, as in Envoy.
type metric struct {
	kind  MetricType
	name  string
	value atomic.Uint64 // counter, gauge (two's complement)

	mu      sync.Mutex
	buckets [len(histogramBounds) + 1]uint64
	sum     float64
	count   uint64
}

func (m *metric) record(v uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := 0
	for i < len(histogramBounds) && float64(v) > histogramBounds[i] {
		i++
	}
	m.buckets[i]++
	m.count++
	m.sum += float64(v)
}

type metricKey struct {
	kind MetricType
	name string
}

// metrics are the process-wide stats. All VMs that define a name share its stat.
type metrics struct {
	mu     sync.Mutex
	byName map[metricKey]*metric
}

func newMetrics() *metrics { return &metrics{byName: make(map[metricKey]*metric)} }

func (s *metrics) define(kind MetricType, name string) *metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := metricKey{kind, name}
	m := s.byName[key]
	if m == nil {
		m = &metric{kind: kind, name: name}
		s.byName[key] = m
	}
	return m
}

func (s *metrics) sorted() []*metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *metric) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.kind, b.kind))
	})
}

// prometheusName returns a custom metric's name as Envoy's Prometheus endpoint prints it: every byte outside
// [a-zA-Z0-9_] becomes "_". A name that is empty or starts with a digit is not printed (ok is false).
func prometheusName(name string) (string, bool) {
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return "", false
	}
	b := []byte(name)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_') {
			b[i] = '_'
		}
	}
	return string(b), true
}

// writePrometheus writes all stats in the text exposition format. If two stats have the same sanitized name and type,
// their samples follow each other, as in Envoy.
func (s *metrics) writePrometheus(w io.Writer) error {
	bw := bufio.NewWriter(w)
	typeNames := [...]string{"counter", "gauge", "histogram"}
	lastType := ""
	for _, m := range s.sorted() {
		name, ok := prometheusName(m.name)
		if !ok {
			continue
		}
		if t := "# TYPE " + name + " " + typeNames[m.kind] + "\n"; t != lastType {
			bw.WriteString(t)
			lastType = t
		}
		switch m.kind {
		case MetricCounter, MetricGauge:
			bw.WriteString(name + "{} " + strconv.FormatUint(m.value.Load(), 10) + "\n")
		case MetricHistogram:
			m.writeHistogram(bw, name)
		}
	}
	return bw.Flush()
}

func (m *metric) writeHistogram(bw *bufio.Writer, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := uint64(0)
	for i, bound := range histogramBounds {
		total += m.buckets[i]
		bw.WriteString(name + `_bucket{le="` + strconv.FormatFloat(bound, 'f', -1, 64) + `"} ` + strconv.FormatUint(total, 10) + "\n")
	}
	bw.WriteString(name + `_bucket{le="+Inf"} ` + strconv.FormatUint(m.count, 10) + "\n")
	bw.WriteString(name + "_sum{} " + strconv.FormatFloat(m.sum, 'f', -1, 64) + "\n")
	bw.WriteString(name + "_count{} " + strconv.FormatUint(m.count, 10) + "\n")
}

// vmMetrics are the metric ids of one VM. Ids have the type in their low two bits and grow by four per type. They are
// valid only in that VM.
type vmMetrics struct {
	byID map[uint32]*metric
	next [3]uint32
}

func newVMMetrics() vmMetrics {
	return vmMetrics{byID: make(map[uint32]*metric), next: [3]uint32{0, 1, 2}}
}

func (v *vmMetrics) define(s *metrics, kind MetricType, name string) (uint32, Status) {
	if kind > MetricHistogram {
		return 0, StatusBadArgument
	}
	if len(v.byID) >= metricsPerVM || len(name) > nameLimit {
		return 0, StatusInternalFailure
	}
	v.next[kind] += 4
	id := v.next[kind]
	v.byID[id] = s.define(kind, name)
	return id, StatusOK
}

// increment: a counter accepts only positive offsets (0 is BadArgument), a gauge any, a histogram none.
func (v *vmMetrics) increment(id uint32, offset int64) Status {
	kind := MetricType(id & 3)
	if kind > MetricGauge {
		return StatusBadArgument
	}
	m := v.byID[id]
	if m == nil {
		return StatusNotFound
	}
	if kind == MetricCounter && offset <= 0 {
		return StatusBadArgument
	}
	m.value.Add(uint64(offset))
	return StatusOK
}

// record adds to a counter, sets a gauge, or adds a sample to a histogram.
func (v *vmMetrics) record(id uint32, value uint64) Status {
	m := v.byID[id]
	if m == nil {
		return StatusNotFound
	}
	switch m.kind {
	case MetricCounter:
		m.value.Add(value)
	case MetricGauge:
		m.value.Store(value)
	case MetricHistogram:
		m.record(value)
	}
	return StatusOK
}

// get reads a counter or gauge; a histogram cannot be read.
func (v *vmMetrics) get(id uint32) (uint64, Status) {
	if MetricType(id&3) > MetricGauge {
		return 0, StatusBadArgument
	}
	m := v.byID[id]
	if m == nil {
		return 0, StatusNotFound
	}
	return m.value.Load(), StatusOK
}

// Metric is one stat of the filter.
type Metric struct {
	Type MetricType
	Name string
	// Value of a counter or gauge; the number of samples of a histogram.
	Value uint64
	// Sum of a histogram's samples.
	Sum float64
}

func (s *metrics) snapshot() []Metric {
	var out []Metric
	for _, m := range s.sorted() {
		r := Metric{Type: m.kind, Name: m.name, Value: m.value.Load()}
		if m.kind == MetricHistogram {
			m.mu.Lock()
			r.Value, r.Sum = m.count, m.sum
			m.mu.Unlock()
		}
		out = append(out, r)
	}
	return out
}

// int64Bytes is the serialized form of an integer property.
func int64Bytes(v uint64) []byte {
	return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)}
}
