package httpd

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// metrics of the HTTP side. Series of a route are made once, so that a request
// looks nothing up.
type metrics struct {
	requests      *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	shed          prometheus.Counter
	refused       prometheus.Counter
	unauthorized  prometheus.Counter
	forbidden     prometheus.Counter
	bodiesRefused prometheus.Counter
	streamEnds    *prometheus.CounterVec
	unmatched     *routeMetrics
}

type routeMetrics struct {
	classes [6]prometheus.Counter // by first digit of the status
	seconds prometheus.Observer
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests: counters("oncegate_http_requests_total", "Requests answered, by route and status class.", "route", "class"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "oncegate_http_request_duration_seconds", Help: "Time from a complete request to its answer, waiting included.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"route"}),
		shed:          counter("oncegate_http_shed_total", "Requests answered 503 because too many were at work."),
		refused:       counter("oncegate_http_connections_refused_total", "Connections closed because too many were open."),
		unauthorized:  counter("oncegate_http_unauthorized_total", "Requests answered 401."),
		forbidden:     counter("oncegate_http_forbidden_total", "Requests whose credentials have none of the roles of the call."),
		bodiesRefused: counter("oncegate_http_bodies_refused_total", "Requests answered 503 because the bodies of others took all memory that there is for bodies."),
		streamEnds:    counters("oncegate_streams_ended_total", "Streams of gates that ended, by gRPC status.", "status"),
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

// observe counts an answer. A span that is sampled becomes the exemplar of its time.
func (r *routeMetrics) observe(status int, d time.Duration, span trace.Span) {
	class := status / 100
	if class < 1 || class > 5 {
		class = 0
	}
	r.classes[class].Inc()
	if span != nil && span.SpanContext().IsSampled() {
		if e, ok := r.seconds.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": span.SpanContext().TraceID().String(), "span_id": span.SpanContext().SpanID().String()})
			return
		}
	}
	r.seconds.Observe(d.Seconds())
}

// Collectors are the server's metrics for a registry.
func (s *Server) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{
		m.requests, m.seconds, m.shed, m.refused, m.unauthorized, m.forbidden, m.bodiesRefused, m.streamEnds,
		scrape.New(func(to scrape.Sample) error {
			scrape.Set(to, "oncegate_streams_open", s.streams.open.Load())
			scrape.Set(to, "oncegate_stream_unsent_bytes", s.streams.unsent.Load())
			scrape.Set(to, "oncegate_http_body_bytes", s.bodies.bytes())
			scrape.Set(to, "oncegate_http_requests_in_flight", s.load.busy.Load())
			scrape.Set(to, "oncegate_http_requests_held", s.load.held.Load())
			scrape.Set(to, "oncegate_ready", map[bool]int{true: 1}[s.NotReady() == ""])
			return nil
		},
			scrape.Describe("oncegate_streams_open", "Streams of gates that are open right now."),
			scrape.Describe("oncegate_stream_unsent_bytes", "Bytes of replies that the clients of streams have not taken yet."),
			scrape.Describe("oncegate_http_body_bytes", "Memory of the bodies of requests that arrive or are at work right now."),
			scrape.Describe("oncegate_http_requests_in_flight", "Requests at work right now, held ones apart."),
			scrape.Describe("oncegate_http_requests_held", "Requests held right now."),
			scrape.Describe("oncegate_ready", "1 while the manager wants traffic, as /readyz says."),
		),
	}
}
