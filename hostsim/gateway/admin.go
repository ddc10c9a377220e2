package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/oncegate/oncegate/hostsim"
)

// counters are the gateway's own metrics.
type counters struct {
	inFlight func() int

	mu       sync.Mutex
	requests map[int]uint64
	upstream map[string]uint64
}

func newCounters(inFlight func() int) *counters {
	return &counters{inFlight: inFlight, requests: map[int]uint64{}, upstream: map[string]uint64{}}
}

// RequestDone implements proxy.Observer.
func (c *counters) RequestDone(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[status]++
}

// UpstreamDone implements proxy.Observer.
func (c *counters) UpstreamDone(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upstream[result]++
}

// write writes the metrics in the Prometheus text format.
func (c *counters) write(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	writeCounter(w, "gateway_requests_total", "Requests by status code; code 0 was cut without a complete answer.", "code", c.requests)
	writeCounter(w, "gateway_upstream_calls_total", "Requests that the filter let go to upstream, by how they ended.", "result", c.upstream)
	fmt.Fprintf(w, "# HELP %[1]s Requests being served.\n# TYPE %[1]s gauge\n%[1]s %[2]d\n", "gateway_requests_in_flight", c.inFlight())
}

func writeCounter[K cmp.Ordered](w io.Writer, name, help, label string, values map[K]uint64) {
	if len(values) == 0 {
		return
	}
	fmt.Fprintf(w, "# HELP %[1]s %[2]s\n# TYPE %[1]s counter\n", name, help)
	for _, value := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(w, "%s{%s=%q} %d\n", name, label, fmt.Sprint(value), values[value])
	}
}

// adminHandler serves the admin listener.
func adminHandler(host *hostsim.Host, c *counters, ready *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		if err := host.WritePrometheus(&b); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		c.write(&b)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(b.Bytes()) // the scraper may have disconnected
	})
	mux.HandleFunc("GET /shared_data", func(w http.ResponseWriter, _ *http.Request) {
		keys, size := host.SharedDataSize()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, "{\"keys\":%d,\"bytes\":%d}\n", keys, size)
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
