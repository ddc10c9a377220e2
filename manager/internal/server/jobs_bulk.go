package server

import (
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// delete handles DELETE /v1/jobs/{id}.
func (h *jobHandlers) delete(r *httpd.Request, w *httpd.Response) {
	if _, err := r.QueryValues(); err != nil {
		r.Error(w, err)
		return
	}
	j, err := h.queue.Delete(r.Context(), r.Param(0))
	if err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("job deleted by an administrator", "job", j.ID, "function", j.Function, "state", j.State.String())
	jobAnswer(w, &j, formBrief)
}

// parseBulk reads an action and a filter.
func parseBulk(b []byte) (q jobs.Bulk, err error) {
	var in schema.BulkRequest
	if err = schema.Parse(b, &in); err != nil {
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
func (h *jobHandlers) bulk(r *httpd.Request, w *httpd.Response) {
	q, err := parseBulk(r.Body)
	if err == nil && q.Action == jobs.ActionDelete && !r.May(httpd.Admin) {
		err = httpd.Forbidden("only administrators delete")
	}
	var res jobs.BulkResult
	if err == nil {
		res, err = h.queue.Bulk(r.Context(), q)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	if !q.DryRun && res.Matched > 0 {
		r.Audit("many jobs changed by an operator", "action", q.Action.String(), "state", q.State.String(), "function", q.Function, "submitter", q.Owner,
			"key", q.Key, "concurrency_key", q.ConcurrencyKey, "error", httpd.Clip(q.Error), "error_text", q.ErrorText, "older_than_seconds", q.OlderThan.Seconds(), "newer_than_seconds", q.NewerThan.Seconds(), "done", res.Done, "refused", len(res.Refused))
	}
	refused := make([]schema.Refusal, len(res.Refused))
	for i, job := range res.Refused {
		refused[i] = schema.Refusal{ID: job.ID, Problem: ProblemOf(job.Err)}
	}
	answer(w, &schema.BulkResult{Matched: res.Matched, Done: res.Done, Refused: refused, Cursor: res.Cursor})
}
