package e2e

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	manager "github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/tracetest"
)

// The trace that a client names goes through Envoy and the gate to the manager's spans.
func TestTraceReachesTheManager(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		collector := tracetest.New(t)
		upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(upstream.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: upstream.Listener.Addr().String()}
		s.environment = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=20"}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		const trace = "0123456789abcdef0123456789abcdef"
		c := pay("k", "traceparent", "00-"+trace+"-0123456789abcdef-01")
		send(t, s.proxies[0], c)
		for _, name := range []string{"ledger reserve", "ledger commit"} {
			collector.Await(t, name, func(s *tracev1.Span) bool { return hex.EncodeToString(s.TraceId) == trace })
		}
	})
}

// The trace continues through a job: the worker of a job that was submitted through the gate gets it, and the spans of the
// consumer are linked to that of the producer.
func TestTraceReachesTheWorker(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		collector := tracetest.New(t)
		s := submissionStack(t, target, mode, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_BSP_SCHEDULE_DELAY=20")
		const trace = "0123456789abcdef0123456789abcdef"
		c := submit(newKey(), "hello")
		c.headers = map[string]string{"traceparent": "00-" + trace + "-0123456789abcdef-01"}
		wantFirst(t, s.proxies[0], c, http.StatusAccepted)
		got, err := jobsClient(t, s.managerAddr).Claim(t.Context(), manager.ClaimRequest{Worker: "w", Functions: []string{"echo"}, Wait: time.Minute})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		producer := collector.Await(t, "submit echo", func(s *tracev1.Span) bool { return hex.EncodeToString(s.TraceId) == trace })
		if want := "00-" + trace + "-" + hex.EncodeToString(producer.SpanId) + "-01"; got[0].Traceparent != want {
			t.Errorf("the worker gets %q, want %q", got[0].Traceparent, want)
		}
		collector.Await(t, "claim echo", func(s *tracev1.Span) bool {
			return len(s.Links) == 1 && bytes.Equal(s.Links[0].TraceId, producer.TraceId) && bytes.Equal(s.Links[0].SpanId, producer.SpanId)
		})
	})
}
