package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// submitBatch submits a batch and returns its results.
func (j *jobSite) submitBatch(body string, header ...string) []map[string]any {
	j.t.Helper()
	a := j.Do("POST", "/v1/jobs/batch", "application/json", body, header...)
	var out struct{ Results []map[string]any }
	if err := json.Unmarshal([]byte(a.Body), &out); a.Status != 200 || err != nil {
		j.t.Fatalf("%d %v %.400s", a.Status, err, a.Body)
	}
	return out.Results
}

// statuses are those of results, each with its code or with "replayed".
func statuses(results []map[string]any) string {
	var all []string
	for _, r := range results {
		s := fmt.Sprint(r["status"])
		if r["code"] != nil {
			s += " " + r["code"].(string)
		}
		if r["replayed"] == true {
			s += " replayed"
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// TestBatchJudgesEachItem: with the single call's status and answer, and in one transaction.
func TestBatchJudgesEachItem(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"before","key":"held fast"}`, "idempotency-key", "k0")
	updates := j.store.updates.Load()
	body := `{"items":[
		{"function":"f","idempotency_key":"k 1","payload":{"a":1},"id":"one"},
		{"function":"f","idempotency_key":"k 1","payload":{"a":1},"id":"two"},
		{"function":"f","idempotency_key":"k 1","payload":{"a":2}},
		{"function":"f","key":"held fast","idempotency_key":"k0","id":"whatever"},
		{"function":"f","key":"held fast"},
		{"function":"f","key":"held fast","idempotency_key":"k2"},
		{"function":"f","key":"held fast","on_duplicate":"return_existing","idempotency_key":"k3"},
		{"function":"f","id":"one"},
		{"function":""},
		{"function":"f","nonsense":1},
		{"function":"f","idempotency_key":" k"},
		{"function":"f","idempotency_key":""},
		{"function":"f","idempotency_key":7},
		7,
		{"function":"f","id":"batch"},
		{"function":"f","payload":"last"},
		{"function":"f","idempotency_key":null}
	]}`
	want := "202, 202 replayed, 422 fingerprint-mismatch, 202 replayed, 409 duplicate-key, 409 duplicate-key, 200, 409 conflict, " +
		"400 invalid-request, 400 invalid-request, 400 invalid-key, 400 invalid-key, 400 invalid-request, 400 invalid-request, 400 invalid-request, 202, 202"
	results := j.submitBatch(body)
	if got := statuses(results); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if n := j.store.updates.Load() - updates; n != 1 {
		t.Errorf("%d transactions", n)
	}
	if results[1]["id"] != "one" || results[3]["id"] != "before" || results[6]["id"] != "before" || results[6]["existing"] != true {
		t.Errorf("ids: %v %v %v", results[1], results[3], results[6])
	}
	if d := j.depth(); d.Queued != 4 {
		t.Errorf("%+v, want 4 queued", d)
	}
	// An item and a single call with its key are the same submission; a recorded refusal is one too.
	again := j.Do("POST", "/v1/jobs", "application/json", `{"function":"f","payload":{"a":1}}`, "idempotency-key", "k 1")
	if again.Status != 202 || again.Header.Get(api.HeaderReplayed) != "true" || !strings.Contains(again.Body, `"id":"one"`) {
		t.Errorf("the single call: %+v", again)
	}
	if got := statuses(j.submitBatch(`{"items":[{"function":"f","key":"held fast","idempotency_key":"k2"}]}`)); got != "409 duplicate-key replayed" {
		t.Errorf("a recorded refusal: %s", got)
	}
	// Another caller's keys are others.
	if got := statuses(j.submitBatch(`{"items":[{"function":"f","payload":{"a":1},"idempotency_key":"k 1"}]}`, "authorization", "Bearer x")); got != "202" {
		t.Errorf("another caller: %s", got)
	}
}

// TestBatchKeyInTheHeader: a gate in front sees one request with one key; the items have keys of their own by it.
func TestBatchKeyInTheHeader(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	body := `{"items":[{"function":"f"},{"function":"f","idempotency_key":"own"},{"function":"f"}]}`
	if got := statuses(j.submitBatch(body, "idempotency-key", "b")); got != "202, 202, 202" {
		t.Errorf("first: %s", got)
	}
	if got := statuses(j.submitBatch(body, "idempotency-key", "b")); got != "202 replayed, 202 replayed, 202 replayed" {
		t.Errorf("again: %s", got)
	}
	long := strings.Repeat("x", 255)
	if got := statuses(j.submitBatch(`{"items":[{"function":"f"},{"function":"f","idempotency_key":"`+long+`"}]}`, "idempotency-key", long)); got != "400 invalid-key, 202" {
		t.Errorf("a long key: %s", got)
	}
	j.wantCode(400, api.CodeInvalidKey, "POST", "/v1/jobs/batch", body, "idempotency-key", "")
}

// TestBatchIsRefusedAsAWhole: before anything ran.
func TestBatchIsRefusedAsAWhole(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	item := `{"function":"f"}`
	many := func(n int) string { return `{"items":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}` }
	for what, c := range map[string]struct {
		status int
		body   string
	}{
		"nothing":   {400, ""},
		"no items":  {400, `{}`},
		"empty":     {400, many(0)},
		"object":    {400, `{"items":{}}`},
		"null":      {400, `{"items":null}`},
		"array":     {400, `[` + item + `]`},
		"unknown":   {400, `{"items":[` + item + `],"atomic":true}`},
		"twice":     {400, `{"items":[` + item + `],"items":[` + item + `]}`},
		"cut off":   {400, `{"items":[` + item},
		"129 items": {413, many(129)},
		"too large": {413, `{"items":[{"function":"f","payload":"` + strings.Repeat("x", jobs.MaxBatchBytes) + `"}]}`},
	} {
		if a := j.Do("POST", "/v1/jobs/batch", "application/json", c.body); a.Status != c.status {
			t.Errorf("%s: %d %.200s", what, a.Status, a.Body)
		}
	}
	if d := j.depth(); d.Queued != 0 {
		t.Errorf("%+v", d)
	}
	if got := j.submitBatch(many(128)); len(got) != 128 || statuses(got[127:]) != "202" {
		t.Errorf("128 items: %d results", len(got))
	}
}

// TestBatchGoesOnApart: an item that makes the shared transaction fail costs the others nothing.
func TestBatchGoesOnApart(t *testing.T) {
	j := newJobSite(t, ledger.Options{MaxEntries: 4, ScopeShare: -1})
	var items []string
	for i := range 8 {
		items = append(items, fmt.Sprintf(`{"function":"f","idempotency_key":"k%d"}`, i), `{"function":"g"}`)
	}
	body := `{"items":[` + strings.Join(items, ",") + `]}`
	results := j.submitBatch(body)
	counts := map[string]int{}
	for i, r := range results {
		counts[fmt.Sprint(r["function"], " ", r["status"], " ", r["code"])]++
		if r["code"] == string(api.CodeLedgerFull) && (r["retry_after"] == nil || i%2 == 1) {
			t.Errorf("item %d: %v", i, r)
		}
	}
	if counts["f 202 <nil>"] != 4 || counts["g 202 <nil>"] != 8 || counts["<nil> 503 ledger-full"] != 4 {
		t.Errorf("%v", counts)
	}
	if d := j.depth(); d.Queued != 12 {
		t.Errorf("%+v, want 12 queued", d)
	}
	j.store.broken.Store(true)
	if got := statuses(j.submitBatch(`{"items":[{"function":"f","idempotency_key":"k0"},{"function":"g"}]}`)); got != "503 unavailable, 503 unavailable" {
		t.Errorf("without the store: %s", got)
	}
}

// TestBatchesOfRetriesSubmitOnce: many callers repeat overlapping batches.
func TestBatchesOfRetriesSubmitOnce(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	var created atomic.Int64
	var wg sync.WaitGroup
	for caller := range 6 {
		wg.Go(func() {
			var items []string
			for i := range 20 {
				items = append(items, fmt.Sprintf(`{"function":"f","payload":%d,"idempotency_key":"k%d"}`, i+caller, i+caller))
			}
			for _, r := range j.submitBatch(`{"items":[` + strings.Join(items, ",") + `]}`) {
				if r["status"] != 202.0 {
					t.Errorf("%v", r)
				} else if r["replayed"] == nil {
					created.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if d := j.depth(); created.Load() != 25 || d.Queued != 25 {
		t.Errorf("%d created, %+v; want 25", created.Load(), d)
	}
}

func FuzzParseBatch(f *testing.F) {
	f.Add([]byte(`{"items":[{"function":"f","payload":{"a":[1]},"idempotency_key":"k"},{"function":"g","dedup":{"ttl_ms":1000}}]}`))
	f.Add([]byte(`{"items":[7,{"function":"f","function":"g"},null]}`))
	f.Add([]byte(`{"items":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := parseBatch(b)
		if err != nil {
			if p := ProblemOf(err); p.Status != 400 && p.Status != 413 {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(items) == 0 || len(items) > jobs.MaxBatch {
			t.Fatalf("%d items", len(items))
		}
		for _, it := range items {
			if it.err != nil {
				if p := ProblemOf(it.err); p.Status != 400 && p.Status != 413 {
					t.Fatalf("%q: %v", it.body, it.err)
				}
				continue
			}
			if it.key != "" && api.ValidateKey(it.key) != nil || !json.Valid(it.body) {
				t.Fatalf("%q with the key %q", it.body, it.key)
			}
			if it.key == "" && !strings.Contains(string(it.body), "idempotency_key") && !strings.Contains(string(it.body), `\`) {
				if _, err := parseSubmission(it.body); err != nil {
					t.Fatalf("%q is not read alone: %v", it.body, err)
				}
			}
		}
	})
}
