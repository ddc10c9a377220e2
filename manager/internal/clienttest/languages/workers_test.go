package languages

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// handlers are those by functions of the same names.
const handlers = `{"echo":"echo","nothing":"nothing","large":"large","umlauts":"umlauts","no_json":"no_json","deep":"deep","fail":"fail","fail_once":"fail_once",
	"permanent":"permanent","retry_after":"retry_after","crash":"crash","no_text":"no_text","endless":"endless"}`

// TestHandlers: how a handler ends decides what becomes of the job, in each language the same.
func TestHandlers(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	each(t, func(t *testing.T, l *language) {
		w := startWorld(t, l, nil)
		w.driver.work(handlers, "")
		for _, c := range []struct {
			handler, payload string
			state            client.State
			attempt          int
			result, errorHas string
		}{
			{"echo", `{"n":[1,"ü",null]}`, client.StateComplete, 1, `{"n":[1,"ü",null]}`, ""},
			{"echo", `"\u0000\ud83d\ude00"`, client.StateComplete, 1, "\"\\u0000\\ud83d\\ude00\"", ""},
			{"echo", `1e2`, client.StateComplete, 1, `100`, ""},
			{"nothing", `null`, client.StateComplete, 1, ``, ""},
			{"large", fmt.Sprint(len(large)), client.StateComplete, 1, `"` + large + `"`, ""},
			{"large", "1048576", client.StateFailed, 1, "", "at most 1048576"},
			{"umlauts", "262144", client.StateComplete, 1, `"` + strings.Repeat("ü", 262144) + `"`, ""},
			{"no_json", `null`, client.StateFailed, 1, "", "the work is done, but its result cannot be reported"},
			{"deep", `null`, client.StateFailed, 1, "", "the work is done, but its result cannot be reported"},
			{"fail", `null`, client.StateFailed, 3, "", "no 3"},
			{"fail_once", `null`, client.StateComplete, 2, `"now"`, ""},
			{"permanent", `null`, client.StateFailed, 1, "", "never"},
			{"retry_after", `0`, client.StateComplete, 2, `"later"`, ""},
			{"crash", `null`, client.StateFailed, 3, "", "oh no"},
			{"no_text", `null`, client.StateFailed, 3, "", "without a text"},
			{"endless", `null`, client.StateFailed, 1, "", "üü"},
		} {
			j := w.over(w.submit(client.Submission{Function: c.handler, Payload: rawJSON(c.payload), MaxAttempts: 3}))
			if j.State != c.state || j.Attempt != c.attempt || !sameJSON(string(j.Result), c.result) || !strings.Contains(j.Error, c.errorHas) || strings.Contains(j.Error, "\uFFFD") {
				t.Errorf("%s of %.60s: %s after %d attempts with result %.60s and error %.200s", c.handler, c.payload, j.State, j.Attempt, j.Result, j.Error)
			}
		}
		id := w.submit(client.Submission{Function: "retry_after", Payload: rawJSON("10800000")})
		eventually(t, "the job waits", func() bool {
			j := w.job(id)
			return j.State == client.StateScheduled && j.RunAt.Sub(j.StartedAt) >= 3*time.Hour && j.Error == "soon"
		})
		w.driver.must("stop", "")
	})
}

// sameJSON reports whether two texts are the same value, or both empty.
func sameJSON(a, b string) bool {
	var x, y any
	if a == "" || b == "" {
		return a == b
	}
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// workerCase is a case of TestWorkers.
type workerCase struct {
	name   string
	frozen bool // the manager's clock stands still, so that no busy machine ends a lease
	test   func(w *world)
}

// shortLease is the shortest that a worker takes: it beats every 33 ms.
const shortLease = `,"lease_ms":100`

// TestWorkers runs the table of workers with each client.
func TestWorkers(t *testing.T) {
	each(t, func(t *testing.T, l *language) {
		for _, c := range workerCases {
			t.Run(c.name, func(t *testing.T) {
				clock := time.Now
				if c.frozen {
					now := time.Now()
					clock = func() time.Time { return now }
				}
				c.test(startWorld(t, l, clock))
			})
		}
	})
}

// begun waits for the n-th begin of a handler.
func (w *world) begun(n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d handlers begin", n), func() bool { return count(w.driver.events(), "begin", "*") >= n })
}

// count counts events with a cause, "*" for any.
func count(all []event, name, cause string) (n int) {
	for _, e := range all {
		if e.Event == name && (cause == "*" || e.Cause == cause) {
			n++
		}
	}
	return n
}

// beats counts the heartbeats.
func (w *world) beats() int { return len(w.wire.requests("/heartbeat")) }

// reports counts the reports of jobs.
func (w *world) reports() int {
	return len(w.wire.requests("/finish")) + len(w.wire.requests("/retry"))
}

func (w *world) want(id string, state client.State, attempt int) {
	w.t.Helper()
	if j := w.over(id); j.State != state || j.Attempt != attempt {
		w.t.Errorf("job %s is %s after %d attempts, want %s after %d: %.200s", id, j.State, j.Attempt, state, attempt, j.Error)
	}
}

var workerCases = []workerCase{
	{"a cancel", true, func(w *world) {
		w.driver.work(`{"wait":"wait","finish_anyway":"finish_anyway"}`, shortLease)
		for i, f := range []string{"wait", "finish_anyway"} {
			id := w.submit(client.Submission{Function: f})
			w.begun(i + 1)
			if _, err := admin.New(w.judge).Cancel(w.t.Context(), id); err != nil {
				w.t.Fatal(err)
			}
			j := w.over(id)
			if want := []client.State{client.StateCancelled, client.StateComplete}[i]; j.State != want || !strings.Contains(j.Error+string(j.Result), "cancelled") {
				w.t.Errorf("%s: job %+v", f, j)
			}
		}
		if n := count(w.driver.events(), "end", "cancelled"); n != 2 {
			w.t.Errorf("%d handlers knew that they were cancelled", n)
		}
	}},
	{"an attempt that takes too long", false, func(w *world) {
		w.driver.work(`{"f":"wait"}`, `,"lease_ms":300`)
		id := w.submit(client.Submission{Timeout: 200 * time.Millisecond, MaxAttempts: 2})
		w.want(id, client.StateFailed, 2)
		// The manager may notice it first.
		eventually(w.t, "the handlers end", func() bool {
			all := w.driver.events()
			return count(all, "end", "timeout")+count(all, "end", "lease-lost") == 2
		})
	}},
	{"heartbeats, some of them lost", true, func(w *world) {
		w.driver.work(`{"f":"wait"}`, shortLease)
		id := w.submit(client.Submission{MaxAttempts: 1})
		eventually(w.t, "beats", func() bool { return w.beats() > 2 })
		w.wire.set(fault{path: "/heartbeat", does: cutBefore, times: 2}, fault{path: "/heartbeat", does: cutAfter, times: 2}, fault{path: "/heartbeat", does: held, times: 2})
		n := w.beats()
		eventually(w.t, "more beats", func() bool { return w.beats() > n+9 })
		w.driver.must("go_on", "")
		w.want(id, client.StateComplete, 1)
		w.begun(1)
		if n := count(w.driver.events(), "end", ""); n != 1 {
			w.t.Errorf("events %+v", w.driver.events())
		}
	}},
	{"a lost lease", false, func(w *world) {
		w.wire.set(fault{path: "/heartbeat", does: cutBefore, times: 1 << 30})
		w.driver.work(`{"f":"wait"}`, `,"lease_ms":3000,"wait_ms":60000`)
		id := w.submit(client.Submission{MaxAttempts: 2})
		w.begun(2) // the same worker got it again
		w.wire.set()
		eventually(w.t, "the first run is over", func() bool { return count(w.driver.events(), "end", "*") == 1 })
		if n := w.reports(); n != 0 {
			w.t.Errorf("%d reports of a lost lease", n)
		}
		w.driver.must("go_on", "")
		w.want(id, client.StateComplete, 2)
		all := w.driver.events()
		if count(all, "end", "lease-lost") != 1 || all[2].Attempt != 1 || all[2].Cause != "lease-lost" {
			w.t.Errorf("events %+v", all)
		}
	}},
	{"lost reports", false, func(w *world) {
		w.wire.set(
			fault{path: "/finish", does: cutBefore, times: 2}, fault{path: "/retry", does: cutBefore, times: 2},
			fault{path: "/finish", does: cutAfter, times: 3}, fault{path: "/retry", does: cutAfter, times: 3},
		)
		w.driver.work(`{"f":"fail_once"}`, `,"lease_ms":3600000`)
		for range 5 {
			w.want(w.submit(client.Submission{}), client.StateComplete, 2)
		}
		if n := count(w.driver.events(), "begin", "*"); n != 10 {
			w.t.Errorf("%d runs", n)
		}
	}},
	{"a report that the manager takes later than calls may wait", false, func(w *world) {
		w.driver.open(w.wire.url(), `,"max_retry_after_ms":1,"max_attempts":1`)
		busy := fault{does: answered, status: 503, header: map[string]string{"Content-Type": "application/problem+json", "Retry-After": "1"}, body: `{"status":503,"code":"overloaded"}`, times: 1}
		finish, retry := busy, busy
		finish.path, retry.path = "/finish", "/retry"
		w.wire.set(finish, retry)
		w.driver.work(`{"f":"fail_once"}`, `,"lease_ms":5000`)
		w.want(w.submit(client.Submission{MaxAttempts: 2}), client.StateComplete, 2)
	}},
	{"a report that the manager cannot write for a while", false, func(w *world) {
		w.driver.work(`{"f":"nothing"}`, `,"lease_ms":5000`)
		for _, code := range []string{"overloaded", "unavailable", "store-full", "insufficient-storage"} {
			w.wire.set(fault{path: "/v1/jobs/finish", does: answered, status: 200, body: fmt.Sprintf(`{"results":[{"id":%q,"problem":{"status":503,"code":%q}}]}`, code, code), times: 1})
			w.want(w.submit(client.Submission{ID: code, MaxAttempts: 1}), client.StateComplete, 1)
		}
	}},
	{"a report of a job whose record an operator has to mend", false, func(w *world) {
		f := unreadable("/v1/jobs/a/finish")
		f.times = 1 << 30
		w.wire.set(f, fault{path: "/v1/jobs/finish", does: answered, status: 200, body: `{"results":[{"id":"a","problem":{"status":500,"code":"record-unreadable"}}]}`, times: 1 << 30})
		w.driver.work(`{"f":"nothing"}`, "")
		w.submit(client.Submission{ID: "a"})
		eventually(w.t, "the worker says that the report failed", func() bool { return strings.Contains(w.driver.errors.String(), "record-unreadable") })
		if n := w.reports(); n != 1 {
			w.t.Errorf("%d reports", n)
		}
	}},
	{"a manager that stops while handlers run", true, func(w *world) {
		w.driver.work(`{"f":"wait"}`, shortLease)
		var ids []string
		for range 3 {
			ids = append(ids, w.submit(client.Submission{MaxAttempts: 1}))
		}
		w.begun(3)
		w.manager.Stop()
		lost := w.wire.refused()
		eventually(w.t, "heartbeats find nobody", func() bool { return w.wire.refused() > lost+20 })
		w.driver.must("go_on", "")
		eventually(w.t, "handlers return", func() bool { return count(w.driver.events(), "end", "") == 3 })
		w.manager.Resume()
		for _, id := range ids {
			w.want(id, client.StateComplete, 1)
		}
	}},
	{"as many handlers as allowed", false, func(w *world) {
		w.driver.work(`{"f":"wait"}`, `,"concurrency":3,"lease_ms":3600000`)
		var ids []string
		for range 10 {
			ids = append(ids, w.submit(client.Submission{}))
		}
		w.begun(3)
		for _, j := range w.all() {
			if j.State == client.StateActive != slices.Contains(ids[:3], j.ID) {
				w.t.Errorf("job %s is %s", j.ID, j.State)
			}
		}
		w.driver.must("go_on", "")
		for _, id := range ids {
			w.want(id, client.StateComplete, 1)
		}
		running, most := 0, 0
		for _, e := range w.driver.events() {
			if running--; e.Event == "begin" {
				running += 2
			}
			most = max(most, running)
		}
		if most != 3 {
			w.t.Errorf("%d handlers at a time", most)
		}
	}},
	{"a stop that waits for handlers", false, func(w *world) {
		w.driver.work(`{"f":"sleep"}`, `,"concurrency":1`)
		id := w.submit(client.Submission{Payload: 200})
		w.begun(1)
		next := w.submit(client.Submission{Payload: 0})
		w.driver.must("stop", "")
		w.want(id, client.StateComplete, 1)
		if j := w.job(next); j.State != client.StateQueued || j.Attempt != 0 {
			w.t.Errorf("the next job: %+v", j)
		}
	}},
	{"a stop that ends handlers", false, func(w *world) {
		w.driver.work(`{"f":"wait"}`, `,"stop_timeout_ms":1,"stop_grace_ms":60000`)
		id := w.submit(client.Submission{MaxAttempts: 1})
		w.begun(1)
		w.driver.must("stop", "")
		if j := w.job(id); j.State != client.StateQueued || j.Attempt != 0 || count(w.driver.events(), "end", "stopping") != 1 {
			w.t.Errorf("the job that could not be done: %+v, events %+v", j, w.driver.events())
		}
	}},
	{"a stop whose handlers finish anyway", false, func(w *world) {
		w.driver.work(`{"f":"finish_anyway"}`, `,"stop_timeout_ms":1,"stop_grace_ms":60000`)
		id := w.submit(client.Submission{MaxAttempts: 1})
		w.begun(1)
		w.driver.must("stop", "")
		w.want(id, client.StateComplete, 1)
	}},
	{"a stop that handlers do not follow", false, func(w *world) {
		w.driver.work(`{"f":"stubborn"}`, `,"stop_timeout_ms":1,"stop_grace_ms":1`)
		w.submit(client.Submission{})
		w.begun(1)
		if a := w.driver.call("stop", "", 0); match(`{"error":{"detail":"~1 handlers did not return"}}`, a.text) != "" {
			w.t.Errorf("stopped with %s", a.text)
		}
	}},
	{"stops of a worker that waits for jobs", false, func(w *world) {
		claims := 0
		for range 10 {
			w.driver.work(`{"f":"nothing"}`, `,"lease_ms":3600000`)
			eventually(w.t, "the worker waits", func() bool { return len(w.wire.requests("/claim")) > claims })
			claims = len(w.wire.requests("/claim"))
			stopped := w.driver.begin("stop", "", 0)
			id := w.submit(client.Submission{})
			if a := await(w.t, "the stop", stopped); a.Error != nil {
				w.t.Fatal(a.text)
			}
			// Whether the worker still got it or not: it is done, or it waits.
			eventually(w.t, "the job is done or back", func() bool {
				j := w.job(id)
				return j.State == client.StateComplete || j.State == client.StateQueued && j.Attempt == 0
			})
			if _, err := admin.New(w.judge).Cancel(w.t.Context(), id); err != nil && !client.HasCode(err, api.CodeConflict) {
				w.t.Fatal(err)
			}
		}
	}},
	{"SIGTERM", false, func(w *world) {
		w.driver.work(`{"f":"sleep"}`, "")
		id := w.submit(client.Submission{Payload: 200})
		w.begun(1)
		if err := w.driver.terminate(); err != nil {
			w.t.Errorf("the driver ended with %v", err)
		}
		w.want(id, client.StateComplete, 1)
	}},
	{"claims that come back at once with nothing", false, func(w *world) {
		w.driver.open(w.wire.url(), `,"backoff_base_ms":86400000,"backoff_max_ms":86400000`)
		w.wire.set(fault{path: "/claim", does: answered, status: 200, body: `{"jobs":[]}`, times: 1 << 30})
		w.driver.work(`{"f":"nothing"}`, "")
		eventually(w.t, "a claim", func() bool { return len(w.wire.requests("/claim")) > 0 })
		for range 20 { // time in which a worker that asks again would ask often
			w.all()
		}
		w.driver.must("stop", "")
		if n := len(w.wire.requests("/claim")); n != 1 {
			w.t.Errorf("%d claims", n)
		}
	}},
	{"claims that fail", false, func(w *world) {
		w.wire.set(fault{path: "/claim", does: cutAfter, times: 2}, fault{path: "/claim", does: answered, status: 500, times: 2},
			fault{path: "/claim", does: answered, status: 200, body: `{}`, times: 2})
		w.driver.work(`{"f":"nothing"}`, `,"wait_ms":100`)
		eventually(w.t, "claims", func() bool { return len(w.wire.requests("/claim")) > 6 })
		w.want(w.submit(client.Submission{}), client.StateComplete, 1)
	}},
	{"options that cannot be", false, func(w *world) {
		for _, args := range []string{
			`{"handlers":{},"log":"LOG"}`, `{"handlers":{"no name":"echo"},"log":"LOG"}`, `{"handlers":{"f":"echo"},"log":"LOG","concurrency":1001}`,
			`{"handlers":{"f":"echo"},"log":"LOG","concurrency":-1}`, `{"handlers":{"f":"echo"},"log":"LOG","lease_ms":99}`,
			`{"handlers":{"f":"echo"},"log":"LOG","wait_ms":300001}`, `{"handlers":{"f":"echo"},"log":"LOG","name":"a b"}`,
			`{"handlers":{"f":"echo"},"log":"LOG","stop_timeout_ms":-1}`,
		} {
			if a := w.driver.call("work", strings.Replace(args, "LOG", w.driver.log, 1), 0); match(`{"error":{"status":0,"temporary":false,"detail":"*"}}`, a.text) != "" {
				w.t.Errorf("%s: %s", args, a.text)
			}
		}
	}},
}
