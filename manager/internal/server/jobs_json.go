package server

import (
	"time"

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
