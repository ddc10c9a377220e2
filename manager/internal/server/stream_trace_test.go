package server

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// The span of a call continues the trace that the call names, also after a wait. A call that names none begins a trace: that of the
// stream would have all calls of days. Each span is linked to the stream's.
func TestStreamCallsHaveSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("")
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Tracer: tracer}}})
	g := s.gate(httpdtest.HTTP2(t))
	const trace, parent = "0123456789abcdef0123456789abcdef", "aaaaaaaaaaaaaaaa"
	named := [][2]string{{"traceparent", "00-" + trace + "-" + parent + "-01"}}
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(api.AppendStreamCall(nil, 2, api.OpReserve, named, reserveOf("k", "b", 30*time.Second)))
	s.Eventually("it waits", func() bool { return s.waiters() == 1 })
	g.n = 2
	g.send(g.call(api.OpCommit, commitOf("k", "a", nil)))
	for range 2 {
		g.reply()
	}
	g.CloseSend()
	g.wantEnd("0")

	var opening sdktrace.ReadOnlySpan
	calls := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		switch {
		case span.Name() == "POST "+api.PathCalls:
			opening = span
		case span.Parent().IsValid():
			calls[span.Name()+" of a client's trace"] = span
		default:
			calls[span.Name()] = span
		}
	}
	if opening == nil || len(calls) != 3 {
		t.Fatalf("opening %v, calls %v", opening, calls)
	}
	for _, name := range []string{"ledger reserve", "ledger commit", "ledger reserve of a client's trace"} {
		span := calls[name]
		if span == nil || len(span.Links()) != 1 || span.Links()[0].SpanContext.SpanID() != opening.SpanContext().SpanID() {
			t.Fatalf("%s: %v", name, span)
		}
		own := span.SpanContext().TraceID()
		if name == "ledger reserve of a client's trace" && (own.String() != trace || span.Parent().SpanID().String() != parent) || own == opening.SpanContext().TraceID() {
			t.Errorf("%s: trace %v, parent %v", name, own, span.Parent().SpanID())
		}
	}
	if calls["ledger commit"].SpanContext().TraceID() == calls["ledger reserve"].SpanContext().TraceID() {
		t.Error("two calls are in one trace")
	}
}
