package server

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// ScheduleRoutes are operators' calls on the schedules of a queue. The ledger, the queue and the schedules must be on the
// same store.
func ScheduleRoutes(l *ledger.Ledger, q *jobs.Queue, s *schedules.Schedules) []httpd.Route {
	h := &scheduleHandlers{schedules: s, queue: q, submitter: submit.New(l, q, submissions)}
	return []httpd.Route{
		{Method: "GET", Path: "/v1/schedules", Roles: readers, Handle: h.list},
		{Method: "PUT", Path: "/v1/schedules/{name}", Roles: readers, JSON: true, Handle: h.put},
		{Method: "GET", Path: "/v1/schedules/{name}", Roles: readers, Handle: h.get},
		{Method: "DELETE", Path: "/v1/schedules/{name}", Roles: readers, Handle: h.delete},
		{Method: "POST", Path: "/v1/schedules/{name}/pause", Roles: readers, JSON: true, Handle: h.change("paused", s.Pause)},
		{Method: "POST", Path: "/v1/schedules/{name}/resume", Roles: readers, JSON: true, Handle: h.change("resumed", s.Resume)},
		{Method: "POST", Path: "/v1/schedules/{name}/run", Roles: readers, JSON: true, Handle: h.run},
	}
}

type scheduleHandlers struct {
	schedules *schedules.Schedules
	queue     *jobs.Queue
	submitter *submit.Submitter
}

func (h *scheduleHandlers) put(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.ScheduleSpec](r)
	if err != nil {
		return err
	}
	spec := schedules.Spec{
		Cron: in.Cron, TimeZone: in.TimeZone, Function: in.Function, Priority: in.Priority, MaxAttempts: in.MaxAttempts,
		ExpiresIn: in.ExpiresIn, DeadIfExpired: in.OnExpiry == onExpiryDead, Timeout: in.Timeout,
	}
	if in.Payload != nil {
		spec.Payload = in.Payload.(json.RawMessage)
	}
	if spec.Missed, err = schedules.ParseMissed(in.Missed); err != nil {
		return err
	}
	if spec.Overlap, err = schedules.ParseOverlap(in.Overlap); err != nil {
		return err
	}
	if spec.DataCenters, err = schedules.ParseDataCenters(in.DataCenters); err != nil {
		return err
	}
	s, made, err := h.schedules.Put(r.Context(), r.Param(0), spec)
	if err != nil {
		return err
	}
	auditSchedule(r, "put", &s)
	return created(w, made, h.scheduleOf(&s))
}

func (h *scheduleHandlers) get(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	s, err := h.schedules.Get(r.Context(), r.Param(0))
	if err != nil {
		return err
	}
	return answer(w, h.scheduleOf(&s))
}

func (h *scheduleHandlers) list(r *httpd.Request, w *httpd.Response) error {
	cursor, limit, err := pageOf(r)
	if err != nil {
		return err
	}
	found, more, err := h.schedules.List(r.Context(), limit, cursor)
	if err != nil {
		return err
	}
	return answer(w, schema.SchedulePage{Schedules: convert(found, h.scheduleOf), Cursor: more})
}

func (h *scheduleHandlers) delete(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	s, err := h.schedules.Delete(r.Context(), r.Param(0))
	if err != nil {
		return err
	}
	auditSchedule(r, "deleted", &s)
	return answer(w, h.scheduleOf(&s))
}

// change handles a call without fields that changes a schedule.
func (h *scheduleHandlers) change(done string, call func(context.Context, string) (schedules.Schedule, error)) httpd.Handler {
	return func(r *httpd.Request, w *httpd.Response) error {
		if _, err := parse[struct{}](r); err != nil {
			return err
		}
		s, err := call(r.Context(), r.Param(0))
		if err != nil {
			return err
		}
		auditSchedule(r, done, &s)
		return answer(w, h.scheduleOf(&s))
	}
}

// run submits the schedule's job as the caller might do by itself, with a key of its own.
func (h *scheduleHandlers) run(r *httpd.Request, w *httpd.Response) error {
	if _, err := parse[struct{}](r); err != nil {
		return err
	}
	name := r.Param(0)
	s, err := h.schedules.Submission(r.Context(), name)
	if err != nil {
		return err
	}
	call, err := submission(r)
	if err != nil {
		return err
	}
	// A repetition gets the recorded answer, also when the schedule was changed meanwhile.
	call.Body = []byte(`{"schedule":` + strconv.Quote(name) + `}`)
	span := produce(r, &s, false)
	p, err := h.queue.Prepare(s)
	var a submit.Answer
	if err == nil {
		a, err = h.submitter.Job(calling(r), &call, p)
	}
	span.end(a.Outcome, err)
	if err == nil && a.Outcome != nil {
		r.Audit("schedule run by an operator", "schedule", name, "function", s.Function, "job", a.Outcome.Job.ID)
	}
	return submitted(w, a, err)
}

func (h *scheduleHandlers) scheduleOf(s *schedules.Schedule) schema.Schedule {
	out := schema.Schedule{
		Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Function: s.Function, Payload: s.Payload, Priority: s.Priority, MaxAttempts: s.MaxAttempts,
		Missed: s.Missed.String(), Overlap: s.Overlap.String(), DataCenters: s.DataCenters.String(), Home: h.schedules.Home(s), Paused: !s.PausedAt.IsZero(), PausedAt: s.PausedAt,
		CreatedAt: s.CreatedAt, ChangedAt: s.ChangedAt, NextAt: s.Next, LastAt: s.Last, LastJob: s.LastJob,
		MissedInstants: s.MissedInstants, OverlappedInstants: s.OverlappedInstants, ExpiresIn: s.ExpiresIn, Timeout: s.Timeout,
	}
	if s.DeadIfExpired {
		out.OnExpiry = onExpiryDead
	}
	return out
}

// auditSchedule writes to the audit log what an operator did with a schedule.
func auditSchedule(r *httpd.Request, done string, s *schedules.Schedule) {
	r.Audit("schedule "+done+" by an operator", "schedule", s.Name, "function", s.Function, "cron", s.Cron, "time_zone", s.TimeZone)
}
