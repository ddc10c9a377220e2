package ui

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// jobsPerPage is how many jobs a page lists, and functionsPerPage how many functions.
const jobsPerPage, functionsPerPage = 50, 50

// jobStates are the states of the lists, in the order of the tabs.
var jobStates = []string{"queued", "scheduled", "active", "failed", "replayed", "cancelled", "complete"}

// jobsPage is all that is about jobs in general: the functions, the jobs of one or of a state, and the search.
func (u *UI) jobsPage(v *visit) error {
	switch {
	case v.query("key") != "":
		return u.findJobs(v)
	case v.query("function") != "" || v.query("state") != "":
		return u.listJobs(v)
	}
	return u.functionsPage(v)
}

type functionsData struct {
	Depth     *depthData
	Functions []functionRow
	Next      string // cursor
	First     bool
	Search    jobSearch
}

type functionRow struct {
	jobs.Function
	jobs.Rates
}

// Count shows a number of the function's jobs.
func (f functionRow) Count(n int) string {
	if f.AtLeast && n > 0 {
		return "at least " + num(n)
	}
	return num(n)
}

type depthData struct {
	jobs.Depth
	Counts jobs.Counters
	Usage  jobs.Usage
}

// HighBytes is from where on the room for jobs counts as nearly full.
func (d *depthData) HighBytes() int64 { return d.Usage.MaxTotal / 10 * 8 }

// jobSearch is what the search form starts with.
type jobSearch struct{ Key, Function, State string }

func (u *UI) depth(ctx context.Context) (*depthData, error) {
	d, err := u.opts.Queue.Depth(ctx)
	if err != nil {
		return nil, err
	}
	used, err := u.opts.Queue.Usage(ctx)
	return &depthData{d, u.opts.Queue.Counters(), used}, err
}

func (u *UI) functionsPage(v *visit) error {
	d := functionsData{First: v.query("cursor") == ""}
	var err error
	if d.Depth, err = u.depth(v.ctx()); err != nil {
		return err
	}
	page, err := u.opts.Queue.Functions(v.ctx(), functionsPerPage, v.query("cursor"))
	if err != nil {
		return err
	}
	for _, f := range page.Functions {
		d.Functions = append(d.Functions, functionRow{f, u.opts.Queue.LastMinute(f.Name)})
	}
	d.Next = page.Cursor
	return v.render("jobs", "Jobs", &d)
}

// jobList is a page of jobs.
type jobList struct {
	Search jobSearch
	States []string
	// Function has the numbers of Search.Function; nil without one.
	Function *functionRow
	Jobs     []jobs.Job
	Next     string
	First    bool
	// Searched: the list has what a search found, and Partly that it goes on behind Next.
	Searched, Partly bool
}

func (u *UI) listJobs(v *visit) error {
	d := jobList{Search: jobSearch{Function: v.query("function"), State: v.query("state")}, States: jobStates, First: v.query("cursor") == ""}
	var err error
	if d.Jobs, d.Next, err = u.pageOfJobs(v.ctx(), d.Search, v.query("cursor"), jobsPerPage); err != nil {
		return err
	}
	title := "Jobs: " + d.Search.State
	if f := d.Search.Function; f != "" {
		title = f
		if d.Function, err = u.function(v.ctx(), f); err != nil {
			return err
		}
	}
	return v.render("joblist", title, &d)
}

// function returns the numbers of a function; zero if it has no jobs.
func (u *UI) function(ctx context.Context, name string) (*functionRow, error) {
	f, err := u.opts.Queue.Function(ctx, name)
	return &functionRow{f, u.opts.Queue.LastMinute(name)}, err
}

// pageOfJobs lists jobs without their payloads.
func (u *UI) pageOfJobs(ctx context.Context, s jobSearch, cursor string, limit int) ([]jobs.Job, string, error) {
	q := jobs.ListQuery{Function: s.Function, Cursor: cursor, Limit: limit}
	if s.State != "" {
		var err error
		if q.State, err = jobs.ParseState("state", s.State); err != nil {
			return nil, "", err
		}
	}
	page, err := u.opts.Queue.List(ctx, q)
	if err != nil {
		return nil, "", err
	}
	return page.Jobs, page.Cursor, nil
}

// searchPages bounds how many pages of jobs.MaxLimit jobs one search looks through.
const searchPages = 10

// findJobs finds a job by its id, the live job that holds a key, and then others that had the key.
func (u *UI) findJobs(v *visit) error {
	d := jobList{
		Search: jobSearch{Key: v.query("key"), Function: v.query("function"), State: v.query("state")},
		States: jobStates, Searched: true, First: v.query("cursor") == "",
	}
	add := func(j jobs.Job) {
		if !slices.ContainsFunc(d.Jobs, func(o jobs.Job) bool { return o.ID == j.ID }) {
			d.Jobs = append(d.Jobs, j)
		}
	}
	key, cursor := d.Search.Key, v.query("cursor")
	if d.First {
		for _, find := range []func(context.Context, string) (jobs.Job, error){u.opts.Queue.Get, u.opts.Queue.Holder} {
			switch j, err := find(v.ctx(), key); {
			case err == nil:
				add(j)
			case !errors.Is(err, jobs.ErrNotFound) && !errors.Is(err, jobs.ErrInvalid):
				return err
			}
		}
	}
	for range searchPages {
		page, next, err := u.pageOfJobs(v.ctx(), d.Search, cursor, jobs.MaxLimit)
		if err != nil {
			return err
		}
		for _, j := range page {
			if j.Key == key {
				add(j)
			}
		}
		if cursor = next; cursor == "" || len(d.Jobs) >= jobsPerPage {
			break
		}
	}
	d.Next, d.Partly = cursor, cursor != ""
	return v.render("joblist", "Jobs: search", &d)
}

// jobData is a job with what a person may do about it.
type jobData struct {
	jobs.Job
	// Shown: the person asked for payload and result.
	Shown           bool
	Payload, Result string
	PayloadBytes    int
	ResultBytes     int
	Paused          bool
	MostShown       int
}

// Retryable reports whether an operator may put the job back into the queue; Cancellable whether it may be cancelled.
func (j *jobData) Retryable() bool {
	return j.State == jobs.Failed || j.State == jobs.Cancelled || j.State == jobs.Scheduled
}

// Dead reports whether the job is a dead letter.
func (j *jobData) Dead() bool { return j.State == jobs.Failed }

// Cancellable reports whether the job may be cancelled.
func (j *jobData) Cancellable() bool { return !j.State.Terminal() && !j.CancelRequested }

func (u *UI) jobPage(v *visit) error { return u.showJob(v, false) }

// revealJob shows payload and result as well.
func (u *UI) revealJob(v *visit) error { return u.showJob(v, true) }

func (u *UI) showJob(v *visit, shown bool) error {
	j, err := u.opts.Queue.Get(v.ctx(), v.r.PathValue("id"))
	if errors.Is(err, jobs.ErrInvalid) { // no job can have this id
		err = &jobs.NotFoundError{Kind: "job", ID: v.r.PathValue("id")}
	}
	if err != nil {
		return err
	}
	f, err := u.opts.Queue.Function(v.ctx(), j.Function)
	if err != nil {
		return err
	}
	d := &jobData{Job: j, Shown: shown, PayloadBytes: len(j.Payload), ResultBytes: len(j.Result), Paused: f.Paused, MostShown: maxShown}
	if shown {
		v.audit("payload and result of a job shown", "job", j.ID, "function", j.Function)
		d.Payload, d.Result = prettyJSON(j.Payload), prettyJSON(j.Result)
	}
	return v.render("job", "Job "+j.ID, d)
}

// jobAction is what an operator does with one job. Word is its name in forms.
type jobAction struct {
	Word, Verb, Done string
	// do returns the job, and in the case of a replay its copy's id.
	do func(u *UI, ctx context.Context, id string) (j jobs.Job, copied string, err error)
}

var jobActions = []jobAction{
	{"retry", "Retry", "retried", func(u *UI, ctx context.Context, id string) (jobs.Job, string, error) {
		j, err := u.opts.Queue.Retry(ctx, jobs.Retry{ID: id})
		return j, "", err
	}},
	{"cancel", "Cancel", "cancelled", func(u *UI, ctx context.Context, id string) (jobs.Job, string, error) {
		j, err := u.opts.Queue.Cancel(ctx, id)
		return j, "", err
	}},
	{"replay", "Replay", "replayed", func(u *UI, ctx context.Context, id string) (jobs.Job, string, error) {
		j, err := u.opts.Queue.Get(ctx, id)
		if err != nil {
			return j, "", err
		}
		out, err := u.opts.Queue.Replay(ctx, j.Function, id)
		if err == nil && out.Deduplicated {
			err = &httpd.Refusal{P: api.Problem{
				Status: http.StatusConflict, Code: api.CodeConflict, Title: "Not replayed", Detail: "job " + out.Job.ID + " does the same work already; the dead letter stays",
			}}
		}
		return j, out.Job.ID, err
	}},
}

// run does the action with one job, and writes that to the audit log.
func (a *jobAction) run(v *visit, id string) error {
	j, copied, err := a.do(v.ui, v.ctx(), id)
	if err != nil {
		return err
	}
	fields := []any{"job", id, "function", j.Function}
	if copied != "" {
		fields = append(fields, "copy", copied)
	}
	v.audit("job "+a.Done+" by an operator", fields...)
	return nil
}

func actionOf(word string) (*jobAction, error) {
	for i := range jobActions {
		if jobActions[i].Word == word {
			return &jobActions[i], nil
		}
	}
	return nil, &jobs.FieldError{Field: "action", Value: httpd.Clip(word), Allowed: "retry, cancel or replay"}
}

// changeJob does the action that its route ends with.
func (u *UI) changeJob(v *visit) error {
	a, err := actionOf(v.r.PathValue("action"))
	if err != nil {
		return u.notFound(v)
	}
	id := v.r.PathValue("id")
	if err := a.run(v, id); err != nil {
		return err
	}
	if a.Word == "replay" { // the dead letter is gone
		return v.redirect("jobs?done=replayed")
	}
	return v.redirect("jobs/" + id + "?done=" + a.Done)
}

// pauseFunction handles pause and resume.
func (u *UI) pauseFunction(v *visit) error {
	name := v.form("function")
	call, done := u.opts.Queue.Pause, "paused"
	if strings.HasSuffix(v.r.URL.Path, "/resume") {
		call, done = u.opts.Queue.Resume, "resumed"
	}
	if err := call(v.ctx(), name); err != nil {
		return err
	}
	v.audit("function "+done+" by an operator", "function", name)
	return v.redirect("jobs" + string(query("function", name, "done", done)))
}

// maxBulk bounds the jobs of one bulk action.
const maxBulk = 1000

// bulkData is a bulk action that waits for its confirmation, or was done.
type bulkData struct {
	Action *jobAction
	Search jobSearch
	// All: the action is about all jobs that Search has, up to maxBulk, and not about those of IDs only.
	All bool
	IDs []string
	// More: there are more than maxBulk, for which the action is offered again.
	More bool
	// Done and Refused are set behind the confirmation. NotTried ran out of time.
	Confirmed      bool
	Done, NotTried int
	Refused        []refusal
	MoreRefused    int
}

type refusal struct{ ID, Why string }

// Count is how many jobs the action is about.
func (d *bulkData) Count() string { return strconv.Itoa(len(d.IDs)) }

// bulk shows what would be done, and does it once the person has confirmed that.
func (u *UI) bulk(v *visit) error {
	a, err := actionOf(v.form("action"))
	if err != nil {
		return err
	}
	d := &bulkData{Action: a, Search: jobSearch{Function: v.form("function"), State: v.form("state")}, All: v.form("all") == "yes", IDs: v.r.PostForm["id"], More: v.form("more") == "yes"}
	if d.All && v.form("confirm") != "yes" {
		page, next, err := u.pageOfJobs(v.ctx(), d.Search, "", maxBulk)
		if err != nil {
			return err
		}
		d.IDs, d.More = nil, next != ""
		for _, j := range page {
			d.IDs = append(d.IDs, j.ID)
		}
	}
	switch {
	case len(d.IDs) == 0:
		return &jobs.FieldError{Field: "id", Allowed: "is missing: choose at least one job"}
	case len(d.IDs) > maxBulk:
		return &jobs.FieldError{Field: "id", Value: strconv.Itoa(len(d.IDs)) + " jobs", Allowed: "at most " + strconv.Itoa(maxBulk)}
	}
	if v.form("confirm") == "yes" {
		d.Confirmed = true
		u.doBulk(v, d)
	}
	return v.render("bulk", a.Verb+" jobs", d)
}
