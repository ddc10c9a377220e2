package server

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// list handles GET /v1/jobs.
func (h *jobHandlers) list(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("function", "state", "submitter", "key", "concurrency_key", "older_than_ms", "newer_than_ms", "error", "error_text", "limit", "cursor", "payloads")
	if err != nil {
		return err
	}
	in := schema.ListQuery{
		Function: q["function"], State: schema.State(q["state"]), Submitter: q["submitter"], Key: q["key"], ConcurrencyKey: q["concurrency_key"],
		Error: q["error"], ErrorText: q["error_text"], Cursor: q["cursor"],
	}
	if in.Limit, err = limitOf(q, jobs.MaxLimit, 0); err != nil {
		return err
	}
	older, err := whole(q, "older_than_ms", 0, jobs.MaxDelay.Milliseconds(), 0)
	if err != nil {
		return err
	}
	newer, err := whole(q, "newer_than_ms", 1, jobs.MaxDelay.Milliseconds(), 0)
	if err != nil {
		return err
	}
	in.OlderThan, in.NewerThan = schema.Duration(older), schema.Duration(newer)
	l, err := listQuery(&in)
	if err != nil {
		return err
	}
	switch q["payloads"] {
	case "", "false":
	case "true":
		l.Payloads = true
	default:
		return &api.FieldError{Field: "payloads", Value: httpd.Clip(q["payloads"]), Allowed: "must be true or false"}
	}
	page, err := h.queue.List(r.Context(), l)
	if err != nil {
		return err
	}
	form := formBrief
	if l.Payloads {
		form = formWhole
	}
	return answer(w, schema.JobPage{Jobs: jobsOf(page.Jobs, form), Cursor: page.Cursor})
}

// listQuery is what a list or a bulk action selects, as the queue takes it.
func listQuery(in *schema.ListQuery) (q jobs.ListQuery, err error) {
	q = jobs.ListQuery{
		Function: in.Function, Owner: in.Submitter, Key: in.Key, ConcurrencyKey: in.ConcurrencyKey, OlderThan: in.OlderThan, NewerThan: in.NewerThan,
		Error: in.Error, ErrorText: in.ErrorText, Limit: in.Limit, Cursor: in.Cursor,
	}
	if in.State != "" {
		q.State, err = jobs.ParseState("state", string(in.State))
	}
	return q, err
}

// delete handles DELETE /v1/jobs/{id}.
func (h *jobHandlers) delete(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	j, err := h.queue.Delete(r.Context(), r.Param(0))
	if err != nil {
		return err
	}
	r.Audit("job deleted by an administrator", "job", j.ID, "function", j.Function, "state", j.State.String())
	return answer(w, jobOf(&j, formBrief))
}

// parseBulk reads an action and a filter.
func parseBulk(r *httpd.Request) (q jobs.Bulk, err error) {
	in, err := parse[schema.BulkRequest](r)
	if err != nil {
		return q, err
	}
	q.DryRun = in.DryRun
	if q.ListQuery, err = listQuery(&in.ListQuery); err != nil {
		return q, err
	}
	if in.Action != "" {
		q.Action, err = jobs.ParseAction("action", string(in.Action))
	}
	return q, err
}

// bulk handles POST /v1/jobs/bulk.
func (h *jobHandlers) bulk(r *httpd.Request, w *httpd.Response) error {
	q, err := parseBulk(r)
	if err != nil {
		return err
	}
	if q.Action == jobs.ActionDelete && !r.May(httpd.Admin) {
		return httpd.Forbidden("only administrators delete")
	}
	res, err := h.queue.Bulk(r.Context(), q)
	if err != nil {
		return err
	}
	if !q.DryRun && res.Matched > 0 {
		r.Audit("many jobs changed by an operator", "action", q.Action.String(), "state", q.State.String(), "function", q.Function, "submitter", q.Owner,
			"key", q.Key, "concurrency_key", q.ConcurrencyKey, "error", httpd.Clip(q.Error), "error_text", q.ErrorText, "older_than_seconds", q.OlderThan.Seconds(), "newer_than_seconds", q.NewerThan.Seconds(), "done", res.Done, "refused", len(res.Refused))
	}
	refused := convert(res.Refused, func(job *jobs.Refusal) schema.Refusal { return schema.Refusal{ID: job.ID, Problem: ProblemOf(job.Err)} })
	return answer(w, schema.BulkResult{Matched: res.Matched, Done: res.Done, Refused: refused, Cursor: res.Cursor})
}
