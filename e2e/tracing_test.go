package e2e

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/oncegate/oncegate/manager/managertest/tracetest"
)

// The trace that a client names goes through Envoy and the gate to the manager's spans.
func TestTraceReachesTheManager(t *testing.T) {
	eachMode(t, func(t *testing.T, target Target, mode string) {
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
