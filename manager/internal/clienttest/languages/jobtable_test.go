package languages

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// jobCalls are cases of calls about jobs.
var jobCalls = []call{
	{
		name: "a job's life",
		steps: []step{
			{op: "submit", args: `{"function":"f","payload":"p","id":"a","max_attempts":3}`, want: `{"ok":{"id":"a"}}`},
			{op: "claim", args: `{"worker":"w","functions":["g"]}`, want: `{"ok":[]}`},
			{op: "claim", args: `{"worker":"w","functions":["f"],"limit":5,"lease_ms":60000}`, want: `{"ok":[{"id":"a","payload":"p","attempt":1,"lease":{"worker":"w","token":"*"}}]}`, keep: map[string]string{"token": "ok.0.lease.token"}},
			{op: "heartbeat", args: `{"id":"a","lease_token":"${token}","lease_ms":90000}`, want: `{"ok":{"cancelled":false,"expires_in_ms":90000}}`},
			{op: "heartbeat", args: `{"id":"a","lease_token":"wrong"}`, want: `{"error":{"status":409,"code":"fenced","temporary":false}}`},
			{op: "retry", args: `{"id":"a","lease_token":"${token}","delay_ms":0,"error":"once more"}`, want: `{"ok":{"id":"a","error":"once more"}}`},
			{op: "claim", args: `{"worker":"w","wait_ms":60000}`, want: `{"ok":[{"id":"a","attempt":2}]}`, keep: map[string]string{"token": "ok.0.lease.token"}},
			{op: "cancel", args: `{"id":"a"}`, want: `{"ok":{"id":"a","cancel_requested":true}}`},
			{op: "heartbeat", args: `{"id":"a","lease_token":"${token}"}`, want: `{"ok":{"cancelled":true}}`},
			{faults: lost(cutAfter, "/finish", 1), op: "finish", args: `{"id":"a","lease_token":"${token}","status":"complete","result":{"r":[1]}}`, want: `{"ok":{"id":"a","state":"complete"}}`},
			{op: "get", args: `{"id":"a"}`, want: `{"ok":{"state":"complete","result":{"r":[1]},"attempt":2}}`},
			{op: "cancel", args: `{"id":"a"}`, want: `{"error":{"status":409,"code":"conflict"}}`},
			{op: "get", args: `{"id":"b"}`, want: `{"error":{"status":404,"code":"not-found","temporary":false}}`},
		},
		jobs: 1,
	},
	{
		name: "a job that is handed back",
		steps: []step{
			{op: "submit", args: `{"function":"f","id":"a","max_attempts":1}`, want: `{"ok":{"id":"a"}}`},
			{op: "claim", args: `{"worker":"w"}`, want: `{"ok":[{"id":"a"}]}`, keep: map[string]string{"token": "ok.0.lease.token"}},
			{op: "retry", args: `{"id":"a","lease_token":"${token}","delay_ms":0,"uncounted":true}`, want: `{"ok":{"id":"a","attempt":0}}`},
			{op: "retry", args: `{"id":"a","lease_token":""}`, want: `{"error":{"status":0,"temporary":false}}`},
		},
		jobs: 1,
	},
	{
		name: "pages of jobs",
		steps: []step{
			{op: "submit_batch", args: `{"items":[{"function":"f"},{"function":"f"},{"function":"g","delay_ms":60000}]}`, want: `{"ok":"*"}`},
			{op: "list", args: `{"function":"f","limit":1}`, want: `{"ok":{"jobs":[{"function":"f"}],"cursor":"*"}}`, keep: map[string]string{"cursor": "ok.cursor"}},
			{op: "list", args: `{"function":"f","limit":5,"cursor":"${cursor}"}`, want: `{"ok":{"jobs":[{"function":"f"}],"cursor":""}}`},
			{op: "list", args: `{"state":"scheduled"}`, want: `{"ok":{"jobs":[{"function":"g"}]}}`},
			{op: "list", args: `{"state":"none"}`, want: `{"error":{"status":400,"code":"invalid-request"}}`},
		},
		jobs: 3,
	},
	{
		name: "jobs that a filter selects",
		steps: []step{
			{op: "submit", args: `{"function":"f","id":"a","key":"order 1","concurrency_key":"acme"}`, want: `{"ok":{"id":"a"}}`},
			{op: "submit", args: `{"function":"f","id":"b","concurrency_key":"umbrella"}`, want: `{"ok":{"id":"b"}}`},
			{op: "claim", args: `{"worker":"w","limit":2}`, want: `{"ok":["*","*"]}`, keep: map[string]string{"id": "ok.0.id", "token": "ok.0.lease.token"}},
			{op: "finish", args: `{"id":"${id}","lease_token":"${token}","status":"failed","error":"no paper"}`, want: `{"ok":{"state":"failed"}}`},
			{op: "list", args: `{"key":"order 1"}`, want: `{"ok":{"jobs":[{"id":"a"}]}}`},
			{op: "list", args: `{"concurrency_key":"umbrella"}`, want: `{"ok":{"jobs":[{"id":"b"}]}}`},
			{op: "list", args: `{"error_text":"PAPER","limit":10}`, want: `{"ok":{"jobs":[{"id":"${id}"}]}}`},
			{op: "list", args: `{"error":"no paper","older_than_ms":3600000}`, want: `{"ok":{"jobs":[]}}`},
			{op: "list", args: `{"error":"no paper","newer_than_ms":3600000}`, want: `{"ok":{"jobs":[{"id":"${id}"}]}}`},
			{op: "list", args: `{"submitter":"nobody"}`, want: `{"ok":{"jobs":[]}}`},
			{op: "list", args: `{"key":" k"}`, want: `{"error":{"status":400,"code":"invalid-request","detail":"~key"}}`},
		},
		jobs: 2,
	},
	{
		name: "a wait for a job's end",
		steps: []step{{do: func(w *world) {
			got := w.driver.begin("submit_wait", `{"function":"f","id":"a"}`, 0)
			finishNext(w, `{"r":1}`)
			a := await(w.t, "the answer", got)
			if d := match(`{"ok":{"id":"a","state":"complete","result":{"r":1},"replayed":false}}`, a.text); d != "" {
				w.t.Errorf("%s: %s", d, a.text)
			}
		}}},
		jobs: 1,
	},
	{
		name: "a job that expires",
		steps: []step{
			{op: "submit_wait", args: `{"function":"f","id":"a","expires_in_ms":50}`, want: `{"ok":{"id":"a","state":"expired"}}`},
		},
		jobs: 1,
	},
	{
		name: "a wait over a stop of the manager",
		steps: []step{
			{op: "submit", args: `{"function":"f","id":"a"}`, want: `{"ok":{"id":"a"}}`},
			{do: func(w *world) {
				got := w.driver.begin("wait", `{"id":"a"}`, 0)
				eventually(w.t, "a wait", func() bool { return len(w.wire.requests("GET /v1/jobs/a")) > 0 })
				w.manager.Stop()
				w.manager.Resume()
				finishNext(w, `2`)
				a := await(w.t, "the answer", got)
				if d := match(`{"ok":{"id":"a","state":"complete","result":2}}`, a.text); d != "" {
					w.t.Errorf("%s: %s", d, a.text)
				}
			}},
		},
		jobs: 1,
	},
	{
		name: "a wait that ends before the job",
		steps: []step{
			{op: "submit", args: `{"function":"f","id":"a"}`, want: `{"ok":{"id":"a"}}`},
			{op: "wait", args: `{"id":"a"}`, within: 100 * time.Millisecond, want: `{"error":{"status":0,"temporary":true}}`},
			{op: "wait", args: `{"id":"b"}`, want: `{"error":{"status":404,"code":"not-found"}}`},
		},
		jobs: 1,
	},
	{
		name: "an id that must be escaped",
		steps: []step{
			{op: "get", args: `{"id":"a/../b?c"}`, want: `{"error":{"status":400,"code":"invalid-request"}}`},
		},
	},
}

// finishNext works the next job at the manager itself.
func finishNext(w *world, result string) {
	w.t.Helper()
	var claimed []client.Job
	eventually(w.t, "a job", func() bool {
		var err error
		if claimed, err = w.judge.Claim(w.t.Context(), client.ClaimRequest{Worker: "w", Wait: time.Second}); err != nil {
			w.t.Fatal(err)
		}
		return len(claimed) == 1
	})
	j := claimed[0]
	if _, err := w.judge.Finish(w.t.Context(), client.FinishRequest{ID: j.ID, LeaseToken: j.Lease.Token, Status: client.StateComplete, Result: []byte(result)}); err != nil {
		w.t.Fatal(err)
	}
}

// otherCalls are cases of keys, the ledger, and the test of handlers.
var otherCalls = []call{
	{
		name: "keys",
		steps: []step{
			{op: "keys", args: `{"client_id":"a:1","n":2}`, want: `{"ok":["~a:1:1:","~a:1:2:"]}`, keep: map[string]string{"first": "ok.0"}},
			{op: "keys", args: `{"client_id":"a:1","n":1}`, want: `{"ok":["~a:1:1:"]}`, keep: map[string]string{"again": "ok.0"}},
			{op: "keys", args: `{"client_id":"a b","n":1}`, want: `{"error":{"detail":"~client id"}}`},
			{op: "keys", args: `{"client_id":"","n":1}`, want: `{"error":{"detail":"~client id"}}`},
			{op: "keys", args: `{"client_id":"` + strings.Repeat("a", 217) + `","n":1}`, want: `{"ok":["*"]}`},
			{op: "keys", args: `{"client_id":"` + strings.Repeat("a", 218) + `","n":1}`, want: `{"error":{"detail":"~client id"}}`},
			{op: "open", args: `{"url":"${wire}","client_id":"mine"}`, want: `{"ok":null}`},
			{op: "submit", args: submitJob, want: `{"ok":"*"}`},
		},
		jobs: 1, check: func(w *world) {
			a, b := structuredKey.FindStringSubmatch(w.values["first"]), structuredKey.FindStringSubmatch(w.values["again"])
			if a == nil || b == nil || a[3] == b[3] {
				w.t.Errorf("keys %s and %s: want different nonces", w.values["first"], w.values["again"])
			}
			if key := w.wire.requests("POST /v1/jobs")[0].key; !strings.HasPrefix(key, "mine:1:") {
				w.t.Errorf("submitted with %s", key)
			}
		},
	},
	{
		name: "keys whose client id outlives the program",
		steps: []step{
			{op: "open_keys", args: `{"file":"${dir}/state/id","n":1}`, want: `{"ok":["~client-"]}`, keep: map[string]string{"first": "ok.0"}},
			{op: "open_keys", args: `{"file":"${dir}/state/id","n":1}`, want: `{"ok":["~client-"]}`, keep: map[string]string{"again": "ok.0"}},
			{do: writeFile("given", "host1\n"), op: "open_keys", args: `{"file":"${dir}/given","n":1}`, want: `{"ok":["~host1:1:"]}`},
			{do: writeFile("wrong", "a b\n"), op: "open_keys", args: `{"file":"${dir}/wrong","n":1}`, want: `{"error":{"detail":"~client id"}}`},
			{op: "open_keys", args: `{"file":"${dir}/given/x","n":1}`, want: `{"error":{"detail":"*"}}`},
		},
		check: func(w *world) {
			a, b := structuredKey.FindStringSubmatch(w.values["first"]), structuredKey.FindStringSubmatch(w.values["again"])
			if a == nil || b == nil || a[1] != b[1] || a[3] == b[3] {
				w.t.Errorf("keys %s and %s: want one client, two nonces", w.values["first"], w.values["again"])
			}
			if left, err := os.ReadDir(filepath.Join(w.values["dir"], "state")); err != nil || len(left) != 1 {
				w.t.Errorf("the folder has %v, %v", left, err)
			}
		},
	},
	{
		name: "a caller's own work, committed",
		steps: []step{
			{op: "reserve", args: `{"key":"a","scope":"s","fingerprint":"f1"}`, want: `{"ok":{"state":"reserved","token":"*"}}`, keep: map[string]string{"token": "ok.token"}},
			{op: "reserve", args: `{"key":"a","scope":"s","fingerprint":"f1"}`, want: `{"ok":{"state":"pending"}}`},
			{op: "renew", args: `{"key":"a","scope":"s","token":"${token}","pending_ttl_ms":90000}`, want: `{"ok":{"state":"*"}}`},
			{faults: lost(cutAfter, "/commit", 2), op: "commit", args: `{"key":"a","scope":"s","token":"${token}","result":{"status":201,"headers":[["x-a","b"]],"body":"done ü"}}`, want: `{"ok":{"state":"committed"}}`},
			{op: "reserve", args: `{"key":"a","scope":"s","fingerprint":"f1"}`, want: `{"ok":{"state":"committed","result":{"status":201,"headers":[["x-a","b"]],"body":"done ü"}}}`},
			{op: "reserve", args: `{"key":"a","scope":"s","fingerprint":"f2"}`, want: `{"error":{"status":422,"code":"fingerprint-mismatch","temporary":false}}`},
			{op: "entry", args: `{"key":"a","scope":"s"}`, want: `{"ok":{"key":"a","scope":"s","state":"committed"}}`},
			{op: "entry", args: `{"key":"b"}`, want: `{"error":{"status":404,"code":"not-found"}}`},
		},
	},
	{
		name: "a caller's own work whose answer is too large to keep",
		steps: []step{
			{op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"reserved"}}`, keep: map[string]string{"token": "ok.token"}},
			{op: "commit", args: `{"key":"a","token":"${token}","result":{"status":201,"body_omitted":true}}`, want: `{"ok":{"state":"committed"}}`},
			{op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"committed","result":{"status":201,"body":"","body_omitted":true}}}`},
		},
	},
	{
		name: "the fingerprint and the durability of a caller's own work",
		steps: []step{
			{op: "commit", args: `{"key":"a","token":"t","fingerprint":"a b","result":{"status":200}}`, want: `{"error":{"status":400,"code":"invalid-request","detail":"~fingerprint"}}`},
			{op: "reject", args: `{"key":"a","token":"t","fingerprint":"a b","result":{"status":402}}`, want: `{"error":{"status":400,"code":"invalid-request","detail":"~fingerprint"}}`},
			{op: "reserve", args: `{"key":"a","durability":"global"}`, want: `{"error":{"status":400,"code":"durability-unavailable"}}`},
		},
	},
	{
		name: "a caller's own work, with lost answers to the reservation",
		steps: []step{
			{faults: lost(cutAfter, "/reserve", 2), op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"reserved"}}`},
		},
		seen: map[string]int{"/v1/ledger/reserve": 3},
	},
	{
		name: "a caller's own work, rejected and released",
		steps: []step{
			{op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"reserved"}}`, keep: map[string]string{"token": "ok.token"}},
			{op: "release", args: `{"key":"a","token":"${token}"}`, want: `{"ok":{"state":"released"}}`},
			{op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"reserved"}}`, keep: map[string]string{"next": "ok.token"}},
			{op: "commit", args: `{"key":"a","token":"${token}","result":{"status":200}}`, want: `{"error":{"status":409,"code":"fenced","temporary":false}}`},
			{op: "reject", args: `{"key":"a","token":"${next}","result":{"status":402}}`, want: `{"ok":{"state":"rejected"}}`},
			{op: "reserve", args: `{"key":"a"}`, want: `{"ok":{"state":"rejected","result":{"status":402}}}`},
		},
	},
	{
		name: "a key whose outcome the ledger does not know",
		steps: []step{{
			do: func(w *world) {
				if _, err := admin.New(w.judge).Entry(w.t.Context(), "", "a"); !client.HasCode(err, "not-found") {
					w.t.Fatal(err)
				}
			},
			faults: []fault{{path: "/reserve", does: answered, status: 409, header: map[string]string{"Content-Type": "application/problem+json"},
				body: `{"type":"urn:oncegate:problem:outcome-unknown","title":"t","status":409,"code":"outcome-unknown"}`}},
			op: "reserve", args: `{"key":"a"}`, want: `{"error":{"status":409,"code":"outcome-unknown","temporary":false}}`,
		}},
		seen: map[string]int{"/v1/ledger/reserve": 1},
	},
	{
		name: "tests of handlers",
		steps: []step{
			{op: "check", args: `{"handler":"once","payload":1}`, want: `{"ok":null}`},
			{op: "check", args: `{"handler":"twice","payload":1}`, want: `{"error":{"detail":"~run 2 changed the state"}}`},
			{op: "check", args: `{"handler":"fail","payload":1}`, want: `{"error":{"detail":"~run 1 of 3"}}`},
		},
	},
}
