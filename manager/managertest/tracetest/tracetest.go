// Package tracetest is an OTLP collector for tests.
package tracetest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector receives spans by OTLP over HTTP.
type Collector struct {
	URL string

	mu       sync.Mutex
	spans    []*tracev1.Span
	services map[string]bool
	changed  chan struct{}
}

// New starts a collector that ends with the test.
func New(t testing.TB) *Collector {
	c := &Collector{services: map[string]bool{}, changed: make(chan struct{}, 1)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
		var in collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &in) != nil {
			w.WriteHeader(400)
			return
		}
		c.mu.Lock()
		for _, rs := range in.ResourceSpans {
			for _, a := range rs.Resource.GetAttributes() {
				if a.Key == "service.name" {
					c.services[a.Value.GetStringValue()] = true
				}
			}
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Service reports whether spans of a service have come.
func (c *Collector) Service(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.services[name]
}

// Spans returns all spans with a name.
func (c *Collector) Spans(name string) (found []*tracev1.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// Await waits until a span with the name is there for which ok holds. It fails the test after a minute.
func (c *Collector) Await(t testing.TB, name string, ok func(*tracev1.Span) bool) *tracev1.Span {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		for _, s := range c.Spans(name) {
			if ok(s) {
				return s
			}
		}
		select {
		case <-c.changed:
		case <-deadline:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Fatalf("no such span %q among %v", name, c.spans)
			return nil
		}
	}
}

// Attribute is the text of a span's attribute, "" without it.
func Attribute(s *tracev1.Span, name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}
