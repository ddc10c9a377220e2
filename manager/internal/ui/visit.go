package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// visit is one request of a person.
type visit struct {
	ui     *UI
	w      http.ResponseWriter
	r      *http.Request
	person httpd.Person
	asked  bool // for a token
	stream bool

	// Root leads from the page's address to /ui/.
	Root string
	// CSRF is the token that forms carry in the field csrf.
	CSRF string
	// LoggedIn: there is a session to end.
	LoggedIn bool
}

func (v *visit) ctx() context.Context { return v.r.Context() }

// query returns a value of the address, "" if it is not there.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// form returns a value of a posted form.
func (v *visit) form(name string) string { return v.r.PostForm.Get(name) }

// page is what the templates get: the visit's exported fields and these.
type page struct {
	*visit
	// Name of the page and its Title.
	Name, Title string
	Version     string
	Navigation  []link
	// Data is the page's own.
	Data any
	// Notice says what an action did.
	Notice string
}

// Section is the entry of the bar that the page belongs to.
func (p *page) Section() string {
	switch p.Name {
	case "joblist", "job", "bulk", "ask", "confirm", "schedules", "subscriptions":
		return "jobs"
	}
	return p.Name
}

// link is an entry of the bar.
type link struct{ Path, Name, Title string }

var navigation = []link{{"", "overview", "Overview"}, {"ledger", "ledger", "Ledger"}, {"jobs", "jobs", "Jobs"}, {"system", "system", "System"}}

// MayChange reports whether the person may do what an operator does.
func (v *visit) MayChange() bool { return v.person.May(httpd.Operator) }

// MayDelete reports whether the person may do what only an administrator does.
func (v *visit) MayDelete() bool { return v.person.May(httpd.Admin) }

// render answers 200 with a page.
func (v *visit) render(name, title string, data any) error {
	return v.renderStatus(http.StatusOK, name, title, data)
}

func (v *visit) renderStatus(status int, name, title string, data any) error {
	p := &page{visit: v, Name: name, Title: title, Version: v.ui.opts.Version, Navigation: navigation, Data: data, Notice: notices[v.query("done")]}
	var b bytes.Buffer
	if err := templates[name].ExecuteTemplate(&b, "page", p); err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(b.Bytes())
	return nil
}

// redirect leads to a page, relative to /ui/, after a form.
func (v *visit) redirect(to string) error {
	v.w.Header().Set("Location", v.Root+to)
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// audit writes what a person did to the audit log.
func (v *visit) audit(what string, fields ...any) {
	v.person.Audit(v.ui.opts.Audit, "page", v.r.RemoteAddr, what, fields...)
}

// fail answers with an error, in words.
func (v *visit) fail(err error) {
	var p httpd.Problemer
	switch {
	case errors.As(err, &p):
		problem := p.Problem()
		v.problem(&problem)
		return
	case v.ui.base.Err() != nil || errors.Is(err, context.Canceled) && v.r.Context().Err() != nil:
		v.problem(&api.Problem{Status: 503, Title: "Stopped", Detail: "the manager is stopping, or the page was closed"})
		return
	case errors.Is(err, context.DeadlineExceeded):
		v.problem(&api.Problem{Status: 503, Title: "This took too long", Detail: "the store did not answer in time"})
		return
	}
	problem := api.Problem{Status: 500}
	if v.ui.opts.Problem != nil {
		problem = v.ui.opts.Problem(err)
	}
	if problem.Status == 500 {
		v.ui.opts.Log.Error("a page failed", "path", v.r.URL.Path, "error", err.Error())
	}
	if problem.Code == api.CodeUnavailable { // the API's words are for gates
		problem.Title, problem.Detail = "The store does not answer", "it may be starting, or out of reach. Load the page again in a moment; the page System still works"
		if v.r.Method == http.MethodPost {
			problem.Detail = "it is not known whether this was done: look at the page before you repeat it"
		}
	}
	if problem.Title == "" {
		problem.Title, problem.Detail = "Something went wrong", "the manager's log says more"
	}
	v.problem(&problem)
}

func (v *visit) problem(p *api.Problem) {
	if p.RetryAfterSeconds > 0 {
		v.w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfterSeconds))
	}
	if err := v.renderStatus(p.Status, "problem", p.Title, p); err != nil {
		v.ui.opts.Log.Error("a page failed", "path", v.r.URL.Path, "error", err.Error())
		http.Error(v.w, "internal error", http.StatusInternalServerError)
	}
}
