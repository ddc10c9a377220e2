package server

import (
	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
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
	jobAnswer(w, 200, &j, formBrief)
}

// parseBulk reads an action and a filter. A text of the filter must not be empty: it would select all jobs.
func parseBulk(b []byte) (q jobs.Bulk, err error) {
	err = fields(b, func(name string, v gjson.Result) (err error) {
		s := ""
		switch name {
		case "action":
			if err = nameField(name, v, &s); err == nil && s != "" {
				q.Action, err = jobs.ParseAction(name, s)
			}
			return err
		case "state":
			if err = nameField(name, v, &s); err == nil && s != "" {
				q.State, err = jobs.ParseState(name, s)
			}
			return err
		case "function":
			return nameField(name, v, &q.Function)
		case "submitter":
			return nameField(name, v, &q.Owner)
		case "error":
			return nameField(name, v, &q.Error)
		case "older_than_ms":
			return millisField(name, v, &q.OlderThan)
		case "limit":
			return positiveField(name, v, &q.Limit)
		case "cursor":
			return stringField(name, v, &q.Cursor)
		case "dry_run":
			return boolField(name, v, &q.DryRun)
		}
		return api.UnknownField(name)
	})
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
			"error", httpd.Clip(q.Error), "older_than_seconds", q.OlderThan.Seconds(), "done", res.Done, "refused", len(res.Refused))
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.num("matched", int64(res.Matched))
	o.num("done", int64(res.Done))
	o.name("refused")
	o.b = append(o.b, '[')
	for i, refused := range res.Refused {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.open()
		o.str("id", refused.ID)
		p := ProblemOf(refused.Err)
		o.name("problem")
		o.b = p.AppendJSON(o.b)
		o.close()
	}
	o.b, o.comma = append(o.b, ']'), true
	o.str("cursor", res.Cursor)
	o.close()
	w.Body = o.b
}
