package server

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// submit handles POST /v1/jobs.
func (h *jobHandlers) submit(r *httpd.Request, w *httpd.Response) error {
	s, err := parseSubmission(r.Body)
	if err != nil {
		return err
	}
	s.Owner = r.Owner()
	call, err := submission(r)
	if err != nil {
		return err
	}
	span := produce(r, &s, false)
	p, err := h.queue.Prepare(s)
	var a submit.Answer
	if err == nil {
		a, err = h.submitter.Job(calling(r), &call, p)
	}
	span.end(a.Outcome, err)
	return submitted(w, a, err)
}

// submissions is how submissions are answered.
var submissions = submit.Encoder{Problem: ProblemOf, Sent: sent, Batch: batched, Outcome: func(out *jobs.Outcome, whole bool) (status int, body []byte) {
	if status = 200; out.Created() {
		status = 202
	}
	j := &out.Job
	if !whole {
		return status, schema.Append(nil, &schema.JobOfAnother{
			ID: j.ID, Function: j.Function, State: stateOf(j), Deduplicated: out.Deduplicated, Existing: out.Existing,
		})
	}
	s := jobOf(j, formSubmitted)
	s.Deduplicated, s.Existing = out.Deduplicated, out.Existing
	return status, schema.Append(nil, &s)
}}

// submitted answers a submission.
func submitted(w *httpd.Response, a submit.Answer, err error) error {
	if err != nil {
		return err
	}
	w.Status, w.ContentType = a.Status, a.ContentType
	w.Body = append(w.Body[:0], a.Body...)
	if a.Replayed {
		w.SetHeader(api.HeaderReplayed, "true")
	}
	return nil
}

// submission is what identifies a request that submits.
func submission(r *httpd.Request) (submit.Call, error) {
	key, err := idempotencyKey(r)
	credentials := r.Header("authorization")
	if owner := r.CertificateOwner(); owner != "" {
		credentials += "\x00" + owner
	}
	return submit.Call{Key: key, Credentials: credentials, Owner: r.Owner(), ReadsAll: r.May(readers), Body: r.Body}, err
}

// batchItem is one submission of a batch as it came.
type batchItem struct {
	submission jobs.Submission
	key        string // "" without one
	body       []byte
	err        error // what is wrong with this item
}

// parseBatch reads {"items": [...]}, each item a submission that may have an idempotency_key. What is wrong with an
// item is that item's err. The error concerns the whole batch.
func parseBatch(b []byte) (items []batchItem, err error) {
	if len(b) > jobs.MaxBatchBytes {
		return nil, batchTooLarge(strconv.Itoa(jobs.MaxBatchBytes) + " bytes")
	}
	var in schema.Submissions
	if err := schema.Parse(b, &in); err != nil {
		return nil, err
	}
	switch n := len(in.Items); {
	case n == 0:
		return nil, &api.FieldError{Field: "items", Allowed: "must be an array of 1 to 128 submissions"}
	case n > jobs.MaxBatch:
		return nil, batchTooLarge(strconv.Itoa(jobs.MaxBatch) + " items")
	}
	for _, item := range in.Items {
		items = append(items, parseBatchItem(item))
	}
	return items, nil
}

func parseBatchItem(body []byte) batchItem {
	it := batchItem{body: body}
	var in schema.Submission
	it.err = within("item", schema.Parse(body, &in))
	var empty *schema.EmptyError
	if in.IdempotencyKey != "" || errors.As(it.err, &empty) && empty.Field == "idempotency_key" {
		it.key = in.IdempotencyKey
		it.err = cmp.Or(api.ValidateKey(it.key), it.err)
	}
	if it.err == nil {
		it.submission, it.err = submissionOf(&in)
	}
	return it
}

func batchTooLarge(most string) error {
	return &httpd.Refusal{P: api.Problem{
		Status: 413, Code: api.CodeTooLarge, Title: "Too large", Detail: "a batch has at most " + most + "; nothing of it was done",
	}}
}

// submitMany handles POST /v1/jobs/batch.
func (h *jobHandlers) submitMany(r *httpd.Request, w *httpd.Response) error {
	in, err := parseBatch(r.Body)
	if err != nil {
		return err
	}
	all, err := submission(r) // what the items have in common
	if err != nil {
		return err
	}
	items := make([]submit.Item, len(in))
	spans := make([]producer, len(in))
	for i := range in {
		it := &items[i]
		it.Call = all
		it.Key, it.Body = in[i].key, in[i].body
		if it.Key == "" && all.Key != "" {
			it.Key = all.Key + "#" + strconv.Itoa(i)
		}
		in[i].submission.Owner, in[i].submission.Place = r.Owner(), i
		if it.Err = in[i].err; it.Err == nil {
			spans[i] = produce(r, &in[i].submission, true)
			it.Job, it.Err = h.queue.Prepare(in[i].submission)
		}
	}
	h.submitter.Jobs(calling(r), items)
	for i := range spans {
		spans[i].end(items[i].Answer.Outcome, items[i].Err)
	}
	w.JSON(200)
	b := append(w.Body, `{"results":[`...)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendSubmitted(b, r, &items[i])
	}
	w.Body = append(b, `]}`...)
	return nil
}

// appendSubmitted appends the answer to an item: that of the single call with its status, and what its headers say.
func appendSubmitted(dst []byte, r *httpd.Request, it *submit.Item) []byte {
	var more schema.SubmitResult
	body := it.Answer.Body
	if it.Err != nil {
		p := r.Problem(it.Err, nil)
		body, more.RetryAfter = p.AppendJSON(nil), max(p.RetryAfterSeconds, 0)
	} else {
		more.Replayed = it.Answer.Replayed
		if it.Answer.ContentType != api.ContentTypeProblem { // which has its status
			more.Status = it.Answer.Status
		}
	}
	dst = append(dst, body[:len(body)-1]...)
	if more != (schema.SubmitResult{}) {
		dst = append(dst, ',')
	}
	return append(dst, schema.Append(nil, &more)[1:]...)
}

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
