package languages

import (
	"fmt"
	"strings"
	"time"
)

const submitJob = `{"function":"f","payload":{"n":1}}`

// submissions are cases of submissions that meet faults.
var submissions = []call{
	{
		name:  "a submission",
		steps: []step{{op: "submit", args: submitJob, want: `{"ok":{"id":"*","function":"f","state":"queued","replayed":false}}`}},
		jobs:  1, seen: map[string]int{"POST /v1/jobs": 1}, check: oneKey,
	},
	{
		name: "a submission with all members",
		steps: []step{
			{op: "submit", args: `{"function":"f","payload":[1,"ü"],"id":"a","key":"order:1","concurrency_key":"tenant 1","priority":5,"delay_ms":3600000,"max_attempts":7,
				"dedup":{"strategy":"until_executed","ttl_ms":60000},"on_duplicate":"return_existing","idempotency_key":"k 1",
				"expires_in_ms":7200000,"on_expiry":"dead_letter","timeout_ms":60000,
				"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`, want: `{"ok":{"id":"a","state":"scheduled"}}`},
			{op: "get", args: `{"id":"a"}`, want: `{"ok":{"payload":[1,"ü"],"key":"order:1","concurrency_key":"tenant 1","priority":5,"max_attempts":7,"dedup":{"strategy":"until_executed","ttl_ms":60000},"expires_at":"*","on_expiry":"dead_letter","timeout_ms":60000}}`},
			{op: "submit", args: `{"function":"f","key":"order:1","on_duplicate":"return_existing"}`, want: `{"ok":{"id":"a","existing":true}}`},
		},
		jobs: 1, check: func(w *world) {
			if r := w.wire.requests("POST /v1/jobs")[0]; r.key != "k 1" || !strings.HasPrefix(r.trace, "00-0af7651916cd43dd8448eb211c80319c-") {
				w.t.Errorf("the submission went as %+v", r)
			}
		},
	},
	{
		name:  "connections that end before the submission arrives",
		steps: []step{{faults: lost(cutBefore, "POST /v1/jobs", 3), op: "submit", args: submitJob, want: `{"ok":{"replayed":false}}`}},
		jobs:  1, seen: map[string]int{"POST /v1/jobs": 4}, check: oneKey,
	},
	{
		name:  "lost answers",
		steps: []step{{faults: lost(cutAfter, "POST /v1/jobs", 3), op: "submit", args: submitJob, want: `{"ok":{"replayed":true}}`}},
		jobs:  1, seen: map[string]int{"POST /v1/jobs": 4}, check: oneKey,
	},
	{
		name:  "an answer of which half arrives",
		steps: []step{{faults: lost(cutWithin, "POST /v1/jobs", 1), op: "submit", args: submitJob, want: `{"ok":{"replayed":true}}`}},
		jobs:  1, check: oneKey,
	},
	{
		name: "a manager that does not answer in time",
		steps: []step{
			{op: "open", args: `{"url":"${wire}","timeout_ms":3000,"backoff_base_ms":1,"backoff_max_ms":2}`, want: `{"ok":null}`},
			{faults: lost(held, "POST /v1/jobs", 1), op: "submit", args: submitJob, want: `{"ok":{"replayed":false}}`},
		},
		jobs: 1, seen: map[string]int{"POST /v1/jobs": 2}, check: oneKey,
	},
	{
		name: "a caller that does not wait any longer",
		steps: []step{
			{faults: lost(held, "POST /v1/jobs", 1), op: "submit", args: submitJob, within: 100 * time.Millisecond, want: `{"error":{"status":0,"code":"","temporary":true}}`},
			{op: "submit", args: `{"function":"f","idempotency_key":"later"}`, want: `{"ok":{"replayed":false}}`},
		},
		jobs: 1,
	},
	{
		name: "a key of the caller's, over two programs",
		steps: []step{
			{faults: lost(cutAfter, "POST /v1/jobs", 1), op: "open", args: `{"url":"${wire}","max_attempts":1}`, want: `{"ok":null}`},
			{op: "submit", args: `{"function":"f","idempotency_key":"order-17"}`, want: `{"error":{"status":0,"temporary":true}}`},
			{op: "open", args: `{"url":"${wire}"}`, want: `{"ok":null}`},
			{op: "submit", args: `{"function":"f","idempotency_key":"order-17"}`, want: `{"ok":{"replayed":true}}`},
			{op: "submit", args: `{"function":"g","idempotency_key":"order-17"}`, want: `{"error":{"status":422,"code":"fingerprint-mismatch","temporary":false}}`},
		},
		jobs: 1,
	},
	{
		name: "a key that cannot be sent",
		steps: []step{
			{op: "submit", args: `{"function":"f","idempotency_key":"ü"}`, want: `{"error":{"status":0,"temporary":false,"detail":"~idempotency key"}}`},
			{op: "submit", args: `{"function":"f","idempotency_key":"a\u0001"}`, want: `{"error":{"status":0,"temporary":false}}`},
			{op: "submit", args: `{"function":"f","idempotency_key":"a\r\nb: c"}`, want: `{"error":{"status":0,"temporary":false}}`},
		},
		seen: map[string]int{"POST /v1/jobs": 0},
	},
	{
		name: "a submission that the manager refuses",
		steps: []step{
			{op: "submit", args: `{"function":"no name"}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false,"detail":"~function"}}`},
			{op: "submit", args: `{"function":"f","payload":"${large}"}`, want: `{"error":{"status":413,"code":"too-large","temporary":false}}`},
		},
		seen: map[string]int{"POST /v1/jobs": 2},
	},
	{
		name: "a payload whose text would be too large if it were escaped",
		steps: []step{
			{op: "submit", args: `{"function":"f","payload":"${umlauts}"}`, want: `{"ok":{"state":"queued"}}`},
			{op: "submit_batch", args: `{"items":[{"function":"f","payload":"${umlauts}"},{"function":"f","payload":"${umlauts}"},{"function":"f","payload":"${umlauts}"}]}`,
				want: `{"ok":[{"job":{"state":"queued"}},{"job":{"state":"queued"}},{"job":{"state":"queued"}}]}`},
		},
		jobs: 4, seen: map[string]int{"POST /v1/jobs": 1, "/v1/jobs/batch": 1},
	},
	{
		name: "a key that a live job holds",
		steps: []step{
			{op: "submit", args: `{"function":"f","key":"order:1"}`, want: `{"ok":{"id":"*"}}`},
			{op: "submit", args: `{"function":"f","key":"order:1"}`, want: `{"error":{"status":409,"code":"duplicate-key","temporary":false}}`},
		},
		jobs: 1, seen: map[string]int{"POST /v1/jobs": 2},
	},
	{
		name: "a submission that is dropped as a duplicate",
		steps: []step{
			{op: "submit", args: `{"function":"f","payload":1,"dedup":{}}`, want: `{"ok":{"id":"*"}}`, keep: map[string]string{"id": "ok.id"}},
			{op: "submit", args: `{"function":"f","payload":1,"dedup":{}}`, want: `{"ok":{"id":"${id}","deduplicated":true}}`},
		},
		jobs: 1,
	},
	{
		name: "a batch whose answers are lost",
		steps: []step{
			{faults: lost(cutAfter, "/v1/jobs/batch", 2), op: "submit_batch",
				args: `{"items":[{"function":"f","id":"a","idempotency_key":"k1"},{"function":"no name"},{"function":"f","id":"b"}]}`,
				want: `{"ok":[{"job":{"id":"a","replayed":true},"idempotency_key":"k1"},{"error":{"status":400,"code":"invalid-request","temporary":false}},{"job":{"id":"b","replayed":true},"idempotency_key":"*"}]}`},
			{op: "submit", args: `{"function":"f","id":"a","idempotency_key":"k1"}`, want: `{"ok":{"id":"a","replayed":true}}`},
		},
		jobs: 2,
	},
	{
		name: "a key in quotes",
		steps: []step{
			{op: "submit_batch", args: `{"items":[{"function":"f","id":"a","idempotency_key":"\"a, b\""},{"function":"f","id":"b","idempotency_key":"\"a \\\\ \\\"b\\\"\""}]}`,
				want: `{"ok":[{"job":{"id":"a","replayed":false},"idempotency_key":"\"a, b\""},{"job":{"id":"b"}}]}`},
			{op: "submit", args: `{"function":"f","id":"a","idempotency_key":"\"a, b\""}`, want: `{"ok":{"id":"a","replayed":true}}`},
			{op: "submit", args: `{"function":"f","id":"b","idempotency_key":"\"a \\\\ \\\"b\\\"\""}`, want: `{"ok":{"id":"b","replayed":true}}`},
		},
		jobs: 2,
	},
	{
		name: "a batch of more jobs than a request takes",
		steps: []step{
			{op: "submit_batch", args: `{"items":[` + strings.Repeat(`{"function":"f"},`, 199) + `{"function":"f","id":"last"}]}`, want: `{"ok":"*"}`, keep: map[string]string{"id": "ok.199.job.id"}},
			{op: "get", args: `{"id":"${id}"}`, want: `{"ok":{"id":"last"}}`},
		},
		jobs: 200, seen: map[string]int{"/v1/jobs/batch": 2},
	},
	{
		name: "an event",
		steps: []step{
			{op: "subscribe", args: `{"name":"paid","function":"f"}`, want: `{"ok":null}`},
			{op: "subscribe", args: `{"name":"paid","function":"f"}`, want: `{"ok":null}`},
			{op: "subscribe", args: `{"name":"paid","function":"g"}`, want: `{"ok":null}`},
			{op: "unsubscribe", args: `{"name":"paid","function":"g"}`, want: `{"ok":null}`},
			{
				faults: lost(cutAfter, "POST /v1/events/paid", 2), op: "send", args: `{"name":"paid","payload":{"n":1},"idempotency_key":"k"}`,
				want: `{"ok":{"event":"paid","jobs":[{"id":"*","function":"f"}],"replayed":true}}`, keep: map[string]string{"id": "ok.jobs.0.id"},
			},
			{op: "get", args: `{"id":"${id}"}`, want: `{"ok":{"function":"f","payload":{"n":1},"event":"paid"}}`},
			{op: "send", args: `{"name":"nobody"}`, want: `{"ok":{"event":"nobody","jobs":[],"replayed":false}}`},
			{op: "subscribe", args: `{"name":"no name","function":"f"}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false}}`},
		},
		jobs: 1, seen: map[string]int{"POST /v1/events/paid": 3},
	},
	{
		name: "a batch with a callback",
		steps: []step{
			{
				faults: lost(cutAfter, "POST /v1/batches", 2), op: "start_batch",
				args: `{"jobs":[{"function":"f","payload":{"n":1}},{"function":"f","id":"two"}],"callback":{"function":"end","id":"last"},"idempotency_key":"k"}`,
				want: `{"ok":{"id":"*","jobs":["*","two"],"total":2,"pending":2,"callback":"last","replayed":true}}`, keep: map[string]string{"id": "ok.id"},
			},
			{op: "get", args: `{"id":"two"}`, want: `{"ok":{"function":"f","batch":"${id}"}}`},
			{op: "get", args: `{"id":"last"}`, want: `{"ok":{"function":"end","after":"${id}","state":"scheduled"}}`},
			{op: "cancel", args: `{"id":"two"}`, want: `{"ok":{"state":"cancelled"}}`},
			{op: "claim", args: `{"worker":"w","functions":["f"]}`, want: `{"ok":[{"payload":{"n":1}}]}`, keep: map[string]string{"job": "ok.0.id", "token": "ok.0.lease.token"}},
			{op: "finish", args: `{"id":"${job}","lease_token":"${token}","status":"complete"}`, want: `{"ok":{"state":"complete"}}`},
			{op: "wait_batch", args: `{"id":"${id}"}`, want: `{"ok":{"id":"${id}","total":2,"pending":0,"complete":1,"cancelled":1,"callback":"last"}}`},
			{op: "get", args: `{"id":"last"}`, want: `{"ok":{"state":"queued"}}`},
			{op: "start_batch", args: `{"jobs":[{"function":"no name"}]}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false}}`},
			{op: "wait_batch", args: `{"id":"none"}`, want: `{"error":{"status":404,"code":"not-found","temporary":false}}`},
		},
		jobs: 3, seen: map[string]int{"POST /v1/batches": 4},
	},
	{
		name: "a manager that starts while it is asked",
		steps: []step{
			{do: func(w *world) {
				w.manager.Stop()
				got := w.driver.begin("submit", submitJob, 0)
				eventually(w.t, "a try", func() bool { return len(w.wire.requests("POST /v1/jobs")) > 0 || w.wire.refused() > 0 })
				w.manager.Resume()
				a := await(w.t, "the answer", got)
				if d := match(`{"ok":{"replayed":false}}`, a.text); d != "" {
					w.t.Errorf("%s: %s", d, a.text)
				}
			}},
		},
		jobs: 1, check: oneKey,
	},
	{
		name: "another manager of the same store",
		steps: []step{
			{op: "open", args: `{"url":"http://127.0.0.1:1","failover":["${wire}"]}`, want: `{"ok":null}`},
			{op: "submit", args: submitJob, want: `{"ok":{"replayed":false}}`},
		},
		jobs: 1,
	},
	{
		name: "a bearer token",
		steps: []step{
			{op: "open", args: `{"url":"${wire}","token":"secret"}`, want: `{"ok":null}`},
			{op: "submit", args: submitJob, want: `{"ok":"*"}`},
		},
		jobs: 1, check: func(w *world) {
			if r := w.wire.requests("POST /v1/jobs")[0]; r.auth != "Bearer secret" {
				w.t.Errorf("the submission went as %+v", r)
			}
		},
	},
	{
		name: "options that cannot be",
		steps: []step{
			{op: "open", args: `{"url":"127.0.0.1:8090"}`, want: `{"error":{"detail":"~http"}}`},
			{op: "open", args: `{"url":"http://127.0.0.1:8090?a=b"}`, want: `{"error":{"detail":"~http"}}`},
			{op: "open", args: `{"url":"http://u:p@127.0.0.1:8090"}`, want: `{"error":{"detail":"~http"}}`},
			{op: "open", args: `{"url":"http://127.0.0.1:8090","token":"a b"}`, want: `{"error":{"detail":"*"}}`},
			{op: "open", args: `{"url":"http://127.0.0.1:8090","max_attempts":-1}`, want: `{"error":{"detail":"*"}}`},
			{op: "open", args: `{"url":"http://127.0.0.1:8090","timeout_ms":-1}`, want: `{"error":{"detail":"*"}}`},
			{op: "open", args: `{"url":"http://127.0.0.1:8090","client_id":"a b"}`, want: `{"error":{"detail":"~client id"}}`},
		},
	},
}

// answers are cases of submissions that something answers in place of the manager.
var answers = concat([]call{
	{
		name: "an overloaded manager that asks to wait",
		steps: []step{{
			faults: []fault{problem(503, "overloaded", map[string]string{"Retry-After": "1"})},
			do:     func(w *world) { w.values["began"] = fmt.Sprint(time.Now().UnixMilli()) },
			op:     "submit", args: submitJob, want: `{"ok":{"replayed":false}}`,
		}},
		jobs: 1, seen: map[string]int{"POST /v1/jobs": 2}, check: func(w *world) {
			oneKey(w)
			var began int64
			if _, err := fmt.Sscan(w.values["began"], &began); err != nil || time.Since(time.UnixMilli(began)) < time.Second {
				w.t.Errorf("asked again after %v, want a second", time.Since(time.UnixMilli(began)))
			}
		},
	},
	{
		name: "a manager that asks for a longer wait than the caller allows",
		steps: []step{
			{op: "open", args: `{"url":"${wire}","max_retry_after_ms":1000}`, want: `{"ok":null}`},
			{
				faults: []fault{problem(503, "overloaded", map[string]string{"Retry-After": "60"})},
				op:     "submit", args: submitJob, want: `{"error":{"status":503,"code":"overloaded","temporary":true,"retry_after_ms":60000,"detail":"~the detail"}}`,
			},
			{
				faults: []fault{problem(503, "quarantine", map[string]string{"Retry-After": "90000"})},
				op:     "submit", args: submitJob, want: `{"error":{"status":503,"code":"quarantine","temporary":true,"retry_after_ms":90000000,"detail":"~the detail"}}`,
			},
		},
		seen: map[string]int{"POST /v1/jobs": 2},
	},
	{
		name: "a first attempt that still runs",
		steps: []step{{
			faults: []fault{problem(409, "request-pending", nil), problem(409, "request-pending", nil)},
			op:     "submit", args: submitJob, want: `{"ok":{"replayed":false}}`,
		}},
		jobs: 1, seen: map[string]int{"POST /v1/jobs": 3}, check: oneKey,
	},
	{
		name: "an unknown outcome",
		steps: []step{{
			faults: []fault{problem(409, "outcome-unknown", nil)},
			op:     "submit", args: submitJob, want: `{"error":{"status":409,"code":"outcome-unknown","temporary":false,"replayed":false,"detail":"~the detail"}}`,
		}},
		seen: map[string]int{"POST /v1/jobs": 1},
	},
	{
		name: "a recorded failure",
		steps: []step{{
			faults: []fault{problem(503, "unavailable", map[string]string{"Idempotent-Replayed": "true"})},
			op:     "submit", args: submitJob, want: `{"error":{"status":503,"code":"unavailable","temporary":false,"replayed":true}}`,
		}},
		seen: map[string]int{"POST /v1/jobs": 1},
	},
	{
		name: "as many attempts as the caller allows",
		steps: []step{
			{op: "open", args: `{"url":"${wire}","max_attempts":3,"backoff_base_ms":1,"backoff_max_ms":2}`, want: `{"ok":null}`},
			{
				faults: []fault{{path: "/v1/jobs", does: answered, status: 502, body: "<html>Bad Gateway</html>", header: map[string]string{"Content-Type": "text/html"}, times: 9}},
				op:     "submit", args: submitJob, want: `{"error":{"status":502,"code":"","temporary":true,"detail":"~Bad Gateway"}}`,
			},
		},
		seen: map[string]int{"POST /v1/jobs": 3},
	},
	{
		name: "wrong credentials",
		steps: []step{{
			faults: []fault{problem(401, "unauthorized", nil)},
			op:     "submit", args: submitJob, want: `{"error":{"status":401,"code":"unauthorized","temporary":false}}`,
		}},
		seen: map[string]int{"POST /v1/jobs": 1},
	},
	{
		name: "a record that an operator has to mend",
		steps: []step{
			{faults: []fault{problem(500, "record-unreadable", nil)}, op: "submit", args: submitJob, want: `{"error":{"status":500,"code":"record-unreadable","temporary":false}}`},
			{faults: []fault{unreadable("GET /v1/jobs/a")}, op: "wait", args: `{"id":"a"}`, want: `{"error":{"status":500,"code":"record-unreadable","temporary":false}}`},
			{faults: []fault{unreadable("GET /v1/jobs/a")}, op: "get", args: `{"id":"a"}`, want: `{"error":{"status":500,"code":"record-unreadable","temporary":false}}`},
		},
		seen: map[string]int{"POST /v1/jobs": 1, "GET /v1/jobs/a": 2},
	},
}, temporaryAnswers(), redirects(), rubbish())

// unreadable is the manager's answer to a call whose record is damaged.
func unreadable(path string) fault {
	f := problem(500, "record-unreadable", nil)
	f.path = path
	return f
}

// temporaryAnswers are repeated.
func temporaryAnswers() (out []call) {
	for _, status := range []int{408, 425, 429, 500, 502, 503, 504} {
		out = append(out, call{
			name: fmt.Sprintf("status %d", status),
			steps: []step{{
				faults: []fault{{path: "/v1/jobs", does: answered, status: status, times: 2}},
				op:     "submit", args: submitJob, want: `{"ok":{"replayed":false}}`,
			}},
			jobs: 1, seen: map[string]int{"POST /v1/jobs": 3}, check: oneKey,
		})
	}
	return out
}

// redirects: a load balancer that sends http to https with a 301 makes a GET of a POST, and GET /v1/jobs is a call that succeeds.
func redirects() (out []call) {
	for _, status := range []int{301, 302, 303} {
		out = append(out, call{
			name: fmt.Sprintf("a redirect with %d", status),
			steps: []step{{
				faults: []fault{{path: "POST /v1/jobs", does: answered, status: status, header: map[string]string{"Location": "/v1/jobs"}}},
				op:     "submit", args: submitJob, want: fmt.Sprintf(`{"error":{"status":%d,"code":"","temporary":false,"detail":"~/v1/jobs"}}`, status),
			}},
			seen: map[string]int{"/v1/jobs": 1},
		})
	}
	for _, status := range []int{307, 308} {
		out = append(out, call{
			name: fmt.Sprintf("a redirect with %d", status),
			steps: []step{{
				faults: []fault{{path: "POST /v1/jobs", does: answered, status: status, header: map[string]string{"Location": "/v1/jobs"}}},
				op:     "submit", args: submitJob, want: `{"ok":{"replayed":false}}`,
			}},
			jobs: 1, seen: map[string]int{"POST /v1/jobs": 2}, check: oneKey,
		})
	}
	return append(out, call{
		name: "an endless redirect",
		steps: []step{
			{op: "open", args: `{"url":"${wire}","max_attempts":1}`, want: `{"ok":null}`},
			{
				faults: []fault{{path: "POST /v1/jobs", does: answered, status: 307, header: map[string]string{"Location": "/v1/jobs"}, times: 100}},
				op:     "submit", args: submitJob, want: `{"error":{"detail":"~redirect"}}`,
			},
		},
	})
}

// rubbish: JSON that anything may answer is not taken for a success, and the call is not repeated.
func rubbish() (out []call) {
	for _, c := range []struct{ op, args, path string }{
		{"submit", submitJob, "POST /v1/jobs"},
		{"submit_batch", `{"items":[{"function":"f"}]}`, "/v1/jobs/batch"},
		{"get", `{"id":"a"}`, "GET /v1/jobs/a"},
		{"wait", `{"id":"a"}`, "GET /v1/jobs/a"},
		{"list", `{}`, "GET /v1/jobs"},
		{"cancel", `{"id":"a"}`, "/v1/jobs/a/cancel"},
		{"claim", `{"worker":"w"}`, "/v1/jobs/claim"},
		{"heartbeat", `{"id":"a","lease_token":"t"}`, "/v1/jobs/a/heartbeat"},
		{"finish", `{"id":"a","lease_token":"t","status":"complete"}`, "/v1/jobs/a/finish"},
		{"retry", `{"id":"a","lease_token":"t"}`, "/v1/jobs/a/retry"},
		{"get_schedule", `{"name":"a"}`, "GET /v1/schedules/a"},
		{"delete_schedule", `{"name":"a"}`, "DELETE /v1/schedules/a"},
		{"list_schedules", `{}`, "/v1/schedules"},
		{"run_schedule", `{"name":"a","idempotency_key":"k"}`, "/v1/schedules/a/run"},
		{"functions", `{}`, "/v1/functions"},
		{"set_limits", `{"function":"a"}`, "/v1/functions/a"},
		{"reserve", `{"key":"a"}`, "/v1/ledger/reserve"},
		{"commit", `{"key":"a","token":"t","result":{"status":200}}`, "/v1/ledger/commit"},
	} {
		tried := call{name: "answers to " + c.op + " that are not of a manager", seen: map[string]int{c.path: len(notOfAManager)}}
		for _, body := range notOfAManager {
			tried.steps = append(tried.steps, step{
				faults: []fault{{path: c.path, does: answered, status: 200, body: body, times: 9}},
				op:     c.op, args: c.args, want: `{"error":{"status":0,"temporary":false,"detail":"~not of a manager"}}`,
			})
		}
		out = append(out, tried)
	}
	return out
}
