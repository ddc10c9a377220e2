package server

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

func TestBatchIsSubmittedOnce(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	const body = `{"jobs":[{"function":"f","payload":{"a":1}},{"function":"f","id":"two"}],"callback":{"function":"end"}}`
	first := j.Do("POST", "/v1/batches", "application/json", body, "idempotency-key", "k")
	if first.Status != 202 || gjson.Get(first.Body, "total").Int() != 2 || gjson.Get(first.Body, "jobs.1").String() != "two" || gjson.Get(first.Body, "jobs.#").Int() != 2 {
		t.Fatalf("%+v", first)
	}
	again := j.Do("POST", "/v1/batches", "application/json", strings.ReplaceAll(body, `{"a":1}`, `{"a": 1.0}`), "idempotency-key", "k")
	if again.Body != first.Body || again.Header.Get(api.HeaderReplayed) != "true" {
		t.Errorf("again: %+v", again)
	}
	j.wantCode(422, api.CodeFingerprintMismatch, "POST", "/v1/batches", `{"jobs":[{"function":"f"}]}`, "idempotency-key", "k")
	if d := j.depth(); d.Queued != 2 || d.Scheduled != 1 {
		t.Errorf("depth %+v", d)
	}
	id := gjson.Get(first.Body, "id").String()
	if end := j.call(200, "GET", "/v1/jobs/"+gjson.Get(first.Body, "callback").String(), ""); end["state"] != "scheduled" || end["run_at"] != nil {
		t.Errorf("the callback before the end: %v", end)
	}
	for range 2 {
		job, token, _ := j.claimOne()
		j.call(200, "POST", "/v1/jobs/"+job+"/finish", `{"lease_token":"`+token+`","status":"failed"}`)
	}
	if b := j.text("GET", "/v1/batches/"+id+"?wait_ms=60000", ""); gjson.Get(b, "failed").Int() != 2 || gjson.Get(b, "finished_at").String() == "" {
		t.Errorf("batch %s", b)
	}
	if job, _, end := j.claimOne(); job != gjson.Get(first.Body, "callback").String() || end["after"] != id {
		t.Errorf("callback %v", end)
	}
	if page := j.text("GET", "/v1/batches?limit=1", ""); gjson.Get(page, "batches.#.id").Raw != `["`+id+`"]` {
		t.Errorf("page %s", page)
	}
	for field, body := range map[string]string{
		"jobs": `{"jobs":[]}`, "jobs[0]": `{"jobs":[1]}`, "jobs[1].priority": `{"jobs":[{"function":"f"},{"function":"f","priority":"high"}]}`,
		"jobs[0].function": `{"jobs":[{"function":"a b"}]}`, "callback.delay_ms": `{"jobs":[{"function":"f"}],"callback":{"function":"f","delay_ms":-1}}`,
		"callback": `{"jobs":[{"function":"f"}],"callback":[]}`, "name": `{"jobs":[{"function":"f"}],"name":"x"}`,
	} {
		j.wantField(field, "POST", "/v1/batches", body)
	}
	j.wantCode(404, api.CodeNotFound, "GET", "/v1/batches/none", "")
}

// A submitter reads its own batches.
func TestWhoReadsBatches(t *testing.T) {
	s := newRoleSite(t, "submitter", "submitter worker:x", "operator")
	id := s.as("submitter", 202, "POST", "/v1/batches", `{"jobs":[{"function":"f"}]}`)["id"].(string)
	for words, want := range map[string]int{"submitter": 200, "submitter worker:x": 403, "operator": 200} {
		s.as(words, want, "GET", "/v1/batches/"+id, "")
	}
	s.as("submitter", 403, "GET", "/v1/batches", "")
}
