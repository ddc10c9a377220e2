package server

import (
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// jobForm says what an answer shows of a job.
type jobForm uint8

const (
	// formWhole: with payload and result.
	formWhole jobForm = iota
	// formBrief: without.
	formBrief
	// formSubmitted: the answer to a submission, which the ledger and gates remember, so it must stay small. With the
	// payload's size, without payload, result and error.
	formSubmitted
	// formClaimed: formWhole and the lease's token.
	formClaimed
)

// jobOf is what an answer shows of a job.
func jobOf(j *jobs.Job, form jobForm) schema.Job {
	s := schema.Job{
		ID: j.ID, Function: j.Function, Key: j.Key, ConcurrencyKey: j.ConcurrencyKey, Batch: j.Batch, After: j.After, State: stateOf(j), Priority: j.Priority, Attempt: j.Attempt, MaxAttempts: j.MaxAttempts,
		RunAt: j.RunAt, ExpiresAt: j.ExpiresAt, Timeout: j.Timeout, CreatedAt: j.CreatedAt, StartedAt: j.StartedAt, FinishedAt: j.FinishedAt,
		Event: j.Event, CancelRequested: j.CancelRequested, ReplayedAs: j.ReplayedAs, WALLocations: j.WALLocations.Map(),
	}
	if j.WaitsForBatch() {
		s.RunAt = time.Time{}
	}
	if j.DeadIfExpired {
		s.OnExpiry = onExpiryDead
	}
	if d := j.Dedup; d != nil {
		s.Dedup = &schema.Dedup{Strategy: d.Strategy.String(), Key: d.Key, TTL: d.TTL}
		if d.RescheduleOnce {
			s.Dedup.IfDeduplicated = "reschedule_once"
		}
	}
	if l := j.Lease; l != nil {
		s.Lease = &schema.Lease{Worker: l.Worker, ExpiresIn: l.ExpiresIn}
	}
	switch form {
	case formSubmitted:
		s.PayloadBytes = len(j.Payload)
		return s
	case formBrief:
		s.Submitter = j.Owner
	case formClaimed:
		s.Lease.Token = j.Lease.Token
	case formWhole:
		s.Submitter = j.Owner
		for _, e := range j.Errors {
			s.Errors = append(s.Errors, schema.AttemptError{Attempt: e.Attempt, At: e.At, Worker: e.Worker, Error: e.Text})
		}
	}
	s.Error = j.Error
	if form != formBrief {
		s.Payload, s.Result, s.Traceparent = j.Payload, j.Result, j.Traceparent
	}
	return s
}

func stateOf(j *jobs.Job) schema.State { return schema.State(j.State.String()) }

func jobsOf(all []jobs.Job, form jobForm) []schema.Job {
	return convert(all, func(j *jobs.Job) schema.Job { return jobOf(j, form) })
}

// answer answers 200 with v. It returns nil, so that it can be a handler's last call.
func answer[T any](w *httpd.Response, v T) error {
	w.JSON(200)
	w.Body = schema.Append(w.Body, &v)
	return nil
}

// created is answer for a PUT, which answers 201 if it made what v shows.
func created[T any](w *httpd.Response, made bool, v T) error {
	err := answer(w, v)
	if made {
		w.Status = 201
	}
	return err
}

// convert returns what one makes of each item.
func convert[A, B any](all []A, one func(*A) B) []B {
	out := make([]B, len(all))
	for i := range all {
		out[i] = one(&all[i])
	}
	return out
}

// within says in which field an object was that could not be read.
func within(name string, err error) error {
	if fe, ok := err.(*api.FieldError); ok && fe.Field == "body" {
		return &api.FieldError{Field: name, Value: fe.Value, Allowed: fe.Allowed}
	}
	return err
}

func parseSubmission(b []byte) (jobs.Submission, error) {
	var in schema.Submission
	if err := schema.Parse(b, &in, "idempotency_key"); err != nil {
		return jobs.Submission{}, err
	}
	return submissionOf(&in)
}

// onExpiryDead is the on_expiry that makes a dead letter.
const onExpiryDead = "dead_letter"

func submissionOf(in *schema.Submission) (s jobs.Submission, err error) {
	s = jobs.Submission{
		Function: in.Function, ID: in.ID, Key: in.Key, ConcurrencyKey: in.ConcurrencyKey, Priority: in.Priority, RunAt: in.RunAt, Delay: in.Delay, MaxAttempts: in.MaxAttempts,
		ExpiresAt: in.ExpiresAt, ExpiresIn: in.ExpiresIn, DeadIfExpired: in.OnExpiry == onExpiryDead, Timeout: in.Timeout,
		ReturnExisting: in.OnDuplicate == "return_existing",
	}
	if in.Payload != nil {
		s.Payload = in.Payload.(json.RawMessage)
	}
	if d := in.Dedup; d != nil {
		s.Dedup = &jobs.Dedup{Key: d.Key, TTL: d.TTL, RescheduleOnce: d.IfDeduplicated != ""}
		if s.Dedup.Strategy, err = jobs.ParseStrategy(d.Strategy); err != nil {
			return s, err
		}
	}
	s.WALLocations, err = jobs.ParseWALLocations(in.WALLocations)
	return s, err
}

// finishOf reads how a job ends. A status that is missing is for package jobs to refuse.
func finishOf(in *schema.FinishRequest, only []string) jobs.Finish {
	f := jobs.Finish{ID: in.ID, Token: in.LeaseToken, Result: in.Result, Error: in.Error, Only: only}
	if in.Status != "" {
		f.State, _ = jobs.ParseState("status", string(in.Status)) // the schema has the names
	}
	return f
}

// parse reads the body, which must not have the fields that except names. A call without fields, struct{}, may have an empty body.
func parse[T any](r *httpd.Request, except ...string) (in T, err error) {
	err = schema.Parse(r.Body, &in, except...)
	return in, err
}
