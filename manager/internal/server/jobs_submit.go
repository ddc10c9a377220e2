package server

import (
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// submit handles POST /v1/jobs.
func (h *jobHandlers) submit(r *httpd.Request, w *httpd.Response) {
	s, err := parseSubmission(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	s.Owner = r.Owner()
	call, err := submission(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	span := produce(r, &s, false)
	p, err := h.queue.Prepare(s)
	var a submit.Answer
	if err == nil {
		a, err = h.submitter.Job(calling(r), call, p, func(out *jobs.Outcome) submit.Form {
			span.made(out)
			return submittedForm(r, w.Body[:0], out)
		})
	}
	span.end(err)
	submitted(r, w, a, err)
}

// submittedForm is how a submission is answered, in dst. What stands for the submission may be another caller's.
func submittedForm(r *httpd.Request, dst []byte, out *jobs.Outcome) submit.Form {
	switch {
	case out.Created():
		return submit.Form{Status: 202, Body: outcomeJSON(dst, out)}
	case mayRead(r, &out.Job):
		return submit.Form{Status: 200, Body: outcomeJSON(dst, out)}
	}
	j := &out.Job
	return submit.Form{Status: 200, Body: schema.Append(dst, &schema.JobOfAnother{
		ID: j.ID, Function: j.Function, State: stateOf(j), Deduplicated: out.Deduplicated, Existing: out.Existing,
	})}
}

// submitted answers a submission.
func submitted(r *httpd.Request, w *httpd.Response, a submit.Answer, err error) {
	if err != nil {
		r.Error(w, err)
		return
	}
	w.Status, w.ContentType = a.Status, a.ContentType
	w.Body = append(w.Body[:0], a.Body...)
	if a.Replayed {
		w.SetHeader(api.HeaderReplayed, "true")
	}
}

// submission is what identifies a request that submits.
func submission(r *httpd.Request) (submit.Call, error) {
	key, err := idempotencyKey(r)
	credentials := r.Header("authorization")
	if owner := r.CertificateOwner(); owner != "" {
		credentials += "\x00" + owner
	}
	return submit.Call{Key: key, Credentials: credentials, Body: r.Body}, err
}

// idempotencyKey reads the header, bare or as an RFC 8941 string; "" when there
// is none. One that is there but empty, repeated or not a key is refused, never
// taken for absent: a client that sends it counts on being protected.
func idempotencyKey(r *httpd.Request) (string, error) {
	n := r.HeaderCount(api.HeaderIdempotencyKey)
	if n == 0 {
		return "", nil
	}
	v := r.Header(api.HeaderIdempotencyKey)
	key, wrong := api.HeaderKey(v)
	if n > 1 {
		wrong = "sent " + strconv.Itoa(n) + " times; allowed: once"
	}
	if wrong != "" {
		return "", &api.FieldError{Field: "key", Value: httpd.Clip(v), Allowed: "header " + api.HeaderIdempotencyKey + ": " + wrong}
	}
	return key, nil
}
