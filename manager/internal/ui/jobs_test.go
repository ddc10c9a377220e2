package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// nasty is what must not get through to the page as it is: HTML, quotes, control characters, a change of direction.
const nasty = "<script>alert('1')</script>\"' onload=x \u202eabc\u0007"

func (s *site) enqueue(sub jobs.Submission) jobs.Job {
	s.t.Helper()
	out, err := s.queue.Enqueue(s.t.Context(), sub)
	if err != nil {
		s.t.Fatal(err)
	}
	return out.Job
}

// fail submits a job and lets a worker fail it.
func (s *site) fail(function, key, why string) jobs.Job {
	s.t.Helper()
	return s.failAs(jobs.Submission{Function: function, Key: key}, why)
}

// failAs submits a job and lets a worker fail it.
func (s *site) failAs(sub jobs.Submission, why string) jobs.Job {
	s.t.Helper()
	s.enqueue(sub)
	got, err := s.queue.Claim(s.t.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{sub.Function}})
	if err != nil || len(got) != 1 {
		s.t.Fatal(len(got), err)
	}
	j, err := s.queue.Finish(s.t.Context(), jobs.Finish{ID: got[0].ID, Token: got[0].Lease.Token, State: jobs.Failed, Error: why})
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// The page of functions shows how long the oldest job waits, since when a function is paused, the room that jobs take, and
// which counts are lower bounds.
func TestFunctionsShowAgesAndRoom(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "f"})
	if err := s.queue.Pause(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, "Oldest waits") || !regexp.MustCompile(`Room: \d+ bytes of 512`).MatchString(a.body) {
		t.Errorf("no room or age: %s", a.body)
	}
	if a := s.get("/ui/jobs?function=f"); !strings.Contains(a.body, "since <time") || !strings.Contains(a.body, "the oldest for ") {
		t.Errorf("the function's page: %s", a.body)
	}
	f := functionRow{Function: jobs.Function{AtLeast: true}}
	if got := f.Count(1000) + ", " + f.Count(0); got != "at least "+num(1000)+", 0" {
		t.Error(got)
	}
}

// The page of a job lists the errors of its attempts.
func TestJobPageListsTheErrorsOfAttempts(t *testing.T) {
	s := newSite(t, siteOptions{})
	j := s.enqueue(jobs.Submission{Function: "f", Event: "paper.out", Timeout: 90 * time.Second, ExpiresIn: time.Hour, DeadIfExpired: true})
	now := time.Duration(0)
	for _, why := range []string{"no paper", nasty} {
		got, err := s.queue.Claim(t.Context(), jobs.ClaimRequest{Worker: "printer"})
		if err != nil || len(got) != 1 {
			t.Fatal(len(got), err)
		}
		if _, err := s.queue.Retry(t.Context(), jobs.Retry{ID: j.ID, Token: got[0].Lease.Token, Delay: &now, Error: why}); err != nil {
			t.Fatal(err)
		}
	}
	a := s.get("/ui/jobs/" + j.ID)
	for _, fact := range []string{"<dt>Expires</dt>", ", as a dead letter", "<dt>Longest attempt</dt><dd>90 seconds", "<dt>Event</dt><dd><bdi>paper.out"} {
		if !strings.Contains(a.body, fact) {
			t.Errorf("the page lacks %s: %s", fact, a.body)
		}
	}
	if a.status != 200 || !strings.Contains(a.body, "Errors of its attempts") || !strings.Contains(a.body, "no paper") || strings.Count(a.body, "printer") != 2 ||
		strings.Contains(a.body, "<script>alert") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// Lists show when jobs expire and which event made them, and have a place for those that expired.
func TestListsShowDeadlinesAndEvents(t *testing.T) {
	s := newSite(t, siteOptions{})
	j := s.enqueue(jobs.Submission{Function: "f", Event: "paper.out", ExpiresIn: time.Hour, Owner: "shop", ConcurrencyKey: "acme", Timeout: time.Minute})
	if got := text(s.get("/ui/jobs?function=f&state=queued").body); !strings.Contains(got, "event paper.out") || !strings.Contains(got, "expires in ") {
		t.Errorf("the list: %s", got)
	}
	a := s.get("/ui/jobs/" + j.ID)
	for _, link := range []string{`href="./../jobs?submitter=shop"`, `href="./../jobs?concurrency_key=acme"`} {
		if !strings.Contains(a.body, link) {
			t.Errorf("the job's page lacks %s: %s", link, a.body)
		}
	}
	s.now.Add(2 * time.Hour)
	if _, err := s.queue.RunDuties(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := s.get("/ui/jobs?state=expired"); fmt.Sprint(listed(a.body)) != "["+j.ID+"]" || strings.Contains(text(a.body), "expires") {
		t.Errorf("the expired jobs: %s", text(a.body))
	}
	if got := text(s.get("/ui/jobs").body); !strings.Contains(got, "0 failed, and 1 expired before an attempt.") {
		t.Errorf("the page of the jobs: %s", got)
	}
	s.enqueue(jobs.Submission{Function: "f", Timeout: time.Minute})
	running := s.run("w")
	if got := text(s.get("/ui/jobs/" + running.ID).body); !strings.Contains(got, "Latest end of the attempt") || !strings.Contains(got, "Longest attempt 1 minute") {
		t.Errorf("a running job: %s", got)
	}
}

// The page of a job shows how far its batch is, and of a callback when it runs.
func TestJobPageShowsTheBatch(t *testing.T) {
	s := newSite(t, siteOptions{})
	p, err := s.queue.PrepareBatch([]jobs.Submission{{Function: "f", ID: "one"}, {Function: "f", ID: "two"}}, &jobs.Submission{Function: "end", ID: "last"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Update(t.Context(), func(tx store.Tx) error {
		_, _, err := s.queue.EnqueueBatchTx(tx, p)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.queue.Cancel(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	for id, due := range map[string]bool{"two": true, "last": false} {
		a := s.get("/ui/jobs/" + id)
		if !strings.Contains(a.body, "1 of 2 jobs have not ended; 0 complete, 0 failed, 1 cancelled, 0 expired") || strings.Contains(a.body, "when all jobs of its batch have ended") == due {
			t.Errorf("%s: %s", id, a.body)
		}
	}
	if a := s.get("/ui/jobs?state=scheduled"); !strings.Contains(a.body, "after its batch") || strings.Contains(a.body, "9999") {
		t.Errorf("the list: %s", a.body)
	}
}

func (s *site) wantState(id string, want jobs.State) {
	s.t.Helper()
	if j, err := s.queue.Get(s.t.Context(), id); err != nil || j.State != want {
		s.t.Errorf("job %s is %v, %v; want %v", id, j.State, err, want)
	}
}

var fieldValue = regexp.MustCompile(` value="[^"]*"`)

func TestJobsEscapeWhatTheyShow(t *testing.T) {
	s := newSite(t, siteOptions{})
	payload, err := json.Marshal(nasty)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.NewReplacer(" ", "_", "\u202e", "", "\u0007", "").Replace(nasty)
	j := s.enqueue(jobs.Submission{Function: "mail.send", Key: key, Payload: []byte(`{"a":` + string(payload) + `,"b":"` + "\u202e" + `"}`)})
	failed := s.fail("other", "", nasty)
	for _, path := range []string{"/ui/jobs", "/ui/jobs?function=mail.send", "/ui/jobs?key=" + url.QueryEscape(key), "/ui/jobs?key=" + url.QueryEscape(nasty),
		"/ui/jobs/" + j.ID, "/ui/jobs/" + failed.ID, "/ui/jobs?state=failed", "/ui/jobs?function=" + url.QueryEscape(nasty), "/ui/jobs?state=" + url.QueryEscape(nasty),
		"/ui/jobs?function=f&cursor=" + url.QueryEscape(nasty), "/ui/jobs/" + url.PathEscape(nasty), "/ui/ledger?key=" + url.QueryEscape(nasty) + "&scope=" + url.QueryEscape(nasty)} {
		a := s.get(path)
		a.body = fieldValue.ReplaceAllString(a.body, "") // a field has the text as it is, and its own direction
		if a.status >= 500 || strings.Contains(a.body, "<script>alert") || strings.ContainsAny(a.body, "\u202e\u0007") || strings.Contains(a.body, "\"' onload") {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
	a := s.submit("/ui/jobs/"+j.ID, "/ui/jobs/"+j.ID+"/reveal", nil)
	if a.status != 200 || strings.Contains(a.body, "<script>alert") || strings.ContainsAny(a.body, "\u202e\u0007") || !strings.Contains(a.body, "\\u202e") {
		t.Errorf("reveal: status %d: %s", a.status, a.body)
	}
}

func TestPayloadsAreHiddenUntilAskedFor(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	j := s.enqueue(jobs.Submission{Function: "f", Payload: []byte(`{"card":"4242"}`)})
	for _, path := range []string{"/ui/jobs/" + j.ID, "/ui/jobs?function=f", "/ui/jobs?key=" + j.ID, "/ui/jobs/" + j.ID + "/reveal"} {
		if a := s.get(path); strings.Contains(a.body, "4242") {
			t.Errorf("%s shows the payload", path)
		}
	}
	if a := s.post("/ui/jobs/"+j.ID+"/reveal", nil); a.status != 403 || strings.Contains(a.body, "4242") || strings.Contains(s.audit.String(), "shown") {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	if a := s.submit("/ui/jobs/"+j.ID, "/ui/jobs/"+j.ID+"/reveal", nil); a.status != 200 || !strings.Contains(a.body, "4242") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if log := s.audit.String(); !strings.Contains(log, "payload and result of a job shown") || !strings.Contains(log, j.ID) || !strings.Contains(log, "token=1") {
		t.Errorf("audit log: %s", log)
	}
}

func TestJobActions(t *testing.T) {
	s := newSite(t, siteOptions{})
	queued := s.enqueue(jobs.Submission{Function: "f"})
	page := "/ui/jobs/" + queued.ID
	for _, action := range []string{"/cancel", "/retry", "/replay"} {
		if a := s.post(page+action, nil); a.status != 403 {
			t.Errorf("%s without CSRF token: status %d", action, a.status)
		}
	}
	s.wantState(queued.ID, jobs.Queued)
	if a := s.submit(page, page+"/retry", nil); a.status != 409 {
		t.Errorf("retry of a queued job: status %d", a.status)
	}
	if a := s.submit(page, page+"/cancel", nil); a.status != 303 || a.header.Get("Location") != "./../../jobs/"+queued.ID+"?done=cancelled" {
		t.Errorf("cancel: status %d, %s", a.status, a.header.Get("Location"))
	}
	s.wantState(queued.ID, jobs.Cancelled)
	if a := s.get(page + "?done=cancelled"); !strings.Contains(a.body, "The job is cancelled") {
		t.Error("the page does not say what was done")
	}
	s.submit(page, page+"/retry", nil)
	s.wantState(queued.ID, jobs.Queued)
	for path, status := range map[string]int{"/ui/jobs/none": 404, "/ui/jobs/a%2Fb": 404} {
		if a := s.get(path); a.status != status {
			t.Errorf("%s: status %d, want %d", path, a.status, status)
		}
	}

	dead := s.fail("g", "order-1", "the mail server said no")
	if a := s.get("/ui/jobs?function=g&state=gone"); a.status != 400 || !strings.Contains(a.body, "cancelled, replayed, expired.") {
		t.Errorf("an unknown state: %d %s", a.status, a.body)
	}
	list := s.get("/ui/jobs?function=g&state=failed")
	if !strings.Contains(list.body, dead.ID) || !strings.Contains(list.body, "the mail server said no") {
		t.Errorf("dead letters: %s", list.body)
	}
	if a := s.submit("/ui/jobs/"+dead.ID, "/ui/jobs/"+dead.ID+"/replay", nil); a.status != 303 {
		t.Errorf("replay: status %d: %s", a.status, a.body)
	}
	if a := s.get("/ui/jobs?function=g&state=failed"); strings.Contains(a.body, dead.ID) {
		t.Error("the dead letter stays")
	}
	if a := s.get("/ui/jobs?function=g&state=queued"); !strings.Contains(a.body, "order-1") {
		t.Error("no copy is queued")
	}

	if a := s.submit("/ui/jobs?function=g", "/ui/jobs/pause", url.Values{"function": {"g"}}); a.status != 303 {
		t.Errorf("pause: status %d", a.status)
	}
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, ">paused<") {
		t.Errorf("not paused: %s", a.body)
	}
	s.submit("/ui/jobs?function=g", "/ui/jobs/resume", url.Values{"function": {"g"}})
	if a := s.get("/ui/jobs"); strings.Contains(a.body, ">paused<") {
		t.Error("still paused")
	}
	for _, what := range []string{"job cancelled", "job retried", "job replayed", "function paused", "function resumed"} {
		if !strings.Contains(s.audit.String(), what) {
			t.Errorf("the audit log lacks %q", what)
		}
	}
}

func TestBulkActionsAskFirst(t *testing.T) {
	s := newSite(t, siteOptions{})
	var ids []string
	for i := range 3 {
		ids = append(ids, s.fail("f", fmt.Sprint("k", i), "no").ID)
	}
	const list = "/ui/jobs?function=f&state=failed"
	form := url.Values{"action": {"replay"}, "id": slices.Clone(ids[:2]), "function": {"f"}, "state": {"failed"}}
	if a := s.post("/ui/jobs/bulk", form); a.status != 403 {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	a := s.submit(list, "/ui/jobs/bulk", form)
	if a.status != 200 || !strings.Contains(a.body, "Replay 2 jobs?") {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	for _, id := range ids {
		s.wantState(id, jobs.Failed)
	}
	form.Set("confirm", "yes")
	form["id"] = append(form["id"], "gone")
	a = s.submit(list, "/ui/jobs/bulk", form)
	if a.status != 200 || !strings.Contains(a.body, "2 of 3 jobs replayed") || !strings.Contains(a.body, "gone") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if a := s.get(list); !strings.Contains(a.body, ids[2]) || strings.Contains(a.body, ids[0]) {
		t.Errorf("list of %v: %s", ids, a.body)
	}

	a = s.submit(list, "/ui/jobs/bulk", url.Values{"action": {"cancel"}, "all": {"yes"}, "function": {"f"}, "state": {"queued"}})
	if !strings.Contains(a.body, "Cancel 2 jobs?") {
		t.Errorf("all: %s", a.body)
	}
	for name, bad := range map[string]url.Values{"nothing": {"action": {"retry"}}, "no action": {"id": ids}, "another action": {"action": {"explode"}, "id": ids}} {
		if a := s.submit(list, "/ui/jobs/bulk", bad); a.status != 400 {
			t.Errorf("%s: status %d", name, a.status)
		}
	}
}

func TestListsOfJobsArePaged(t *testing.T) {
	s := newSite(t, siteOptions{})
	const n = 2*jobsPerPage + 7
	for i := range n {
		s.enqueue(jobs.Submission{Function: "f", ID: fmt.Sprintf("job-%03d", i), Key: fmt.Sprintf("key-%03d", i), Delay: time.Duration(i+1) * time.Hour})
	}
	seen, pages := 0, 0
	for path := "/ui/jobs?function=f&state=scheduled"; path != ""; {
		a := s.get(path)
		rows := strings.Count(a.body, `class="id" href=`)
		if rows > jobsPerPage {
			t.Fatalf("%d rows", rows)
		}
		seen, pages, path = seen+rows, pages+1, ""
		if _, rest, ok := strings.Cut(a.body, `<a class="button quiet" href="./jobs?cursor=`); ok {
			query, _, _ := strings.Cut(rest, `"`)
			path = "/ui/jobs?cursor=" + strings.ReplaceAll(query, "&amp;", "&")
		}
	}
	if seen != n || pages != 3 {
		t.Errorf("%d jobs on %d pages", seen, pages)
	}
	for _, key := range []string{"job-099", "key-099"} {
		if a := s.get("/ui/jobs?key=" + key); strings.Count(a.body, `class="id" href=`) != 1 || !strings.Contains(a.body, "job-099") {
			t.Errorf("search for %s: %s", key, a.body)
		}
	}
}

func TestReadersChangeNothing(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.ui.opts.Auth = certificatesOnly(t)
	j := s.enqueue(jobs.Submission{Function: "f", Payload: []byte(`"4242"`)})
	for _, path := range []string{"/ui/", "/ui/jobs", "/ui/jobs?function=f", "/ui/jobs/" + j.ID} {
		if a := s.get(path); a.status != 200 || strings.Contains(a.body, `method="post"`) {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
	for _, path := range []string{"/cancel", "/reveal"} {
		if a := s.post("/ui/jobs/"+j.ID+path, url.Values{"csrf": {s.ui.csrf(nil)}}); a.status != 403 || strings.Contains(a.body, "4242") {
			t.Errorf("%s: status %d", path, a.status)
		}
	}
	s.wantState(j.ID, jobs.Queued)
}

// A browser that sends the form of a retry again runs no job once more that failed again meanwhile.
func TestRetriesRunOnceForAForm(t *testing.T) {
	s := newSite(t, siteOptions{})
	one := s.failAs(jobs.Submission{Function: "f"}, "no paper")
	// failAgain lets the job that was retried fail once more.
	failAgain := func() {
		t.Helper()
		s.now.Add(time.Second)
		got, err := s.queue.Claim(t.Context(), jobs.ClaimRequest{Worker: "w"})
		if err != nil || len(got) != 1 {
			t.Fatal(len(got), err)
		}
		if _, err := s.queue.Finish(t.Context(), jobs.Finish{ID: one.ID, Token: got[0].Lease.Token, State: jobs.Failed, Error: "no paper"}); err != nil {
			t.Fatal(err)
		}
	}
	_, retry, _ := strings.Cut(s.get("/ui/jobs/"+one.ID).body, "/retry\">")
	form := fieldsOf("<main" + retry)
	if a := s.post("/ui/jobs/"+one.ID+"/retry", form); a.status != 303 {
		t.Fatalf("retry: status %d: %s", a.status, text(a.body))
	}
	failAgain()
	if a := s.post("/ui/jobs/"+one.ID+"/retry", form); a.status != 409 {
		t.Errorf("the form again: status %d: %s", a.status, text(a.body))
	}
	s.wantState(one.ID, jobs.Failed)
	form.Set("ended_by", "now")
	if a := s.post("/ui/jobs/"+one.ID+"/retry", form); a.status != 400 {
		t.Errorf("a bad time: status %d: %s", a.status, text(a.body))
	}

	for what, choice := range map[string]url.Values{"all": {"all": {"yes"}}, "chosen": {"id": {one.ID}}} {
		choice.Set("action", "retry")
		choice.Set("function", "f")
		choice.Set("state", "failed")
		confirm := fieldsOf(s.submit("/ui/jobs?function=f&state=failed", "/ui/jobs/bulk", choice).body)
		if a := s.post("/ui/jobs/bulk", confirm); !strings.Contains(a.body, "1 of 1 jobs retried") {
			t.Fatalf("%s: status %d: %s", what, a.status, text(a.body))
		}
		failAgain()
		if a := s.post("/ui/jobs/bulk", confirm); !strings.Contains(a.body, "0 of 1 jobs retried") {
			t.Errorf("%s, the form again: status %d: %s", what, a.status, text(a.body))
		}
		s.wantState(one.ID, jobs.Failed)
	}
}

// TestBulkActionsGoOn: a list that is longer than one action is worked off by one confirmation for each part of it, also if the
// jobs stay in the list.
func TestBulkActionsGoOn(t *testing.T) {
	for _, state := range []string{"queued", "active"} {
		t.Run(state, func(t *testing.T) { testBulkActionsGoOn(t, state) })
	}
}

func testBulkActionsGoOn(t *testing.T, state string) {
	s := newSite(t, siteOptions{})
	const n = 2*maxBulk + 5
	for i := range n {
		s.enqueue(jobs.Submission{Function: "f", ID: fmt.Sprintf("job-%04d", i)})
	}
	for claimed := 0; state == "active" && claimed < n; {
		got, err := s.queue.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		claimed += len(got)
	}
	list := "/ui/jobs?function=f&state=" + state
	all := url.Values{"action": {"cancel"}, "all": {"yes"}, "function": {"f"}, "state": {state}}
	met := map[string]bool{}
	for part := range 3 {
		count := min(maxBulk, n-part*maxBulk)
		a := s.submit(list, "/ui/jobs/bulk", maps.Clone(all))
		if !strings.Contains(a.body, fmt.Sprintf("Cancel %d jobs?", count)) {
			t.Fatalf("part %d: %s", part, a.body)
		}
		form := fieldsOf(a.body)
		if form.Get("confirm") != "yes" || len(form["id"]) != count {
			t.Fatalf("part %d: the form has %d ids", part, len(form["id"]))
		}
		for _, id := range form["id"] {
			met[id] = true
		}
		a = s.post("/ui/jobs/bulk", form)
		if !strings.Contains(a.body, fmt.Sprintf("%d of %d jobs cancelled", count, count)) {
			t.Fatalf("part %d: %s", part, a.body)
		}
		if goesOn := strings.Contains(a.body, "Go on with the next ones"); goesOn != (part < 2) {
			t.Errorf("part %d: more follows: %v", part, goesOn)
		} else if goesOn {
			if all = fieldsOf(a.body); all.Get("confirm") != "" || all.Has("id") {
				t.Fatalf("the form for the next part: %v", all)
			}
		}
	}
	if len(met) != n {
		t.Errorf("%d of %d jobs had their turn", len(met), n)
	}
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)

// fieldsOf returns the hidden fields of the form of a page's content.
func fieldsOf(page string) url.Values {
	_, page, _ = strings.Cut(page, "<main")
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(page, -1) {
		form.Add(m[1], m[2])
	}
	return form
}

// TestBulkActionOnLongIDs: the form of the largest action on the longest ids is not too large, however they are encoded.
func TestBulkActionOnLongIDs(t *testing.T) {
	s := newSite(t, siteOptions{})
	form := url.Values{"action": {"replay"}, "function": {"f"}, "state": {"failed"}}
	for i := range maxBulk {
		form["id"] = append(form["id"], fmt.Sprint(strings.Repeat(":", jobs.MaxIDBytes-4), 1000+i))
	}
	if a := s.submit("/ui/jobs?function=f&state=failed", "/ui/jobs/bulk", form); a.status != 200 || !strings.Contains(a.body, "Replay 1000 jobs?") {
		t.Errorf("status %d: %.2000s", a.status, a.body)
	}
}
