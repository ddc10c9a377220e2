package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

func TestRepeatedKeySubmitsOnce(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	post := func(key, body string, more ...string) httpdtest.Answer {
		t.Helper()
		return j.Do("POST", "/v1/jobs", "application/json", body, append(more, "idempotency-key", key)...)
	}
	first := post("k", `{"function":"f","payload":{"a": 1},"id":"one"}`)
	if first.Status != 202 || first.Header.Get(api.HeaderReplayed) != "" {
		t.Fatalf("first: %+v", first)
	}
	for _, body := range []string{
		`{"function":"f","payload":{"a": 1},"id":"one"}`,
		`{"function":"f","payload":{"a": 1},"id":"two"}`, // whatever id it proposes
		`{"id":null,"payload":{"a":1},"function":"f"}`,
	} {
		again := post(`"k"`, body) // quoted is the same key
		if again.Status != 202 || again.Body != first.Body || again.Header.Get(api.HeaderReplayed) != "true" ||
			again.Header.Get("content-type") != api.ContentTypeJSON {
			t.Errorf("retry with %s: %+v", body, again)
		}
	}
	j.wantCode(422, api.CodeFingerprintMismatch, "POST", "/v1/jobs", `{"function":"f","payload":{"a":2}}`, "idempotency-key", "k")
	if a := post("k", `{"function":"f","payload":{"a":1}}`, "authorization", "Bearer other"); a.Status != 202 || a.Body == first.Body {
		t.Errorf("another caller's submission: %+v", a)
	}
	if d := j.depth(); d.Queued != 2 {
		t.Errorf("depth %+v, want 2 queued", d)
	}
	spaced := post("a  b", `{"function":"f","id":"spaced"}`)
	again := post(`"a  b";v=1`, `{"function":"f"}`)
	if other := post("a b", `{"function":"f"}`); spaced.Status != 202 || again.Body != spaced.Body || other.Status != 202 || other.Body == spaced.Body {
		t.Errorf("keys with blanks: %+v, %+v, %+v", spaced, again, other)
	}
	if e, err := views.ByRef(t.Context(), j.ledger, "one"); err != nil || e.Key != "k" || e.State != api.StateCommitted {
		t.Errorf("the ledger's entry of job one: %+v, %v", e, err)
	}

	// A refusal is an answer too, and stays it while it is remembered.
	j.call(202, "POST", "/v1/jobs", `{"function":"f","key":"held","id":"holder"}`)
	refused := post("r", `{"function":"f","key":"held"}`)
	j.call(200, "POST", "/v1/jobs/holder/cancel", "")
	still := post("r", `{"function":"f","key":"held"}`)
	if refused.Status != 409 || still.Body != refused.Body || still.Header.Get(api.HeaderReplayed) != "true" ||
		still.Header.Get("content-type") != api.ContentTypeProblem {
		t.Errorf("refused: %+v, then %+v", refused, still)
	}
	if a := post("r2", `{"function":"f","key":"held"}`); a.Status != 202 {
		t.Errorf("a new attempt: %+v", a)
	}
	// What is malformed never reaches the ledger, so it can be corrected.
	j.wantCode(400, api.CodeInvalidRequest, "POST", "/v1/jobs", `{"function":""}`, "idempotency-key", "m")
	if a := post("m", `{"function":"f"}`); a.Status != 202 {
		t.Errorf("corrected: %+v", a)
	}
	// A key that is none never passes for no key: the caller counts on it.
	before := j.depth()
	for _, bad := range []string{strings.Repeat("x", 256), `"open`, `"a"b"`, `"a\x"`, `""`, `" a"`, "a, b", "", " "} {
		j.wantCode(400, api.CodeInvalidKey, "POST", "/v1/jobs", `{"function":"f"}`, "idempotency-key", bad)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", j.Base+"/v1/jobs", strings.NewReader(`{"function":"f"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Idempotency-Key"] = []string{"one", "two"}
	resp, err := j.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 400 || !strings.Contains(string(b), "once") {
		t.Errorf("two keys: %d %s, %v", resp.StatusCode, b, err)
	}
	if d := j.depth(); d != before {
		t.Errorf("depth %+v after refusals, %+v before", d, before)
	}
}

func TestKeyedSubmissionsAtOnce(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	for round := range 3 {
		var bodies sync.Map
		var fresh atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				body := fmt.Sprintf(`{"function":"f","payload":%d,"id":"r%d-%d"}`, round, round, i)
				a, err := j.Try(t.Context(), "POST", "/v1/jobs", "application/json", body, "idempotency-key", fmt.Sprint("k", round))
				if err != nil || a.Status != 202 {
					t.Errorf("submission: %+v, %v", a, err)
					return
				}
				if a.Header.Get(api.HeaderReplayed) == "" {
					fresh.Add(1)
				}
				bodies.Store(a.Body, true)
			})
		}
		wg.Wait()
		different := 0
		bodies.Range(func(any, any) bool { different++; return true })
		if fresh.Load() != 1 || different != 1 {
			t.Fatalf("%d executed, %d different answers", fresh.Load(), different)
		}
		if d := j.depth(); d.Queued != round+1 {
			t.Fatalf("depth %+v after round %d", d, round)
		}
	}
}

func TestKeyedSubmissionIsAllOrNothing(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.store.broken.Store(true)
	j.wantCode(503, api.CodeUnavailable, "POST", "/v1/jobs", `{"function":"f"}`, "idempotency-key", "k")
	j.store.broken.Store(false)
	if st, err := j.ledger.Stats(t.Context()); err != nil || st.Pending+st.Committed != 0 {
		t.Fatalf("entries after the failure: %+v, %v", st, err)
	}
	j.call(202, "POST", "/v1/jobs", `{"function":"f"}`, "idempotency-key", "k")

	// A reservation that another caller holds is not answered for them.
	reserve := &api.ReserveRequest{Key: "busy", Scope: "POST:/v1/jobs", Token: "t"}
	if _, err := j.ledger.Reserve(t.Context(), reserve, nil); err != nil {
		t.Fatal(err)
	}
	j.wantCode(409, api.CodePending, "POST", "/v1/jobs", `{"function":"f"}`, "idempotency-key", "busy")
	if d := j.depth(); d.Queued != 1 {
		t.Fatalf("depth %+v", d)
	}

	// Nor is an outcome that another call recorded there. It may have a form that no submission is answered with.
	end := &api.FinishRequest{Key: "taken", Scope: "POST:/v1/jobs", Token: "t", Result: api.Result{Status: 400}}
	if err := j.ledger.Commit(t.Context(), ledger.NewFinish(end)); err != nil {
		t.Fatal(err)
	}
	j.wantCode(422, api.CodeFingerprintMismatch, "POST", "/v1/jobs", `{"function":"f"}`, "idempotency-key", "taken")
	batch := j.call(200, "POST", "/v1/jobs/batch", `{"items":[{"function":"f","idempotency_key":"taken"},{"function":"f","idempotency_key":"free"}]}`)
	results := batch["results"].([]any)
	if taken, free := results[0].(map[string]any), results[1].(map[string]any); taken["code"] != string(api.CodeFingerprintMismatch) || free["status"] != 202.0 {
		t.Errorf("the batch got %v", results)
	}
}

func TestAnswersToSubmissionsHaveNoPayload(t *testing.T) {
	payload := func(n int) string { return `{"function":"f","payload":"` + strings.Repeat("p", n-2) + `"}` }
	j := newJobSite(t, ledger.Options{})
	for _, size := range []int{2, 62 << 10, jobs.MaxPayloadBytes} {
		key := []string{"idempotency-key", fmt.Sprint("k", size)}
		first := j.Do("POST", "/v1/jobs", "application/json", payload(size), key...)
		again := j.Do("POST", "/v1/jobs", "application/json", payload(size), key...)
		if first.Status != 202 || again.Body != first.Body || again.Header.Get(api.HeaderReplayed) != "true" {
			t.Errorf("first %d %.100s, again %d %.100s", first.Status, first.Body, again.Status, again.Body)
		}
		if !strings.Contains(first.Body, fmt.Sprintf(`"payload_bytes":%d,`, size)) || strings.Contains(first.Body, `"payload":`) {
			t.Errorf("payload of %d bytes: %.200s", size, first.Body)
		}
		whole := j.call(200, "GET", "/v1/jobs/"+gjson.Get(first.Body, "id").String(), "")
		if len(whole["payload"].(string)) != size-2 {
			t.Errorf("payload of %d bytes came back with %d", size, len(whole["payload"].(string)))
		}
	}
	j.wantCode(413, api.CodeTooLarge, "POST", "/v1/jobs", payload(jobs.MaxPayloadBytes+1))
}

// A submission takes a small, fixed part of the ledger's window, however large its job is, or the error of the job that
// stands for it.
func TestSubmissionsDoNotFillTheWindow(t *testing.T) {
	j := newJobSite(t, ledger.Options{MaxBytes: 1 << 20})
	large := strings.Repeat("p", 62<<10)
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"old","key":"k","payload":"`+large+`"}`)
	token := j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w"}`)["jobs"].([]any)[0].(map[string]any)["lease"].(map[string]any)["token"].(string)
	j.call(200, "POST", "/v1/jobs/old/retry", `{"lease_token":"`+token+`","error":"`+large+`"}`)
	for i := range 100 {
		j.call(202, "POST", "/v1/jobs", `{"function":"f","payload":"`+large+`"}`, "idempotency-key", fmt.Sprint("new", i))
		j.call(200, "POST", "/v1/jobs", `{"function":"f","key":"k","on_duplicate":"return_existing"}`, "idempotency-key", fmt.Sprint("existing", i))
	}
}

// A submission that found no room is not remembered: its retry is judged again.
func TestFullQueueRefusesSubmissions(t *testing.T) {
	j := newJobSiteWith(t, ledger.Options{}, jobs.Options{MaxBytes: jobs.MinMaxBytes})
	body := `{"function":"f","payload":"` + strings.Repeat("x", 1<<20-100) + `"}`
	n := 0
	for ; j.Do("POST", "/v1/jobs", api.ContentTypeJSON, body).Status == 202 && n < 100; n++ {
	}
	a := j.Do("POST", "/v1/jobs", api.ContentTypeJSON, body, "idempotency-key", "k")
	if a.Status != 503 || a.Header.Get("retry-after") != "5" || !strings.Contains(a.Body, string(api.CodeQueueFull)) || n < 6 {
		t.Fatalf("%d submissions, then %d %s", n, a.Status, a.Body)
	}
	item := strings.Replace(body, "{", `{"idempotency_key":"k2",`, 1)
	if got := statuses(j.submitBatch(`{"items":[` + item + `,{"function":"f","idempotency_key":"small"}]}`)); got != "503 queue-full, 202" {
		t.Errorf("batch: %s", got)
	}
	if c := j.queue.Counters(); c.Full != 3 {
		t.Errorf("%d submissions were refused", c.Full)
	}
	id, token, _ := j.claimOne()
	j.call(200, "POST", "/v1/jobs/"+id+"/finish", `{"lease_token":"`+token+`","status":"complete"}`)
	for range 2 {
		id, token, _ = j.claimOne()
		j.call(200, "POST", "/v1/jobs/"+id+"/finish", `{"lease_token":"`+token+`","status":"complete"}`)
	}
	if _, err := j.queue.RunDuties(t.Context()); err != nil { // of the three, two are more than a quarter
		t.Fatal(err)
	}
	j.call(202, "POST", "/v1/jobs", body, "idempotency-key", "k")
}
