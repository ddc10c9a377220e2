package server

import (
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
