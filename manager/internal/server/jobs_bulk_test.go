package server

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// fail submits a job and lets a worker fail it.
func (j *jobSite) fail(submission, why string) (id string) {
	j.t.Helper()
	id = j.call(202, "POST", "/v1/jobs", submission)["id"].(string)
	claimed, token, _ := j.claimOne()
	if claimed != id {
		j.t.Fatalf("claimed %s, want %s", claimed, id)
	}
	j.call(200, "POST", "/v1/jobs/"+id+"/finish", `{"lease_token":"`+token+`","status":"failed","error":"`+why+`"}`)
	return id
}

func TestJobsAreDeleted(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	const submission = `{"function":"f","id":"a","key":"k"}`
	j.call(202, "POST", "/v1/jobs", submission, "idempotency-key", "once")
	if got := j.call(200, "DELETE", "/v1/jobs/a", ""); got["id"] != "a" || got["state"] != "queued" {
		t.Errorf("delete: %v", got)
	}
	j.wantCode(404, api.CodeNotFound, "GET", "/v1/jobs/a", "")
	j.wantCode(404, api.CodeNotFound, "DELETE", "/v1/jobs/a", "")
	// The submission's answer stays, so that its retry does not run the work.
	if a := j.Do("POST", "/v1/jobs", "application/json", submission, "idempotency-key", "once"); a.Status != 202 || a.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the submission again: %d %s", a.Status, a.Body)
	}
	j.wantCode(404, api.CodeNotFound, "GET", "/v1/jobs/a", "")
	j.call(202, "POST", "/v1/jobs", submission) // the key is free
	_, token, _ := j.claimOne()
	if detail := j.wantCode(409, api.CodeConflict, "DELETE", "/v1/jobs/a", ""); !strings.Contains(detail, "active") {
		t.Errorf("a running job: %s", detail)
	}
	j.call(200, "POST", "/v1/jobs/a/finish", `{"lease_token":"`+token+`","status":"failed"}`)
	if got := j.call(200, "DELETE", "/v1/jobs/a", ""); got["state"] != "failed" {
		t.Errorf("a dead letter: %v", got)
	}
	j.wantCode(400, api.CodeInvalidRequest, "DELETE", "/v1/jobs/a?x=1", "")
}

func TestManyJobsAreChangedByAFilter(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	const n = 5
	for i := range n {
		j.call(202, "POST", "/v1/jobs", fmt.Sprintf(`{"function":"f","id":"f%d","key":"f%d"}`, i, i))
		j.call(202, "POST", "/v1/jobs", `{"function":"g","delay_ms":1000}`)
	}
	// all repeats the call with the cursor, and sums up.
	all := func(fields string) (matched, done float64, refused []any) {
		t.Helper()
		for cursor, calls := "", 0; ; calls++ {
			got := j.call(200, "POST", "/v1/jobs/bulk", `{`+fields+`,"limit":2,"cursor":"`+cursor+`"}`)
			matched, done, refused = matched+got["matched"].(float64), done+got["done"].(float64), append(refused, got["refused"].([]any)...)
			if cursor = got["cursor"].(string); cursor == "" || calls > n {
				return matched, done, refused
			}
		}
	}
	if matched, done, refused := all(`"action":"cancel","function":"f","state":"queued","dry_run":true`); matched != n || done != 0 || len(refused) != 0 {
		t.Errorf("dry run: %v %v %v", matched, done, refused)
	}
	if matched, done, _ := all(`"action":"cancel","function":"f","state":"queued","older_than_ms":3600000`); matched != 0 || done != 0 {
		t.Errorf("of an hour ago: %v %v", matched, done)
	}
	if matched, done, refused := all(`"action":"cancel","function":"f","state":"queued"`); matched != n || done != n || len(refused) != 0 {
		t.Errorf("cancel: %v %v %v", matched, done, refused)
	}
	j.call(202, "POST", "/v1/jobs", `{"function":"h","key":"f3","delay_ms":1000}`)
	matched, done, refused := all(`"action":"retry","function":"f","state":"cancelled"`)
	if matched != n || done != n-1 || len(refused) != 1 {
		t.Fatalf("retry: %v %v %v", matched, done, refused)
	}
	if r := refused[0].(map[string]any); r["id"] != "f3" || r["problem"].(map[string]any)["code"] != "duplicate-key" {
		t.Errorf("refused: %v", r)
	}
	if _, done, _ := all(`"action":"delete","function":"f","state":"queued"`); done != n-1 {
		t.Errorf("the queue has not been emptied: %v", done)
	}
	if got := j.call(200, "GET", "/v1/jobs?function=f", "")["jobs"].([]any); len(got) != 1 {
		t.Errorf("left of f: %v", got)
	}

	for i := range 3 {
		j.fail(`{"function":"dead"}`, fmt.Sprintf("order %d is unknown", 1000+i))
	}
	j.fail(`{"function":"dead"}`, "")
	if got := j.call(200, "GET", "/v1/jobs?state=failed&error=order+7777+is+unknown&older_than_ms=&submitter=", "")["jobs"].([]any); len(got) != 3 {
		t.Errorf("of one kind of error: %v", got)
	}
	if _, done, _ := all(`"action":"replay","function":"dead","state":"failed","error":"order # is unknown"`); done != 3 {
		t.Errorf("replayed %v", done)
	}
	if got := j.call(200, "GET", "/v1/functions/dead/dead-letters", "")["dead_letters"].([]any); len(got) != 1 || got[0].(map[string]any)["reason"] != "the worker gave no reason" {
		t.Errorf("left of the dead letters: %v", got)
	}
	if n := j.queue.Counters().Deleted; n != 4 {
		t.Errorf("%d deletes are counted", n)
	}
}

func TestBulkRequestsAreReadStrictly(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	for field, body := range map[string]string{
		"action: is missing": `{}`, "action: \\\"explode\\\"": `{"action":"explode","state":"queued"}`, "action: \\\"\\\"": `{"action":"","state":"queued"}`,
		"state: is missing; allowed: scheduled, queued, active for cancel": `{"action":"cancel"}`, "state: \\\"failed\\\"": `{"action":"cancel","state":"failed"}`,
		"state: \\\"dead\\\"": `{"action":"replay","state":"dead"}`, "function": `{"action":"cancel","state":"queued","function":""}`, "submitter": `{"action":"cancel","state":"queued","submitter":""}`,
		"error": `{"action":"cancel","state":"queued","error":""}`, "limit": `{"action":"cancel","state":"queued","limit":0}`, "older_than_ms": `{"action":"cancel","state":"queued","older_than_ms":-1}`,
		`newer_than_ms: \"0\": must be at least 1`:                                              `{"action":"cancel","state":"queued","newer_than_ms":0}`,
		"newer_than_ms: 60000 is not allowed; allowed: more than older_than_ms, which is 60000": `{"action":"cancel","state":"queued","older_than_ms":60000,"newer_than_ms":60000}`,
		"dry_run": `{"action":"cancel","state":"queued","dry_run":1}`, "cursor": `{"action":"cancel","state":"queued","cursor":"!"}`, "ids": `{"action":"cancel","state":"queued","ids":[]}`,
	} {
		a := j.Do("POST", "/v1/jobs/bulk", "application/json", body)
		if a.Status != 400 || !strings.Contains(a.Body, field) {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	for _, query := range []string{"older_than_ms=x", "older_than_ms=-1", "newer_than_ms=1.5", "newer_than_ms=0", "newer_than_ms=10&older_than_ms=10", "submitter=" + strings.Repeat("x", 129)} {
		j.wantCode(400, api.CodeInvalidRequest, "GET", "/v1/jobs?"+query, "")
	}
}

// A list and a bulk action take the same filters.
func TestFiltersSelectJobs(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.fail(`{"function":"f","id":"a","key":"order 1","concurrency_key":"acme"}`, "HTTP 503 of the mail server")
	j.fail(`{"function":"f","id":"b","concurrency_key":"umbrella"}`, "no paper")
	for _, c := range []struct{ query, body, want string }{
		{"key=order+1", `"key":"order 1"`, "[a]"},
		{"key=order", `"key":"order"`, "[]"},
		{"concurrency_key=acme", `"concurrency_key":"acme"`, "[a]"},
		{"error_text=PAPER", `"error_text":"PAPER"`, "[b]"},
		{"error_text=http+503&concurrency_key=umbrella", `"error_text":"http 503","concurrency_key":"umbrella"`, "[]"},
		{"newer_than_ms=3600000", `"newer_than_ms":3600000`, "[a b]"},
		{"newer_than_ms=7200000&older_than_ms=3600000", `"newer_than_ms":7200000,"older_than_ms":3600000`, "[]"},
		{"key=&concurrency_key=&error_text=", `"key":null,"concurrency_key":null,"error_text":null`, "[a b]"},
	} {
		ids := []string{}
		for _, job := range j.call(200, "GET", "/v1/jobs?"+c.query, "")["jobs"].([]any) {
			ids = append(ids, job.(map[string]any)["id"].(string))
		}
		if fmt.Sprint(ids) != c.want {
			t.Errorf("%s: %v, want %s", c.query, ids, c.want)
		}
		if got := j.call(200, "POST", "/v1/jobs/bulk", `{"action":"retry","state":"failed","dry_run":true,`+c.body+`}`); got["matched"] != float64(len(ids)) {
			t.Errorf("%s: %v, want %d", c.body, got, len(ids))
		}
	}
	long := strings.Repeat("x", jobs.MaxErrorTextBytes+1)
	for field, value := range map[string]string{"key": " k", "concurrency_key": "k ", "error_text": long} {
		status, code := 400, api.CodeInvalidRequest
		if field == "error_text" {
			status, code = 413, api.CodeTooLarge
		}
		for _, detail := range []string{
			j.wantCode(status, code, "GET", "/v1/jobs?"+field+"="+url.QueryEscape(value), ""),
			j.wantCode(status, code, "POST", "/v1/jobs/bulk", `{"action":"retry","state":"failed","`+field+`":"`+value+`"}`),
		} {
			if !strings.Contains(detail, "field "+field+":") {
				t.Errorf("%s: %s", field, detail)
			}
		}
		j.wantCode(400, api.CodeInvalidRequest, "POST", "/v1/jobs/bulk", `{"action":"retry","state":"failed","`+field+`":""}`)
	}
}

// Operators change many jobs, and only administrators delete them.
func TestOnlyAdministratorsDeleteJobs(t *testing.T) {
	s := newRoleSite(t, columns...)
	s.as("submitter", 202, "POST", "/v1/jobs", `{"function":"f","id":"a"}`)
	s.as("operator", 200, "POST", "/v1/jobs/bulk", `{"action":"cancel","state":"queued"}`)
	s.as("operator", 403, "POST", "/v1/jobs/bulk", `{"action":"delete","state":"cancelled"}`)
	s.as("operator", 403, "DELETE", "/v1/jobs/a", "")
	owner, _ := s.as("operator", 200, "GET", "/v1/jobs/a", "")["submitter"].(string)
	if owner == "" {
		t.Fatal("an operator does not see the submitter")
	}
	s.as("submitter", 202, "POST", "/v1/jobs", `{"function":"f","id":"b"}`)
	claimed := s.as("worker", 200, "POST", "/v1/jobs/claim", `{"worker":"w"}`)["jobs"].([]any)[0].(map[string]any)
	done := s.as("worker", 200, "POST", "/v1/jobs/b/finish", `{"lease_token":"`+claimed["lease"].(map[string]any)["token"].(string)+`","status":"complete"}`)
	if claimed["submitter"] != nil || done["submitter"] != nil {
		t.Errorf("a worker sees the submitter: %v %v", claimed, done)
	}
	for who, want := range map[string]float64{"nobody": 0, owner: 1} {
		if got := s.as("admin", 200, "POST", "/v1/jobs/bulk", `{"action":"delete","state":"cancelled","submitter":"`+who+`"}`); got["done"] != want {
			t.Errorf("jobs of %q: %v", who, got)
		}
	}
}
