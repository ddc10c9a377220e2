package ui

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// schedulesPerPage is how many schedules a page lists.
const schedulesPerPage = 50

type schedulesData struct {
	Schedules []scheduleRow
	Next      string // cursor
	First     bool
}

type scheduleRow struct {
	schedules.Schedule
	// Late is for how long the next instant has been due, 0 for one that is on time.
	Late time.Duration
	// Home is the data centre that enqueues the jobs, empty if each does.
	Home string
}

// RunID is a new id for the job that the row's form makes. A form that is sent again has the same id, and makes no second
// job.
func (s *scheduleRow) RunID() string { return rand.Text() }

// Paused reports whether the schedule is paused.
func (s *scheduleRow) Paused() bool { return !s.PausedAt.IsZero() }

// MissedText says what becomes of instants that the schedule missed.
func (s *scheduleRow) MissedText() string {
	switch s.Missed {
	case schedules.MissedSkip:
		return "missed instants get no job"
	case schedules.MissedAll:
		return "each missed instant gets a job"
	}
	return "the latest missed instant gets a job"
}

// SkipsOverlaps: an instant gets no job while the last job waits or runs.
func (s *scheduleRow) SkipsOverlaps() bool { return s.Overlap == schedules.OverlapSkip }

func (u *UI) schedulesPage(v *visit) error {
	cursor := v.query("cursor")
	page, next, err := u.opts.Schedules.List(v.ctx(), schedulesPerPage, cursor)
	if err != nil {
		return err
	}
	d := &schedulesData{Next: next, First: cursor == ""}
	for _, s := range page {
		row := scheduleRow{Schedule: s, Home: u.opts.Schedules.Home(&s)}
		if late := u.opts.Clock().Sub(s.Next); !s.Next.IsZero() && late >= schedules.OnTime {
			row.Late = late
		}
		d.Schedules = append(d.Schedules, row)
	}
	return v.render("schedules", "Schedules", d)
}

// changeSchedule does what its route ends with: pause, resume or delete. It asks before a delete.
func (u *UI) changeSchedule(v *visit) error {
	name := v.form("name")
	var call func(context.Context, string) (schedules.Schedule, error)
	var done string
	switch path.Base(v.r.URL.Path) {
	case "pause":
		call, done = u.opts.Schedules.Pause, "paused"
	case "resume":
		call, done = u.opts.Schedules.Resume, "resumed"
	case "delete":
		if !v.confirmed() {
			return v.ask(&question{
				Title: "Delete this schedule?", Text: fmt.Sprintf("The schedule %s enqueues no more jobs, and its settings and its payload are lost. The jobs that it enqueued stay.", name),
				Path: "schedules/delete", Fields: []formField{{"name", name}}, Button: "Delete the schedule", Back: "schedules",
			})
		}
		call, done = u.opts.Schedules.Delete, "deleted"
	default:
		return u.notFound(v)
	}
	s, err := call(v.ctx(), name)
	if err != nil {
		return err
	}
	v.audit("schedule "+done+" by an operator", "schedule", s.Name, "function", s.Function, "cron", s.Cron, "time_zone", s.TimeZone)
	return v.redirect("schedules?done=schedule-" + done)
}

// runSchedule enqueues a schedule's job now, and leads to the job. The form has the job's id.
func (u *UI) runSchedule(v *visit) error {
	name, id := v.form("name"), v.form("id")
	if id == "" {
		return &jobs.FieldError{Field: "id", Allowed: "the id that the form has"}
	}
	sub, err := u.opts.Schedules.Submission(v.ctx(), name)
	if err != nil {
		return err
	}
	sub.ID = id
	out, err := u.opts.Queue.Enqueue(v.ctx(), sub)
	if taken := (*jobs.Error)(nil); errors.As(err, &taken) && taken.Kind == jobs.ErrConflict && taken.ID == id {
		return v.redirect("jobs/" + id + "?done=schedule-ran")
	}
	if err != nil {
		return err
	}
	v.audit("schedule run by an operator", "schedule", name, "function", sub.Function, "job", out.Job.ID)
	return v.redirect("jobs/" + out.Job.ID + "?done=schedule-run")
}
