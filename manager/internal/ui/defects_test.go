package ui

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// run lets a worker claim the next job.
func (s *site) run(worker string) jobs.Job {
	s.t.Helper()
	got, err := s.queue.Claim(s.t.Context(), jobs.ClaimRequest{Worker: worker, Lease: 10 * time.Minute})
	if err != nil || len(got) != 1 {
		s.t.Fatal(len(got), err)
	}
	return got[0]
}

var tags = regexp.MustCompile(`<[^>]*>`)

// text is what a person reads of a page, with single blanks.
func text(page string) string {
	_, page, _ = strings.Cut(page, "<main")
	return strings.Join(strings.Fields(tags.ReplaceAllString(page, " ")), " ")
}

// A list says who works on a job, and what runs first.
func TestListsTellWorkerAndPriority(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "f", Priority: 77})
	s.run("printer-3")
	for _, path := range []string{"/ui/jobs?function=f", "/ui/jobs?state=active"} {
		got := text(s.get(path).body)
		if !strings.Contains(got, "printer-3") || !strings.Contains(got, " 77 ") || !strings.Contains(got, "Priority") || !strings.Contains(got, "Worker") {
			t.Errorf("%s: %s", path, got)
		}
	}
	s.fail("g", "", "no")
	if got := text(s.get("/ui/jobs?state=failed").body); !strings.Contains(got, " w ") {
		t.Errorf("the worker of the last attempt: %s", got)
	}
}

// Words in front of a time read well with "in 9 minutes" and with "9 minutes ago".
func TestTimesReadWell(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "f"})
	j := s.run("w")
	for _, path := range []string{"/ui/jobs?function=f", "/ui/jobs/" + j.ID} {
		got := text(s.get(path).body)
		if strings.Contains(got, "until in ") || !strings.Contains(strings.ToLower(got), "end of lease in 9 minutes") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// A click on a running job's button must not end its work before the person knows what is lost.
func TestCancelOfARunningJobAsksFirst(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "report.build", Key: "k"})
	j := s.run("printer-3")
	page := "/ui/jobs/" + j.ID
	a := s.submit(page, page+"/cancel", nil)
	if got := text(a.body); a.status != 200 || !strings.Contains(got, "Cancel this job?") || !strings.Contains(got, "printer-3") || !strings.Contains(got, "attempt 1 of 25") || !strings.Contains(got, "is lost") {
		t.Errorf("status %d: %s", a.status, got)
	}
	if j, err := s.queue.Get(t.Context(), j.ID); err != nil || j.CancelRequested {
		t.Fatalf("it was cancelled without a question: %v", err)
	}
	form := fieldsOf(a.body)
	if a := s.post(page+"/cancel", form); a.status != 303 || form.Get("confirm") != "yes" {
		t.Errorf("status %d, form %v", a.status, form)
	}
	if j, err := s.queue.Get(t.Context(), j.ID); err != nil || !j.CancelRequested {
		t.Errorf("not cancelled: %v", err)
	}
	if got := s.get(page); strings.Contains(got.body, page[3:]+"/cancel") {
		t.Error("a second cancel is offered")
	}

	// So does the one of many.
	s.enqueue(jobs.Submission{Function: "report.build"})
	other := s.run("printer-4")
	a = s.submit("/ui/jobs", "/ui/jobs/bulk", url.Values{"action": {"cancel"}, "id": {other.ID}})
	if got := text(a.body); !strings.Contains(got, "1 of them is running") || !strings.Contains(got, "is lost") {
		t.Errorf("bulk: %s", got)
	}
}

// A page offers what the job's state and the person's role allow, and nothing else.
func TestOnlyPossibleActionsAreOffered(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.enqueue(jobs.Submission{Function: "done"})
	j := s.run("w")
	if _, err := s.queue.Finish(t.Context(), jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete}); err != nil {
		t.Fatal(err)
	}
	s.enqueue(jobs.Submission{Function: "active"})
	active := s.run("w")
	queued := s.enqueue(jobs.Submission{Function: "queued"})
	scheduled := s.enqueue(jobs.Submission{Function: "scheduled", Delay: time.Hour})
	cancelled := s.enqueue(jobs.Submission{Function: "cancelled"})
	if _, err := s.queue.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	failed := s.fail("failed", "", "no")
	again := s.fail("replayed", "", "no")
	if _, err := s.queue.Replay(t.Context(), "replayed", again.ID); err != nil {
		t.Fatal(err)
	}
	button := regexp.MustCompile(`action="[^"]*/(cancel|retry|replay|delete)"|name="action" value="(cancel|retry|replay|delete)"`)
	for token, deletes := range map[string]string{operatorToken: "", adminToken: " delete"} {
		s.client = s.newClient()
		s.login(token)
		for _, c := range []struct {
			id, state, want string
		}{
			{j.ID, "complete", deletes}, {active.ID, "active", "cancel"}, {queued.ID, "queued", "cancel" + deletes}, {scheduled.ID, "scheduled", "retry cancel" + deletes},
			{cancelled.ID, "cancelled", "retry" + deletes}, {failed.ID, "failed", "retry replay" + deletes}, {again.ID, "replayed", deletes},
		} {
			for _, path := range []string{"/ui/jobs/" + c.id, "/ui/jobs?state=" + c.state} {
				got := ""
				for _, m := range button.FindAllStringSubmatch(s.get(path).body, -1) {
					got += m[1] + m[2] + " "
				}
				if strings.TrimSpace(got) != strings.TrimSpace(c.want) {
					t.Errorf("%s: %q, want %q", path, got, c.want)
				}
			}
		}
		a := s.submit("/ui/jobs/"+failed.ID, "/ui/jobs/"+cancelled.ID+"/delete", nil)
		if allowed := deletes != ""; (a.status == 200) != allowed || (a.status == 403) == allowed {
			t.Errorf("delete: status %d", a.status)
		}
	}
}

// A deleted job is gone; the page says so before and after.
func TestDeleteAsksFirst(t *testing.T) {
	s := newSite(t, siteOptions{})
	dead := s.fail("f", "", "no")
	page := "/ui/jobs/" + dead.ID
	a := s.submit(page, page+"/delete", nil)
	if a.status != 200 || !strings.Contains(text(a.body), "Delete this job?") {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	s.wantState(dead.ID, jobs.Failed)
	if a = s.post(page+"/delete", fieldsOf(a.body)); a.status != 303 || a.header.Get("Location") != "./../../jobs?done=deleted" {
		t.Errorf("status %d, %s", a.status, a.header.Get("Location"))
	}
	if a := s.get(page); a.status != 404 {
		t.Errorf("status %d", a.status)
	}
	if log := s.audit.String(); !strings.Contains(log, "job deleted") || !strings.Contains(log, dead.ID) {
		t.Errorf("audit log: %s", log)
	}
}

// An error says what is missing, and not that nothing is not allowed.
func TestMissingFieldsAreToldInWords(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "f"})
	for want, form := range map[string]url.Values{
		"Choose at least one job":  {"action": {"retry"}},
		"Field action: is missing": {"id": {"x"}},
	} {
		a := s.submit("/ui/jobs?function=f", "/ui/jobs/bulk", form)
		if got := text(a.body); a.status != 400 || !strings.Contains(got, want) || strings.Contains(got, "is not allowed") {
			t.Errorf("status %d: %s", a.status, got)
		}
	}
}

// The page of a job shows what stands in the way of its duplicates, and which trace it belongs to.
func TestJobPageTellsDedupLockAndTrace(t *testing.T) {
	s := newSite(t, siteOptions{})
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	sub := jobs.Submission{Function: "f", Key: "order-1", Traceparent: trace, Dedup: &jobs.Dedup{Strategy: jobs.UntilExecuted, Key: "dk-7", TTL: 3 * time.Hour, RescheduleOnce: true}}
	j := s.enqueue(sub)
	got := text(s.get("/ui/jobs/" + j.ID).body)
	for _, want := range []string{trace, "dk-7", "until_executed", "runs once more", "Key order-1 , held by this job", "Lock held by this job"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q: %s", want, got)
		}
	}
	if _, err := s.queue.Cancel(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if got := text(s.get("/ui/jobs/" + j.ID).body); !strings.Contains(got, "Lock free") || !strings.Contains(got, "Key order-1 , free") {
		t.Errorf("after the cancel: %s", got)
	}
	next := s.enqueue(sub)
	if a := s.get("/ui/jobs/" + j.ID); strings.Count(a.body, `href="./../jobs/`+next.ID+`"`) != 2 {
		t.Errorf("while another job has them: %s", text(a.body))
	}
}

// Dead letters of one kind stand together, and can be listed and replayed together.
func TestDeadLettersAreGroupedByError(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, why := range []string{"order 100417 is unknown\nstack", "order 100418 is unknown", "HTTP 503", nasty} {
		s.fail("f", "", why)
	}
	s.fail("g", "", "HTTP 503")
	const group = "order # is unknown"
	for path, counts := range map[string][]string{"/ui/jobs?function=f&state=failed": {group + " 2", "HTTP 503 1"}, "/ui/jobs?state=failed": {group + " 2", "HTTP 503 2"}} {
		a := s.get(path)
		for _, want := range counts {
			if !strings.Contains(text(a.body), want) || strings.Contains(a.body, "<script>alert") {
				t.Errorf("%s: no %q: %s", path, want, text(a.body))
			}
		}
	}
	path := "/ui/jobs" + string(query("function", "f", "state", "failed", "error", group))
	if a := s.get(path); strings.Count(a.body, `class="id" href=`) != 2 || strings.Contains(text(a.body), "HTTP 503") {
		t.Errorf("one group: %s", text(a.body))
	}
	a := s.submit(path, "/ui/jobs/bulk", url.Values{"action": {"replay"}, "all": {"yes"}, "function": {"f"}, "state": {"failed"}, "error": {group}})
	if !strings.Contains(a.body, "Replay 2 jobs?") {
		t.Errorf("replay of a group: %s", text(a.body))
	}
}
