package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

func (s *site) schedule(name string, spec schedules.Spec) schedules.Schedule {
	s.t.Helper()
	out, _, err := s.schedules.Put(s.t.Context(), name, spec)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// The list shows what a schedule does, its next and its last job, and the instants without a job.
func TestSchedulesAreListed(t *testing.T) {
	s := newSite(t, siteOptions{})
	if got := text(s.get("/ui/schedules").body); !strings.Contains(got, "There is no schedule.") {
		t.Errorf("without schedules: %s", got)
	}
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, `href="./schedules"`) {
		t.Error("the page of the jobs does not lead there")
	}
	s.now.Add(time.Until(time.Now().Truncate(time.Hour).Add(90 * time.Minute))) // half past: no instant comes while the test runs
	s.schedule("report.hourly", schedules.Spec{Cron: "@hourly", TimeZone: "Europe/Vienna", Function: "report.build", Payload: []byte(`"4242"`), ExpiresIn: time.Hour, Timeout: 10 * time.Minute, Overlap: schedules.OverlapSkip})
	s.now.Add(3 * time.Hour)
	a := s.get("/ui/schedules")
	if !strings.Contains(a.body, ">late<") || !strings.Contains(text(a.body), "0 missed the latest missed instant gets a job") {
		t.Errorf("a late schedule: %s", a.body)
	}
	if got := text(s.get("/ui/").body); !strings.Contains(got, "A schedule&#39;s job has been due for 2 hours, and is not in the queue") {
		t.Errorf("the overview: %s", got)
	}
	if _, err := s.schedules.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	last, err := s.schedules.Get(t.Context(), "report.hourly")
	if err != nil || last.LastJob == "" {
		t.Fatalf("%+v, %v", last, err)
	}
	a = s.get("/ui/schedules")
	for _, want := range []string{"report.hourly @hourly Europe/Vienna report.build expires after 1 hour attempts of at most 10 minutes in ", last.LastJob + " 2 missed", "0 left out while the last job was not done"} {
		if !strings.Contains(text(a.body), want) {
			t.Errorf("no %q: %s", want, text(a.body))
		}
	}
	if strings.Contains(a.body, ">late<") || strings.Contains(a.body, "4242") || !strings.Contains(a.body, `href="./jobs/`+last.LastJob+`"`) {
		t.Errorf("the list: %s", a.body)
	}
	if got := text(s.get("/ui/").body); strings.Contains(got, "A schedule") {
		t.Errorf("the overview: %s", got)
	}
}

func TestSchedulesArePausedAndResumed(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	s.schedule("nightly", schedules.Spec{Cron: "@daily", Function: "f"})
	form := url.Values{"name": {"nightly"}}
	if a := s.post("/ui/schedules/pause", form); a.status != 403 {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	if a := s.submit("/ui/schedules", "/ui/schedules/pause", form); a.status != 303 || a.header.Get("Location") != "./../schedules?done=schedule-paused" {
		t.Errorf("status %d, %s", a.status, a.header.Get("Location"))
	}
	if a := s.get("/ui/schedules?done=schedule-paused"); !strings.Contains(a.body, ">paused<") || !strings.Contains(text(a.body), "none, paused now") || !strings.Contains(a.body, "The schedule is paused") {
		t.Errorf("paused: %s", text(a.body))
	}
	s.submit("/ui/schedules", "/ui/schedules/resume", form)
	if a := s.get("/ui/schedules"); strings.Contains(a.body, ">paused<") {
		t.Errorf("resumed: %s", text(a.body))
	}
	for _, path := range []string{"pause", "resume", "run"} {
		if a := s.submit("/ui/schedules", "/ui/schedules/"+path, url.Values{"name": {"gone"}, "id": {"new"}}); a.status != 404 {
			t.Errorf("%s of a schedule that is not there: status %d", path, a.status)
		}
	}
	if a := s.submit("/ui/schedules", "/ui/schedules/explode", form); a.status != 404 {
		t.Errorf("an unknown action: status %d", a.status)
	}
	for _, what := range []string{"schedule paused by an operator", "schedule resumed by an operator"} {
		if log := s.audit.String(); strings.Count(log, what) != 1 || !strings.Contains(log, "schedule=nightly function=f cron=@daily time_zone=UTC") {
			t.Errorf("no %q in the audit log: %s", what, log)
		}
	}
}

func TestScheduleRunsNow(t *testing.T) {
	s := newSite(t, siteOptions{})
	before := s.schedule("nightly", schedules.Spec{Cron: "@daily", Function: "f", Payload: []byte(`"4242"`)})
	a := s.submit("/ui/schedules", "/ui/schedules/run", url.Values{"name": {"nightly"}, "id": {"first"}})
	id, ok := strings.CutPrefix(a.header.Get("Location"), "./../jobs/")
	id, notice, _ := strings.Cut(id, "?")
	if a.status != 303 || !ok || notice != "done=schedule-run" {
		t.Fatalf("status %d, %s: %s", a.status, a.header.Get("Location"), text(a.body))
	}
	j, err := s.queue.Get(t.Context(), id)
	if err != nil || j.Function != "f" || j.State != jobs.Queued || string(j.Payload) != `"4242"` {
		t.Errorf("job %+v, %v", j, err)
	}
	if after, err := s.schedules.Get(t.Context(), "nightly"); err != nil || !after.Next.Equal(before.Next) || after.LastJob != "" {
		t.Errorf("the schedule changed: %+v, %v", after, err)
	}
	if log := s.audit.String(); !strings.Contains(log, "schedule run by an operator") || !strings.Contains(log, id) {
		t.Errorf("audit log: %s", log)
	}
}

// A double click, or a browser that sends a form again, makes no second job.
func TestScheduleRunsOnceForAForm(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.schedule("nightly", schedules.Spec{Cron: "@daily", Function: "f"})
	s.schedule("weekly", schedules.Spec{Cron: "@weekly", Function: "g"})
	_, run, _ := strings.Cut(s.get("/ui/schedules").body, `action="./schedules/run"`)
	form := fieldsOf("<main" + run)
	answers := make(chan answer, 5)
	for range cap(answers) {
		go func() { answers <- s.post("/ui/schedules/run", form) }()
	}
	firsts := 0
	for range cap(answers) {
		a := <-answers
		id, ok := strings.CutPrefix(a.header.Get("Location"), "./../jobs/"+form.Get("id")+"?done=schedule-r")
		if a.status != 303 || !ok || id != "un" && id != "an" {
			t.Errorf("status %d, %s: %s", a.status, a.header.Get("Location"), text(a.body))
		}
		if id == "un" {
			firsts++
		}
	}
	if firsts != 1 {
		t.Errorf("%d answers say that they made the job", firsts)
	}
	if d, err := s.queue.Depth(t.Context()); err != nil || d.Queued != 1 {
		t.Errorf("jobs: %+v, %v", d, err)
	}
	if got := text(s.get("/ui/jobs/" + form.Get("id") + "?done=schedule-ran").body); !strings.Contains(got, "This form was sent before") {
		t.Errorf("the job's page: %s", got)
	}
	if n := strings.Count(s.audit.String(), "schedule run by an operator"); n != 1 {
		t.Errorf("%d runs in the audit log", n)
	}
	// Each form of each page has an id of its own.
	_, run, _ = strings.Cut(s.get("/ui/schedules").body, `action="./schedules/run"`)
	s.post("/ui/schedules/run", fieldsOf("<main"+run))
	if d, err := s.queue.Depth(t.Context()); err != nil || d.Queued != 2 {
		t.Errorf("jobs after a new form: %+v, %v", d, err)
	}
	form.Del("id")
	if a := s.post("/ui/schedules/run", form); a.status != 400 || !strings.Contains(text(a.body), "Field id: is missing") {
		t.Errorf("without an id: status %d: %s", a.status, text(a.body))
	}
}

func TestDeleteOfAScheduleAsksFirst(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.schedule("nightly", schedules.Spec{Cron: "@daily", Function: "f"})
	a := s.submit("/ui/schedules", "/ui/schedules/delete", url.Values{"name": {"nightly"}})
	if got := text(a.body); a.status != 200 || !strings.Contains(got, "Delete this schedule?") || !strings.Contains(got, "The schedule nightly enqueues no more jobs") {
		t.Fatalf("status %d: %s", a.status, got)
	}
	if _, err := s.schedules.Get(t.Context(), "nightly"); err != nil {
		t.Fatalf("it was deleted without a question: %v", err)
	}
	if a := s.post("/ui/schedules/delete", fieldsOf(a.body)); a.status != 303 || a.header.Get("Location") != "./../schedules?done=schedule-deleted" {
		t.Errorf("status %d, %s", a.status, a.header.Get("Location"))
	}
	if got := text(s.get("/ui/schedules").body); strings.Contains(got, "nightly") {
		t.Errorf("it is still there: %s", got)
	}
	if log := s.audit.String(); !strings.Contains(log, "schedule deleted by an operator") {
		t.Errorf("audit log: %s", log)
	}
}

func TestSchedulesArePaged(t *testing.T) {
	s := newSite(t, siteOptions{})
	for i := range schedulesPerPage + 1 {
		s.schedule(fmt.Sprintf("schedule-%02d", i), schedules.Spec{Cron: "@daily", Function: "f"})
	}
	last := fmt.Sprintf("schedule-%02d", schedulesPerPage-1)
	if a := s.get("/ui/schedules"); !strings.Contains(a.body, `href="./schedules?cursor=`+last+`">Next page`) {
		t.Fatalf("no next page: %s", a.body)
	}
	if got := text(s.get("/ui/schedules?cursor=" + last).body); strings.Count(got, "schedule-") != 1 || !strings.Contains(got, "First page") {
		t.Errorf("the next page: %s", got)
	}
	if a := s.get("/ui/schedules?cursor=" + url.QueryEscape(nasty)); a.status != 400 {
		t.Errorf("a damaged cursor: status %d", a.status)
	}
}

func TestReadersChangeNoSchedule(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.ui.opts.Auth = certificatesOnly(t)
	before := s.schedule("nightly", schedules.Spec{Cron: "@daily", Function: "f"})
	if a := s.get("/ui/schedules"); a.status != 200 || strings.Contains(a.body, `method="post"`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	for _, path := range []string{"run", "pause", "resume", "delete"} {
		if a := s.post("/ui/schedules/"+path, url.Values{"csrf": {s.ui.csrf(nil)}, "name": {"nightly"}, "confirm": {"yes"}}); a.status != 403 {
			t.Errorf("%s: status %d", path, a.status)
		}
	}
	if after, err := s.schedules.Get(t.Context(), "nightly"); err != nil || !after.PausedAt.Equal(before.PausedAt) {
		t.Errorf("%+v, %v", after, err)
	}
	if d, err := s.queue.Depth(t.Context()); err != nil || d != (jobs.Depth{}) {
		t.Errorf("jobs: %+v, %v", d, err)
	}
}
