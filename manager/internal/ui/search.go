package ui

import (
	"context"
	"errors"
	"html/template"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// jobSearch is what selects jobs on a page. Empty fields select all.
type jobSearch struct {
	Key, Function, State string
	// Error is an error group, see jobs.ErrorGroup, and ErrorText is a part of the last error.
	Error, ErrorText          string
	Submitter, ConcurrencyKey string
	// Older and Newer are of jobAges.
	Older, Newer string
}

// jobAge is a choice of how old jobs are.
type jobAge struct {
	Value, Text string
	age         time.Duration
}

var jobAges = []jobAge{
	{"1m", "a minute", time.Minute}, {"10m", "10 minutes", 10 * time.Minute}, {"1h", "an hour", time.Hour}, {"6h", "6 hours", 6 * time.Hour},
	{"1d", "a day", 24 * time.Hour}, {"7d", "7 days", 7 * 24 * time.Hour}, {"30d", "30 days", 30 * 24 * time.Hour},
}

// searchOf reads a search from an address or a form.
func searchOf(get func(string) string) jobSearch {
	return jobSearch{
		Key: get("key"), Function: get("function"), State: get("state"), Error: get("error"), ErrorText: get("error_text"),
		Submitter: get("submitter"), ConcurrencyKey: get("concurrency_key"), Older: get("older"), Newer: get("newer"),
	}
}

// Fields are the search as fields of a form, without empty ones.
func (s jobSearch) Fields() (fields []formField) {
	for _, f := range []formField{
		{"key", s.Key}, {"function", s.Function}, {"state", s.State}, {"error", s.Error}, {"error_text", s.ErrorText},
		{"submitter", s.Submitter}, {"concurrency_key", s.ConcurrencyKey}, {"older", s.Older}, {"newer", s.Newer},
	} {
		if f.Value != "" {
			fields = append(fields, f)
		}
	}
	return fields
}

// Query is the query of the search's address, with a cursor unless it is empty.
func (s jobSearch) Query(cursor string) template.URL {
	pairs := []string{"cursor", cursor}
	for _, f := range s.Fields() {
		pairs = append(pairs, f.Name, f.Value)
	}
	return query(pairs...)
}

// In is the same search in another state, without a key and an error group.
func (s jobSearch) In(state string) template.URL {
	s.State, s.Key, s.Error = state, "", ""
	return s.Query("")
}

// WithError is the same search with another error group.
func (s jobSearch) WithError(group string) template.URL {
	s.Error = group
	return s.Query("")
}

// Ages are the choices of Older and Newer.
func (s jobSearch) Ages() []jobAge { return jobAges }

// Filtered: the search has one of the fields of the form for filters.
func (s jobSearch) Filtered() bool {
	return s.ErrorText != "" || s.Submitter != "" || s.ConcurrencyKey != "" || s.Older != "" || s.Newer != ""
}

// Unfiltered is the same search without these fields.
func (s jobSearch) Unfiltered() template.URL {
	s.ErrorText, s.Submitter, s.ConcurrencyKey, s.Older, s.Newer = "", "", "", "", ""
	return s.Query("")
}

// listQuery is the search as the queue takes it.
func (s jobSearch) listQuery() (q jobs.ListQuery, err error) {
	q = jobs.ListQuery{Key: s.Key, Function: s.Function, Error: s.Error, ErrorText: s.ErrorText, Owner: s.Submitter, ConcurrencyKey: s.ConcurrencyKey}
	if q.OlderThan, err = ageOf("older", s.Older); err != nil {
		return q, err
	}
	if q.NewerThan, err = ageOf("newer", s.Newer); err != nil {
		return q, err
	}
	if s.State != "" {
		q.State, err = jobs.ParseState("state", s.State)
	}
	return q, err
}

// ageOf reads a choice of jobAges; the empty one is 0.
func ageOf(field, choice string) (time.Duration, error) {
	i := slices.IndexFunc(jobAges, func(a jobAge) bool { return a.Value == choice })
	switch {
	case choice == "":
		return 0, nil
	case i < 0:
		return 0, &jobs.FieldError{Field: field, Value: strconv.Quote(httpd.Clip(choice)), Allowed: "one of the form's choices"}
	}
	return jobAges[i].age, nil
}

// pageOfJobs lists jobs without their payloads. It looks through at most jobs.MaxExamined.
func (u *UI) pageOfJobs(ctx context.Context, s jobSearch, cursor string, limit int) ([]jobs.Job, string, error) {
	q, err := s.listQuery()
	if err != nil {
		return nil, "", err
	}
	q.Cursor, q.Limit = cursor, limit
	page, err := u.opts.Queue.List(ctx, q)
	return page.Jobs, page.Cursor, err
}

// findJobs finds a job by its id, the live job that holds a key, and then others that had the key.
func (u *UI) findJobs(v *visit, search jobSearch) error {
	d := jobList{Search: search, States: jobStates, Searched: true, First: v.query("cursor") == ""}
	add := func(j jobs.Job) {
		if !slices.ContainsFunc(d.Jobs, func(o jobs.Job) bool { return o.ID == j.ID }) {
			d.Jobs = append(d.Jobs, j)
		}
	}
	if d.First {
		for _, find := range []func(context.Context, string) (jobs.Job, error){u.opts.Queue.Get, u.opts.Queue.Holder} {
			switch j, err := find(v.ctx(), search.Key); {
			case err == nil:
				add(j)
			case !errors.Is(err, jobs.ErrNotFound) && !errors.Is(err, jobs.ErrInvalid):
				return err
			}
		}
	}
	if api.ValidKey(search.Key) { // no job has another one
		page, next, err := u.pageOfJobs(v.ctx(), search, v.query("cursor"), jobsPerPage)
		if err != nil {
			return err
		}
		for _, j := range page {
			add(j)
		}
		d.Next, d.Partly = next, next != "" && len(page) < jobsPerPage
	}
	d.Actions = v.actions(d.Jobs...)
	return v.render("joblist", "Jobs: search", &d)
}
