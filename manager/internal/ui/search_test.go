package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// listed returns the ids of the jobs on a page.
func listed(page string) (ids []string) {
	for _, part := range strings.Split(page, `<td><a class="id" href="`)[1:] {
		_, id, _ := strings.Cut(part, ">")
		id, _, _ = strings.Cut(id, "<")
		ids = append(ids, id)
	}
	return ids
}

// Lists can be filtered by the error's text, the tenant and the age, within a function, a state, or everything.
func TestListsAreFiltered(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.failAs(jobs.Submission{ID: "a", Function: "f", Owner: "shop", ConcurrencyKey: "acme"}, "HTTP 503 of the mail server")
	s.failAs(jobs.Submission{ID: "b", Function: "f", Owner: "blog"}, "no paper")
	s.now.Add(2 * time.Hour)
	s.failAs(jobs.Submission{ID: "c", Function: "g", Owner: "shop"}, "no paper")
	s.enqueue(jobs.Submission{ID: "d", Function: "g", Owner: "shop", ConcurrencyKey: "acme"})
	for query, want := range map[string]string{
		"state=failed&error_text=PAPER":            "[b c]",
		"state=failed&function=f&error_text=paper": "[b]",
		"error_text=http+503":                      "[a]",
		"submitter=shop":                           "[d a c]",
		"submitter=shop&state=failed":              "[a c]",
		"concurrency_key=acme":                     "[d a]",
		"concurrency_key=acme&older=1h":            "[a]",
		"older=1h":                                 "[a b]",
		"older=1d":                                 "[]",
		"older=10m&error=no+paper":                 "[b]",
		"newer=1h":                                 "[d c]",
		"newer=6h&older=1h":                        "[a b]",
		"newer=1m&error_text=http":                 "[]",
	} {
		if a := s.get("/ui/jobs?" + query); a.status != 200 || fmt.Sprint(listed(a.body)) != want || !strings.Contains(a.body, "<details open>") || !strings.Contains(a.body, "Remove the filter") {
			t.Errorf("%s: status %d, %v; want %s", query, a.status, listed(a.body), want)
		}
	}
	a := s.get("/ui/jobs?state=failed&error_text=paper&submitter=shop&concurrency_key=&older=")
	for _, want := range []string{`name="error_text" value="paper"`, `name="submitter" value="shop"`, `href="./jobs?error_text=paper&amp;state=queued&amp;submitter=shop"`, `href="./jobs?state=failed">Remove the filter`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("no %s: %s", want, a.body)
		}
	}
	if got := text(a.body); !strings.Contains(got, "no paper 1") {
		t.Errorf("the groups are not those of the list: %s", got)
	}
	for query, want := range map[string]int{"older=2w": 400, "newer=2w": 400, "newer=1h&older=1h": 400, "concurrency_key=%20x": 400, "submitter=a+b": 400, "error_text=" + strings.Repeat("x", jobs.MaxErrorTextBytes+1): 413} {
		if a := s.get("/ui/jobs?" + query); a.status != want {
			t.Errorf("%s: status %d, want %d", query, a.status, want)
		}
	}
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, "<details><summary>Filter by") {
		t.Errorf("the page of the jobs has no filter: %s", a.body)
	}
}

// An action on all jobs of a filtered list changes no others.
func TestBulkActionsKeepTheFilter(t *testing.T) {
	s := newSite(t, siteOptions{})
	mine := s.failAs(jobs.Submission{Function: "f", Owner: "shop"}, "no paper")
	other := s.failAs(jobs.Submission{Function: "f", Owner: "blog"}, "no paper")
	const list = "/ui/jobs?function=f&state=failed&submitter=shop&error_text=paper&newer=1h&older=1m"
	s.now.Add(2 * time.Minute)
	a := s.get(list)
	_, bulk, _ := strings.Cut(a.body, `action="./jobs/bulk"`)
	form := fieldsOf("<main" + bulk)
	form.Set("action", "retry")
	form.Set("all", "yes")
	a = s.post("/ui/jobs/bulk", form)
	if !strings.Contains(a.body, "Retry 1 job?") || !strings.Contains(a.body, "error_text=paper&amp;function=f&amp;newer=1h&amp;older=1m&amp;state=failed&amp;submitter=shop") {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	confirmed := fieldsOf(a.body)
	if confirmed.Get("submitter") != "shop" || confirmed.Get("error_text") != "paper" || confirmed.Get("older") != "1m" || confirmed.Get("newer") != "1h" {
		t.Errorf("the form for the confirmation: %v", confirmed)
	}
	if a := s.post("/ui/jobs/bulk", confirmed); !strings.Contains(a.body, "1 of 1 jobs retried") {
		t.Errorf("status %d: %s", a.status, text(a.body))
	}
	s.wantState(mine.ID, jobs.Queued)
	s.wantState(other.ID, jobs.Failed)
}

// A search ends after jobs.MaxExamined jobs, and continues there.
func TestSearchesAreBounded(t *testing.T) {
	s := newSite(t, siteOptions{})
	for range jobs.MaxExamined {
		s.enqueue(jobs.Submission{Function: "f"})
	}
	s.enqueue(jobs.Submission{Function: "f", Owner: "shop"})
	if got := text(s.get("/ui/jobs?state=queued&submitter=shop").body); !strings.Contains(got, "No jobs here so far.") || !strings.Contains(got, "Search on") {
		t.Errorf("a filtered list: %s", got)
	}
	all := url.Values{"action": {"cancel"}, "all": {"yes"}, "state": {"queued"}, "submitter": {"shop"}}
	if a := s.submit("/ui/jobs?state=queued", "/ui/jobs/bulk", all); a.status != 400 || !strings.Contains(text(a.body), "selects none of the first 10000 jobs") {
		t.Errorf("an action on all of it: status %d: %s", a.status, text(a.body))
	}
	last := s.failAs(jobs.Submission{Function: "g", Key: "order-7"}, "no")
	a := s.get("/ui/jobs?key=order-7")
	if got := text(a.body); !strings.Contains(got, "No job so far has the id or key order-7") || !strings.Contains(got, "has not reached the end") {
		t.Fatalf("status %d: %s", a.status, got)
	}
	_, next, _ := strings.Cut(a.body, `<a class="button quiet" href="./jobs?cursor=`)
	next, rest, _ := strings.Cut(next, `"`)
	if !strings.HasPrefix(rest, ">Search on") {
		t.Fatalf("no link: %s", a.body)
	}
	if a := s.get("/ui/jobs?cursor=" + strings.ReplaceAll(next, "&amp;", "&")); fmt.Sprint(listed(a.body)) != "["+last.ID+"]" {
		t.Errorf("status %d: %s", a.status, text(a.body))
	}
}
