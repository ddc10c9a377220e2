package httpd

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/api"
)

var w3c propagation.TraceContext

// headers are those of a request, or of one of the calls that it brings, for the propagator.
type headers func(name string) string

func (h headers) Get(name string) string { return h(name) }
func (h headers) Set(string, string)     {}
func (h headers) Keys() []string         { return nil }

// remoteSpan returns ctx with the span that a traceparent names. Without one, or with one that is malformed, it returns
// ctx.
func remoteSpan(ctx context.Context, header func(name string) string) context.Context {
	if header("traceparent") == "" {
		return ctx
	}
	return w3c.Extract(ctx, headers(header))
}

// Traced reports whether the request makes spans.
func (r *Request) Traced() bool { return r.span != nil }

// SpanOf returns the span that a traceparent names. It is not valid if the traceparent is not.
func SpanOf(traceparent string) trace.SpanContext {
	return trace.SpanContextFromContext(parentOf([]api.Header{{Name: "traceparent", Value: traceparent}}))
}

// Traceparent names a span. It is the inverse of SpanOf.
func Traceparent(span trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier["traceparent"]
}

// startSpan begins the span of a request. Requests for health make none. The attribute url.path is the route's: a path may
// have a key in it, which may be a secret.
func (s *Server) startSpan(e *endpoint, r *Request) {
	if s.opts.Tracer == nil || e.Exempt {
		return
	}
	_, r.span = s.opts.Tracer.Start(remoteSpan(context.Background(), r.Header), e.Method+" "+e.Path, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("http.route", e.Path), attribute.String("url.path", e.Path),
		attribute.String("url.scheme", r.source.scheme()),
	))
}

// traced returns ctx with the span of the request.
func (r *Request) traced(ctx context.Context) context.Context {
	if r.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, r.span)
}

// endSpan ends the span of a request, if it has one, with the status of its answer.
func (r *Request) endSpan(status int) {
	if r.span == nil {
		return
	}
	r.span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= 500 {
		r.span.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
		r.span.SetStatus(codes.Error, "")
	}
	r.span.End()
}

// StartSpan begins a span of a part of the request, which the caller must end. It may be called only if Traced.
func (r *Request) StartSpan(name string, opts ...trace.SpanStartOption) trace.Span {
	_, span := r.server.opts.Tracer.Start(r.traced(context.Background()), name, opts...)
	return span
}

// Span makes a span of a part of the request, which took from start until now.
func (r *Request) Span(name string, start time.Time, failed bool, attributes ...attribute.KeyValue) {
	if r.span != nil {
		r.record(r.traced(context.Background()), name, failed, trace.WithTimestamp(start), trace.WithAttributes(attributes...))
	}
}

// CallSpan is Request.Span for a call on a stream. The call's own headers name the parent, and the span is linked to that
// of the stream. A call that names no parent begins a trace, because a stream may last for days.
func (st *Stream) CallSpan(name string, start time.Time, call []api.Header, failed bool, attributes ...attribute.KeyValue) {
	if r := st.request; r.span != nil {
		r.record(parentOf(call), name, failed, trace.WithTimestamp(start), trace.WithAttributes(attributes...),
			trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(trace.Link{SpanContext: r.span.SpanContext()}))
	}
}

// parentOf returns a context with the span that a call's headers name.
func parentOf(call []api.Header) context.Context {
	return remoteSpan(context.Background(), func(name string) string {
		value, _ := headerOf(call, name)
		return value
	})
}

func (r *Request) record(parent context.Context, name string, failed bool, opts ...trace.SpanStartOption) {
	_, span := r.server.opts.Tracer.Start(parent, name, opts...)
	if failed {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
