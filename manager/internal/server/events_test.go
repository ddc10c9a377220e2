package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// text makes a call, expects the status 200 and returns the answer as it came.
func (j *jobSite) text(method, path, body string) string {
	j.t.Helper()
	a := j.Do(method, path, "application/json", body)
	if a.Status != 200 {
		j.t.Fatalf("%s %s: %+v", method, path, a)
	}
	return a.Body
}

// wantField expects a problem that names the field.
func (j *jobSite) wantField(field, method, path, body string, header ...string) {
	j.t.Helper()
	code := api.CodeInvalidRequest
	if field == "key" {
		code = api.CodeInvalidKey
	}
	if detail := j.wantCode(400, code, method, path, body, header...); !strings.HasPrefix(detail, "field "+field+":") && !strings.HasPrefix(detail, field+":") {
		j.t.Errorf("%s %s %.100s: %s", method, path, body, detail)
	}
}

func TestEventIsSentOnce(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	send := func(body string, header ...string) httpdtest.Answer {
		t.Helper()
		return j.Do("POST", "/v1/events/paid", "application/json", body, header...)
	}
	if a := send(`{"payload":1}`, "idempotency-key", "early"); a.Status != 200 || a.Body != `{"event":"paid","jobs":[]}` {
		t.Errorf("without a subscription: %+v", a)
	}
	for _, f := range []string{"receipt", "audit"} {
		j.call(200, "PUT", "/v1/events/paid/subscriptions/"+f, "")
	}
	first := send(`{"payload":{"order": 17}}`, "idempotency-key", "k")
	if first.Status != 202 || gjson.Get(first.Body, "jobs.#.function").Raw != `["audit","receipt"]` {
		t.Fatalf("first: %+v", first)
	}
	j.call(200, "PUT", "/v1/events/paid/subscriptions/late", "{}")
	for body, header := range map[string]string{
		`{"payload":{"order":17}}`:             `"k"`,
		`{"payload":{"order":17.0},"key":"k"}`: "",
		`{"key":"k","payload":{"order":17}}`:   "k",
	} {
		var headers []string
		if header != "" {
			headers = []string{"idempotency-key", header}
		}
		if a := send(body, headers...); a.Status != 202 || a.Body != first.Body || a.Header.Get(api.HeaderReplayed) != "true" {
			t.Errorf("retry with %s and %q: %+v", body, header, a)
		}
	}
	if a := send(`{"payload":1}`, "idempotency-key", "early"); a.Status != 200 || a.Header.Get(api.HeaderReplayed) != "true" {
		t.Errorf("the answer without jobs, again: %+v", a)
	}
	j.wantCode(422, api.CodeFingerprintMismatch, "POST", "/v1/events/paid", `{"payload":{"order":18}}`, "idempotency-key", "k")
	if a := send(`{"payload":{"order":17}}`, "idempotency-key", "k", "authorization", "Bearer other"); a.Status != 202 || a.Header.Get(api.HeaderReplayed) != "" {
		t.Errorf("another caller: %+v", a)
	}
	if a := j.Do("POST", "/v1/events/other", "application/json", `{"payload":{"order":17}}`, "idempotency-key", "k"); a.Status != 200 {
		t.Errorf("another event: %+v", a)
	}
	for range 2 { // each time it comes
		if a := send(`{}`); a.Status != 202 || gjson.Get(a.Body, "jobs.#").Int() != 3 {
			t.Errorf("without a key: %+v", a)
		}
	}
	if d := j.depth(); d.Queued != 2+3+2*3 {
		t.Errorf("depth %+v", d)
	}
	claimed := j.text("POST", "/v1/jobs/claim", `{"worker":"w","functions":["late"],"limit":9}`)
	if got := gjson.Get(claimed, `jobs.#.event`).Raw; got != `["paid","paid","paid"]` {
		t.Errorf("the jobs' event: %s", got)
	}
}

func TestSubscriptions(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	first := j.text("PUT", "/v1/events/a/subscriptions/f", "")
	if again := j.text("PUT", "/v1/events/a/subscriptions/f", "{}"); again != first {
		t.Errorf("again: %s, first %s", again, first)
	}
	j.call(200, "PUT", "/v1/events/b/subscriptions/g", "")
	page := j.text("GET", "/v1/events?limit=1", "")
	if gjson.Get(page, "events.0.name").String() != "a" || gjson.Get(page, "events.0.subscriptions.#.function").Raw != `["f"]` {
		t.Errorf("first page %s", page)
	}
	page = j.text("GET", "/v1/events?cursor="+gjson.Get(page, "cursor").String(), "")
	if gjson.Get(page, "events.#.name").Raw != `["b"]` || gjson.Get(page, "cursor").String() != "" {
		t.Errorf("last page %s", page)
	}
	if ended := j.text("DELETE", "/v1/events/a/subscriptions/f", ""); ended != first {
		t.Errorf("ended %s", ended)
	}
	if ended := j.text("DELETE", "/v1/events/a/subscriptions/f", ""); ended != `{"function":"f"}` {
		t.Errorf("ended again %s", ended)
	}

	j.wantField("payload", "POST", "/v1/events/a", `{"payload":"`+"\xff"+`"}`)
	j.wantField("key", "POST", "/v1/events/a", `{"key":"a"}`, "idempotency-key", "b")
	j.wantField("key", "POST", "/v1/events/a", `{"key":" "}`)
	j.wantField("function", "POST", "/v1/events/a", `{"function":"f"}`)
	j.wantField("event", "POST", "/v1/events/a%20b", `{}`)
	j.wantField("event", "PUT", "/v1/events/a%20b/subscriptions/f", ``)
	j.wantField("function", "PUT", "/v1/events/a/subscriptions/f%2fg", ``)
	j.wantField("priority", "PUT", "/v1/events/a/subscriptions/f", `{"priority":1}`)
}

// A worker that may work on some functions subscribes only those.
func TestWhoMaySubscribe(t *testing.T) {
	s := newRoleSite(t, columns...)
	for words, want := range map[string]int{"worker": 200, "operator": 200, "admin": 200, "no word": 200, "worker:FUNCTION": 403, "submitter": 403, "gate": 403} {
		s.as(words, want, "PUT", "/v1/events/a/subscriptions/g", "")
	}
	s.as("worker:FUNCTION", 200, "PUT", "/v1/events/a/subscriptions/f", "")
	s.as("worker:FUNCTION", 403, "DELETE", "/v1/events/a/subscriptions/g", "")
	s.as("worker:FUNCTION", 200, "DELETE", "/v1/events/a/subscriptions/f", "")
}

func TestOneOfManySendersAtOnceIsAnswered(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	for i := range 20 {
		j.call(200, "PUT", fmt.Sprint("/v1/events/paid/subscriptions/f", i), "")
	}
	answers := make([]httpdtest.Answer, 30)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = j.Do("POST", "/v1/events/paid", "application/json", `{"payload":1,"key":"k"}`)
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a.Status != 202 || a.Body != answers[0].Body {
			t.Errorf("%+v", a)
		}
	}
	if d := j.depth(); d.Queued != 20 {
		t.Errorf("depth %+v", d)
	}
	large := `{"payload":"` + strings.Repeat("x", 1<<20-2) + `"}`
	for i := range 40 {
		j.call(200, "PUT", fmt.Sprint("/v1/events/large/subscriptions/f", i), "")
	}
	j.wantCode(413, api.CodeTooLarge, "POST", "/v1/events/large", large, "idempotency-key", "large")
	if d := j.depth(); d.Queued != 20 {
		t.Errorf("after a refused event: depth %+v", d)
	}
}
