package server

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// Spans of jobs, by the semantic conventions for messaging. Each submission has the span of a producer, whose context
// the job keeps. Each delivery has the span of a consumer, and so has the end of an attempt; they are linked to the
// producer's. A span names the function and the job, and neither key, payload, result nor error.

// messaging are the attributes that the spans of jobs have in common.
func messaging(operation, kind, function string) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 8), attribute.String("messaging.system", "oncegate"), attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", kind), attribute.String("messaging.destination.name", function))
}

// producer is the span of a submission; the zero producer makes none.
type producer struct{ span trace.Span }

// produce begins the span of a submission and names it in the job. Without spans the job gets the traceparent of the
// request. batch: the submission is one of several.
func produce(r *httpd.Request, s *jobs.Submission, batch bool) (p producer) {
	if !r.Traced() {
		s.Traceparent = jobs.Traceparent(r.Header("traceparent"))
		return p
	}
	kind := "send"
	if batch {
		kind = "create"
	}
	p.span = r.StartSpan("submit "+httpd.Clip(s.Function), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(messaging("submit", kind, httpd.Clip(s.Function))...))
	s.Traceparent = httpd.Traceparent(p.span.SpanContext())
	return p
}

// end ends the span. out is what the queue did; nil: nothing, because of err or because the answer is a recorded one.
func (p *producer) end(out *jobs.Outcome, err error) {
	if p.span == nil {
		return
	}
	how := "replayed"
	if out != nil {
		if out.Job.ID != "" { // an event may make many jobs
			p.span.SetAttributes(attribute.String("messaging.message.id", out.Job.ID))
		}
		switch {
		case out.Deduplicated:
			how = "deduplicated"
		case out.Existing:
			how = "existing"
		default:
			how = "created"
		}
	}
	if err != nil {
		p.span.SetAttributes(attribute.String("error.type", string(ProblemOf(err).Code)))
	} else {
		p.span.SetAttributes(attribute.String("oncegate.submission.outcome", how))
	}
	if failed(err) {
		p.span.SetStatus(codes.Error, "")
	}
	p.span.End()
}

// consume makes a span of an attempt, linked to that of the submission.
func consume(r *httpd.Request, operation, kind string, j *jobs.Job, begin, end time.Time, bad bool, more ...attribute.KeyValue) {
	all := append(messaging(operation, kind, j.Function), attribute.String("messaging.message.id", j.ID), attribute.Int("oncegate.job.attempt", j.Attempt))
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(begin), trace.WithAttributes(append(all, more...)...)}
	if from := httpd.SpanOf(j.Traceparent); from.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	span := r.StartSpan(operation+" "+j.Function, opts...)
	if bad {
		span.SetStatus(codes.Error, "")
	}
	if end.Before(begin) { // the clocks of store and manager differ
		end = begin
	}
	span.End(trace.WithTimestamp(end))
}

// claimSpans makes a span of each delivery.
func claimSpans(r *httpd.Request, got []jobs.Job, start time.Time) {
	if !r.Traced() {
		return
	}
	now := time.Now()
	for i := range got {
		consume(r, "claim", "receive", &got[i], start, now, false, attribute.String("messaging.client.id", got[i].Lease.Worker))
	}
}

// attemptSpan makes the span of an attempt that a worker ended, from its delivery on. A repeated call makes one more.
func attemptSpan(r *httpd.Request, j *jobs.Job, handedBack bool) {
	if !r.Traced() {
		return
	}
	end := j.FinishedAt
	if end.IsZero() {
		end = time.Now()
	}
	consume(r, "process", "process", j, j.StartedAt, end, handedBack || j.State == jobs.Failed, attribute.String("oncegate.job.state", j.State.String()))
}
