package ui

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// jobsPerPage is how many jobs a page lists, and functionsPerPage how many functions.
const jobsPerPage, functionsPerPage = 50, 50

// jobStates are the states of the lists, in the order of the tabs.
var jobStates = []string{"queued", "scheduled", "active", "failed", "replayed", "cancelled", "expired", "complete"}

// jobsPage is all that is about jobs in general: the functions, the jobs of one or of a state, and the search.
func (u *UI) jobsPage(v *visit) error {
	switch search := searchOf(v.query); {
	case search.Key != "":
		return u.findJobs(v, search)
	case search != jobSearch{}:
		return u.listJobs(v, search)
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
	// Searched: the list has what a search for an id or key found.
	Searched bool
	// Partly: the page ends before it is full, since many jobs were looked through. Next continues it.
	Partly bool
	// Actions are those that some of the jobs allow, and the person may do.
	Actions []jobAction
	// Groups are what the dead letters failed of; GroupsPartly: of the oldest jobs.MaxLimit only.
	Groups       []errorGroup
	GroupsPartly bool
}

// errorGroup are dead letters of one kind.
type errorGroup struct {
	Error string // see jobs.ErrorGroup
	Count int
	Last  time.Time
}

// maxGroups bounds how many kinds a page lists.
const maxGroups = 20

// deadGroups groups the dead letters of a search by their error, the largest groups first.
func (u *UI) deadGroups(ctx context.Context, s jobSearch) (groups []errorGroup, partly bool, err error) {
	dead, next, err := u.pageOfJobs(ctx, s, "", jobs.MaxLimit)
	if err != nil {
		return nil, false, err
	}
	at := make(map[string]int)
	for i := range dead {
		j := &dead[i]
		name := jobs.ErrorGroup(j.Error)
		n, known := at[name]
		if !known {
			n = len(groups)
			at[name] = n
			groups = append(groups, errorGroup{Error: name})
		}
		g := &groups[n]
		g.Count++
		if j.FinishedAt.After(g.Last) {
			g.Last = j.FinishedAt
		}
	}
	slices.SortStableFunc(groups, func(a, b errorGroup) int { return b.Count - a.Count })
	return groups, next != "", nil
}

func (u *UI) listJobs(v *visit, search jobSearch) error {
	d := jobList{Search: search, States: jobStates, First: v.query("cursor") == ""}
	var err error
	if d.Jobs, d.Next, err = u.pageOfJobs(v.ctx(), d.Search, v.query("cursor"), jobsPerPage); err != nil {
		return err
	}
	d.Partly = d.Next != "" && len(d.Jobs) < jobsPerPage
	title := "Jobs"
	if d.Search.State != "" {
		title += ": " + d.Search.State
	}
	if f := d.Search.Function; f != "" {
		title = f
		if d.Function, err = u.function(v.ctx(), f); err != nil {
			return err
		}
	}
	if d.First && d.Search.State == jobs.Failed.String() && d.Search.Error == "" {
		if d.Groups, d.GroupsPartly, err = u.deadGroups(v.ctx(), d.Search); err != nil {
			return err
		}
	}
	d.Actions = v.actions(d.Jobs...)
	return v.render("joblist", title, &d)
}

// MoreGroups is how many groups the page leaves out.
func (d *jobList) MoreGroups() int { return max(0, len(d.Groups)-maxGroups) }

// ShownGroups are those that it lists.
func (d *jobList) ShownGroups() []errorGroup { return d.Groups[:min(len(d.Groups), maxGroups)] }

// function returns the numbers of a function; zero if it has no jobs.
func (u *UI) function(ctx context.Context, name string) (*functionRow, error) {
	f, err := u.opts.Queue.Function(ctx, name)
	return &functionRow{f, u.opts.Queue.LastMinute(name)}, err
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
	Holders         jobs.Holders
	InBatch         *jobs.Batch // that the job belongs to or waits for, nil without one
	Actions         []jobAction
}

// Dead reports whether the job is a dead letter.
func (j *jobData) Dead() bool { return j.State == jobs.Failed }

// jobPage shows a job, and its payload and result if a form asks for them.
func (u *UI) jobPage(v *visit) error {
	j, err := u.opts.Queue.Get(v.ctx(), v.r.PathValue("id"))
	if errors.Is(err, jobs.ErrInvalid) { // no job can have this id
		err = jobs.NotFound("job", v.r.PathValue("id"))
	}
	if err != nil {
		return err
	}
	f, err := u.opts.Queue.Function(v.ctx(), j.Function)
	if err != nil {
		return err
	}
	held, err := u.opts.Queue.Holders(v.ctx(), j.ID)
	if err != nil {
		return err
	}
	d := &jobData{Job: j, Holders: held, Actions: v.actions(j), Shown: v.r.Method == http.MethodPost, PayloadBytes: len(j.Payload), ResultBytes: len(j.Result), Paused: f.Paused, MostShown: maxShown}
	if id := cmp.Or(j.Batch, j.After); id != "" {
		b, err := u.opts.Queue.Batch(v.ctx(), id, 0)
		switch {
		case err == nil:
			d.InBatch = &b
		case !errors.Is(err, jobs.ErrNotFound) && !errors.Is(err, store.ErrUnreadable): // it is gone, or listed as unreadable
			return err
		}
	}
	if d.Shown {
		v.audit("payload and result of a job shown", "job", j.ID, "function", j.Function)
		d.Payload, d.Result = prettyJSON(j.Payload), prettyJSON(j.Result)
	}
	return v.render("job", "Job "+j.ID, d)
}

// jobAction is what a person does with a job, in words for the page.
type jobAction struct {
	jobs.Action
	Verb, Done string
}

var jobActions = []jobAction{
	{jobs.ActionRetry, "Retry", "retried"}, {jobs.ActionCancel, "Cancel", "cancelled"},
	{jobs.ActionReplay, "Replay", "replayed"}, {jobs.ActionDelete, "Delete", "deleted"},
}

func actionOf(word string) (jobAction, error) {
	a, err := jobs.ParseAction("action", word)
	if err != nil {
		return jobAction{}, err
	}
	return jobActions[slices.IndexFunc(jobActions, func(j jobAction) bool { return j.Action == a })], nil
}

// Danger: what the action takes away does not come back.
func (a jobAction) Danger() bool {
	return a.Action == jobs.ActionCancel || a.Action == jobs.ActionDelete
}

// Label is the text of the action's button on the page of a job.
func (a jobAction) Label(s jobs.State) string {
	switch {
	case a.Action == jobs.ActionRetry && s == jobs.Scheduled:
		return "Run now"
	case a.Action == jobs.ActionReplay:
		return "Replay as a new job"
	}
	return a.Verb
}

// may reports whether the person may do an action.
func (v *visit) may(a jobAction) bool {
	return v.MayChange() && (a.Action != jobs.ActionDelete || v.MayDelete())
}

// actions are those that some of the jobs allow, and that the person may do.
func (v *visit) actions(js ...jobs.Job) []jobAction {
	var out []jobAction
	for _, a := range jobActions {
		if v.may(a) && slices.ContainsFunc(js, func(j jobs.Job) bool { return a.Allows(&j) }) {
			out = append(out, a)
		}
	}
	return out
}

// endedBy is when the latest of the jobs had ended, or was submitted, as a page showed them. A form that is sent again with
// it retries no job that failed again meanwhile.
func endedBy(js ...jobs.Job) string {
	var last time.Time
	for i := range js {
		for _, at := range []time.Time{js[i].CreatedAt, js[i].FinishedAt} {
			if at.After(last) {
				last = at
			}
		}
	}
	return last.Format(time.RFC3339Nano)
}

// endedBy reads the field of a form; zero if the form has none.
func (v *visit) endedBy() (time.Time, error) {
	text := v.form("ended_by")
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, &jobs.FieldError{Field: "ended_by", Value: strconv.Quote(httpd.Clip(text)), Allowed: "a time such as 2026-01-02T15:04:05Z"}
	}
	return at, nil
}

// askData is an action on one job that waits for its confirmation.
type askData struct {
	jobs.Job
	Action jobAction
}

// changeJob does the action that its route ends with. It asks first if that ends work or cannot be undone.
func (u *UI) changeJob(v *visit) error {
	a, err := actionOf(path.Base(v.r.URL.Path))
	if err != nil {
		return u.notFound(v)
	}
	id := v.r.PathValue("id")
	if a.Danger() && !v.confirmed() {
		j, err := u.opts.Queue.Get(v.ctx(), id)
		if err != nil {
			return err
		}
		if a.Action == jobs.ActionDelete || j.State == jobs.Active && !j.CancelRequested {
			return v.render("ask", a.Verb+" job "+id, &askData{j, a})
		}
	}
	endedBy, err := v.endedBy()
	if err != nil {
		return err
	}
	if _, err := u.opts.Queue.Do(v.ctx(), a.Action, id, endedBy); err != nil {
		return err
	}
	v.audit("job "+a.Done+" by an operator", "job", id)
	if a.Action == jobs.ActionReplay || a.Action == jobs.ActionDelete { // the dead letter, or the job, is gone
		return v.redirect("jobs?done=" + a.Done)
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
