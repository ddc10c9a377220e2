package server

import (
	"encoding/json"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (h *jobHandlers) batchRoutes() []httpd.Route {
	return []httpd.Route{
		{Method: "POST", Path: "/v1/batches", Roles: submitters, Handle: h.submitBatch},
		{Method: "GET", Path: "/v1/batches", Roles: readers, Handle: h.batches},
		{Method: "GET", Path: "/v1/batches/{id}", Roles: submitters | readers, Handle: h.batch},
	}
}

// submitBatch handles POST /v1/batches.
func (h *jobHandlers) submitBatch(r *httpd.Request, w *httpd.Response) error {
	call, err := submission(r)
	if err != nil {
		return err
	}
	p, err := h.parseJobBatch(r)
	if err != nil {
		return err
	}
	a, err := h.submitter.JobBatch(calling(r), &call, p)
	return submitted(w, a, err)
}

func (h *jobHandlers) parseJobBatch(r *httpd.Request) (*jobs.PreparedBatch, error) {
	var in schema.BatchRequest
	if err := schema.Parse(r.Body, &in); err != nil {
		return nil, err
	}
	trace := jobs.Traceparent(r.Header("traceparent"))
	one := func(field string, body json.RawMessage) (s jobs.Submission, err error) {
		if s, err = parseSubmission(body); err != nil {
			return s, inside(field, err)
		}
		s.Traceparent = trace
		return s, nil
	}
	var all []jobs.Submission
	for i, body := range in.Jobs {
		s, err := one("jobs["+strconv.Itoa(i)+"]", body)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	var callback *jobs.Submission
	if in.Callback != nil {
		s, err := one("callback", in.Callback)
		if err != nil {
			return nil, err
		}
		callback = &s
	}
	return h.queue.PrepareBatch(all, callback, r.Owner())
}

// inside says in which member the field of an error is.
func inside(member string, err error) error {
	if fe, ok := err.(*api.FieldError); ok {
		field := member + "." + fe.Field
		if fe.Field == "body" {
			field = member
		}
		return &api.FieldError{Field: field, Value: fe.Value, Allowed: fe.Allowed}
	}
	return err
}

// batched is the answer to a batch.
func batched(b *jobs.Batch, outs []jobs.Outcome) (status int, body []byte) {
	info := batchOf(b)
	for i := range outs {
		info.Jobs = append(info.Jobs, outs[i].Job.ID)
	}
	return 202, schema.Append(nil, &info)
}

func batchOf(b *jobs.Batch) schema.Batch {
	return schema.Batch{
		ID: b.ID, Total: b.Total, Pending: b.Pending, Complete: b.Complete, Failed: b.Failed, Cancelled: b.Cancelled, Expired: b.Expired,
		CreatedAt: b.CreatedAt, FinishedAt: b.FinishedAt, Callback: b.Callback,
	}
}

func (h *jobHandlers) batch(r *httpd.Request, w *httpd.Response) error {
	wait, err := waitOf(r)
	if err != nil {
		return err
	}
	b, err := h.queue.Batch(r.Context(), r.Param(0), 0)
	if err == nil && !r.May(readers) && (r.Owner() == "" || b.Owner != r.Owner()) {
		err = httpd.Forbidden("these credentials did not submit this batch")
	}
	if err == nil && b.Pending > 0 && wait > 0 {
		ctx, stop := r.Hold()
		b, err = h.queue.Batch(ctx, r.Param(0), wait)
		stop()
	}
	if err != nil {
		return err
	}
	return answer(w, batchOf(&b))
}

func (h *jobHandlers) batches(r *httpd.Request, w *httpd.Response) error {
	cursor, limit, err := pageOf(r)
	if err != nil {
		return err
	}
	page, err := h.queue.Batches(r.Context(), limit, cursor)
	if err != nil {
		return err
	}
	return answer(w, schema.BatchPage{Batches: convert(page.Batches, batchOf), Cursor: page.Cursor})
}
