package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncegate/oncegate/hostsim"
)

// counters are the gateway's own metrics.
type counters struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	upstream *prometheus.CounterVec
}

func newCounters(inFlight func() int) *counters {
	c := &counters{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_requests_total",
			Help: "Requests by status code; code 0 was cut without a complete answer.",
		}, []string{"code"}),
		upstream: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_upstream_calls_total",
			Help: "Requests that the filter let go to upstream, by how they ended.",
		}, []string{"result"}),
	}
	c.registry.MustRegister(c.requests, c.upstream, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gateway_requests_in_flight",
		Help: "Requests being served.",
	}, func() float64 { return float64(inFlight()) }))
	return c
}

// RequestDone implements proxy.Observer.
func (c *counters) RequestDone(status int) {
	c.requests.WithLabelValues(strconv.Itoa(status)).Inc()
}

// UpstreamDone implements proxy.Observer.
func (c *counters) UpstreamDone(result string) { c.upstream.WithLabelValues(result).Inc() }

// sharedData is the answer of /shared_data.
type sharedData struct {
	Keys  int                        `json:"keys"`
	Bytes int                        `json:"bytes"`
	VMIDs map[string]sharedDataOfVMs `json:"vm_ids"`
}

type sharedDataOfVMs struct {
	Keys  int `json:"keys"`
	Bytes int `json:"bytes"`
}

// adminHandler serves the admin listener.
func adminHandler(host *hostsim.Host, vmID string, c *counters, ready *atomic.Bool) http.Handler {
	own := promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{DisableCompression: true})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		if err := host.WritePrometheus(&b); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		// Both parts must have the same format, whatever the scraper prefers.
		r.Header.Set("Accept", "text/plain;version=0.0.4")
		rec := &appendBody{header: w.Header(), b: &b}
		own.ServeHTTP(rec, r)
		if rec.status >= 400 {
			w.WriteHeader(rec.status)
		}
		_, _ = w.Write(b.Bytes()) // the scraper may have disconnected
	})
	mux.HandleFunc("GET /shared_data", func(w http.ResponseWriter, _ *http.Request) {
		keys, size := host.SharedDataSize()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(sharedData{
			Keys: keys, Bytes: size,
			VMIDs: map[string]sharedDataOfVMs{vmID: {keys, size}},
		})
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return mux
}

// appendBody appends a handler's body to what was written before.
type appendBody struct {
	header http.Header
	b      *bytes.Buffer
	status int
}

func (a *appendBody) Header() http.Header         { return a.header }
func (a *appendBody) WriteHeader(status int)      { a.status = status }
func (a *appendBody) Write(p []byte) (int, error) { return a.b.Write(p) }
