package server

import (
	"encoding/json"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

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
