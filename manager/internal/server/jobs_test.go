package server

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// jobSite is a site with a job queue.
type jobSite struct {
	*site
	store  *clockedStore
	queue  *jobs.Queue
	ledger *ledger.Ledger
}

// clockedStore has a clock that tests move, and fails on demand.
type clockedStore struct {
	store.Store
	offset  atomic.Int64
	broken  atomic.Bool
	updates atomic.Int64
}

func (c *clockedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if c.broken.Load() {
		return store.ErrUnavailable
	}
	c.updates.Add(1)
	return c.Store.Update(ctx, fn)
}

func newClockedStore() *clockedStore {
	c := new(clockedStore)
	c.Store = mem.New(mem.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }})
	return c
}

func newJobSite(t *testing.T, lo ledger.Options) *jobSite {
	t.Helper()
	return newJobSiteWith(t, lo, jobs.Options{})
}

func newJobSiteWith(t *testing.T, lo ledger.Options, jo jobs.Options) *jobSite {
	t.Helper()
	j := &jobSite{store: newClockedStore()}
	var err error
	if j.ledger, err = ledger.New(j.store, lo); err != nil {
		t.Fatal(err)
	}
	if j.queue, err = jobs.New(j.store, jo); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.queue.Close()
		_ = j.store.Close()
	})
	j.site = newSite(t, siteOptions{
		routes: JobRoutes(j.ledger, j.queue),
		server: Options{Options: httpd.Options{MaxBodyBytes: 3 << 20}},
	})
	return j
}

// call sends JSON, expects a status and returns the answer.
func (j *jobSite) call(want int, method, path, body string, header ...string) map[string]any {
	j.t.Helper()
	a := j.Do(method, path, "application/json", body, header...)
	if a.Status != want {
		j.t.Fatalf("%s %s %.200s: got %d, want %d: %.400s", method, path, body, a.Status, want, a.Body)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(a.Body), &m); err != nil {
		j.t.Fatalf("%s %s: %v: %.400s", method, path, err, a.Body)
	}
	return m
}

// wantCode expects a problem.
func (j *jobSite) wantCode(status int, code api.Code, method, path, body string, header ...string) string {
	j.t.Helper()
	m := j.call(status, method, path, body, header...)
	if m["code"] != string(code) {
		j.t.Fatalf("%s %s %.200s: problem %v, want %s", method, path, body, m, code)
	}
	detail, _ := m["detail"].(string)
	return detail
}

// claimOne claims a job and returns it with its token.
func (j *jobSite) claimOne() (id, token string, job map[string]any) {
	j.t.Helper()
	list := j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w"}`)["jobs"].([]any)
	if len(list) != 1 {
		j.t.Fatalf("claimed %v", list)
	}
	job = list[0].(map[string]any)
	return job["id"].(string), job["lease"].(map[string]any)["token"].(string), job
}

func (j *jobSite) depth() jobs.Depth {
	j.t.Helper()
	d, err := j.queue.Depth(context.Background())
	if err != nil {
		j.t.Fatal(err)
	}
	return d
}

func TestJobLifeOverHTTP(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	made := j.call(202, "POST", "/v1/jobs", `{"function":"f","payload":{"a":[1,null]},"id":"j1","key":"k\"1","priority":-3,
			"max_attempts":2,"wal_locations":{"ma\"in":"0/16b3748"},"dedup":{"strategy":"until_executed","key":"d","ttl_ms":5000,
			"if_deduplicated":"reschedule_once"},"on_duplicate":null}`)
	for field, want := range map[string]string{
		"id": "j1", "function": "f", "key": `k"1`, "state": "queued", "priority": "-3", "attempt": "0", "max_attempts": "2",
		"payload_bytes": "14", "wal_locations": `map[ma"in:0/16B3748]`,
		"dedup": "map[if_deduplicated:reschedule_once key:d strategy:until_executed ttl_ms:5000]",
	} {
		if got := fmt.Sprint(made[field]); got != want {
			t.Errorf("%s: got %s, want %s", field, got, want)
		}
	}
	if _, err := time.Parse(time.RFC3339Nano, made["run_at"].(string)); err != nil {
		t.Error(err)
	}
	dup := j.call(200, "POST", "/v1/jobs", `{"function":"f","dedup":{"key":"d"}}`)
	if dup["id"] != "j1" || dup["deduplicated"] != true {
		t.Errorf("duplicate: %v", dup)
	}
	existing := j.call(200, "POST", "/v1/jobs", `{"function":"f","key":"k\"1","on_duplicate":"return_existing"}`)
	if existing["id"] != "j1" || existing["existing"] != true {
		t.Errorf("existing: %v", existing)
	}
	if d := j.wantCode(409, api.CodeDuplicateKey, "POST", "/v1/jobs", `{"function":"f","key":"k\"1"}`); !strings.Contains(d, "j1") {
		t.Errorf("problem %q does not name the holder", d)
	}
	id, token, claimed := j.claimOne()
	if id != "j1" || fmt.Sprint(claimed["wal_locations"]) != `map[ma"in:0/16B3748]` || claimed["state"] != "active" {
		t.Errorf("claimed %v", claimed)
	}
	if got := j.call(200, "GET", "/v1/jobs/j1", ""); strings.Contains(fmt.Sprint(got), token) {
		t.Error("the lease's token is shown to everybody")
	}
	beat := j.call(200, "POST", "/v1/jobs/j1/heartbeat", `{"lease_token":"`+token+`","lease_ms":90000}`)
	if beat["cancelled"] != false || beat["expires_in_ms"] != 90000.0 {
		t.Errorf("heartbeat %v", beat)
	}
	j.wantCode(409, api.CodeFenced, "POST", "/v1/jobs/j1/heartbeat", `{"lease_token":"stale"}`)
	j.wantCode(409, api.CodeFenced, "POST", "/v1/jobs/j1/finish", `{"lease_token":"stale","status":"complete"}`)
	back := j.call(200, "POST", "/v1/jobs/j1/retry", `{"lease_token":"`+token+`","delay_ms":0,"error":"once more"}`)
	if back["state"] != "queued" || back["error"] != "once more" {
		t.Errorf("retry %v", back)
	}
	_, token, _ = j.claimOne()
	j.wantCode(409, api.CodeConflict, "POST", "/v1/jobs/j1/retry", `{"lease_token":"`+token+`"}`)
	if got := j.call(200, "POST", "/v1/jobs/j1/cancel", `{}`); got["cancel_requested"] != true {
		t.Errorf("cancel %v", got)
	}
	if beat := j.call(200, "POST", "/v1/jobs/j1/heartbeat", `{"lease_token":"`+token+`"}`); beat["cancelled"] != true {
		t.Errorf("heartbeat after cancel %v", beat)
	}
	done := j.call(200, "POST", "/v1/jobs/j1/finish", `{"lease_token":"`+token+`","status":"failed","result":null,"error":"boom"}`)
	if done["state"] != "failed" {
		t.Errorf("finish %v", done)
	}
	letters := j.call(200, "GET", "/v1/functions/f/dead-letters", "")["dead_letters"].([]any)
	letter := letters[0].(map[string]any)
	if len(letters) != 1 || letter["id"] != "j1" || letter["reason"] != "boom" || letter["job"].(map[string]any)["payload"] == nil {
		t.Errorf("dead letters %v", letters)
	}
	replayed := j.call(202, "POST", "/v1/functions/f/dead-letters/j1/replay", ``)
	if replayed["state"] != "queued" || replayed["id"] == "j1" {
		t.Errorf("replay %v", replayed)
	}
	for _, path := range []string{"/v1/functions/f/dead-letters/j1/replay", "/v1/jobs/j1/retry"} {
		if again := j.wantCode(409, api.CodeConflict, "POST", path, `{}`); !strings.Contains(again, replayed["id"].(string)) {
			t.Errorf("%s again: %s", path, again)
		}
	}
	if old := j.call(200, "GET", "/v1/jobs/j1", ""); old["state"] != "replayed" || old["replayed_as"] != replayed["id"] {
		t.Errorf("the replayed job: %v", old)
	}
	list := j.call(200, "GET", "/v1/jobs?function=f&state=replayed&limit=5", "")
	if got := list["jobs"].([]any); len(got) != 1 || got[0].(map[string]any)["payload"] != nil || list["cursor"] != "" {
		t.Errorf("list %v", list)
	}
	if got := j.call(200, "GET", "/v1/jobs?payloads=true", "")["jobs"].([]any); got[0].(map[string]any)["payload"] == nil {
		t.Errorf("list %v", got)
	}
	j.call(200, "GET", "/v1/jobs?function=&state=&limit=&cursor=&payloads=", "")
	page := j.call(200, "GET", "/v1/jobs?limit=1", "")
	if got := j.call(200, "GET", "/v1/jobs?limit=1&cursor="+page["cursor"].(string), "")["jobs"].([]any); len(got) != 1 || got[0].(map[string]any)["id"] != "j1" {
		t.Errorf("second page %v", got)
	}
	j.call(200, "POST", "/v1/functions/f/pause", "")
	if got := j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w","functions":["f"]}`)["jobs"].([]any); len(got) != 0 {
		t.Errorf("claimed %v while paused", got)
	}
	functions := j.call(200, "GET", "/v1/functions?limit=10", "")
	want := regexp.MustCompile(`^\[map\[active:0 dead:0 last_minute:map\[claimed:2 completed:0 enqueued:2 failed:1 retried:1\] name:f oldest_queued_ms:\d+ paused:true paused_at:\S+ queued:1 scheduled:0\]\]$`)
	if got := fmt.Sprint(functions["functions"]); !want.MatchString(got) {
		t.Errorf("functions %s", got)
	}
	j.call(200, "POST", "/v1/functions/f/resume", "{}")
	_, token, job := j.claimOne()
	many := j.call(200, "POST", "/v1/jobs/finish", `{"finishes":[{"id":"`+job["id"].(string)+`","lease_token":"`+token+`","status":"complete","result":{"n":1}},
			{"id":"nobody","lease_token":"t","status":"complete"}]}`)["results"].([]any)
	if one, two := many[0].(map[string]any), many[1].(map[string]any); one["state"] != "complete" || two["problem"].(map[string]any)["code"] != "not-found" {
		t.Errorf("finish of many: %v", many)
	}
	if got := j.call(200, "GET", "/v1/jobs/"+job["id"].(string)+"?wait_ms=1000", ""); fmt.Sprint(got["result"]) != "map[n:1]" {
		t.Errorf("result %v", got)
	}
	stats := j.call(200, "GET", "/v1/jobs/stats", "")
	if got := fmt.Sprint(stats["jobs"]); got != "map[active:0 dead:0 done:2 queued:0 scheduled:0]" || stats["calls"].(map[string]any)["claimed"] != 3.0 {
		t.Errorf("stats %v", stats)
	}
}

func TestClaimWaitsOverHTTP(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	waiting := func(n int64) {
		t.Helper()
		j.Eventually(fmt.Sprint(n, " calls wait"), func() bool { return j.queue.Counters().Waiting == n })
	}
	got := make(chan map[string]any, 1)
	go func() {
		got <- j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w","functions":["f","g"],"wait_ms":300000}`)
	}()
	waiting(1)
	j.call(202, "POST", "/v1/jobs", `{"function":"g","id":"a"}`)
	claimed := (<-got)["jobs"].([]any)[0].(map[string]any)
	token := claimed["lease"].(map[string]any)["token"].(string)

	go func() { got <- j.call(200, "GET", "/v1/jobs/a?wait_ms=300000", "") }()
	waiting(1)
	j.call(200, "POST", "/v1/jobs/a/finish", `{"lease_token":"`+token+`","status":"complete","result":[1]}`)
	if r := <-got; r["state"] != "complete" || fmt.Sprint(r["result"]) != "[1]" {
		t.Errorf("waited for %v", r)
	}

	// A client that leaves ends its wait and takes nothing.
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := j.Try(ctx, "POST", "/v1/jobs/claim", "application/json", `{"worker":"w","wait_ms":300000}`)
		left <- err
	}()
	waiting(1)
	cancel()
	if err := <-left; err == nil {
		t.Error("the client got an answer after it left")
	}
	waiting(0)
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"b"}`)
	if id, _, job := j.claimOne(); id != "b" || job["attempt"] != 1.0 {
		t.Errorf("claimed %v", job)
	}

	go func() { got <- j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w","wait_ms":300000}`) }()
	waiting(1)
	j.queue.Drain()
	if r := <-got; len(r["jobs"].([]any)) != 0 {
		t.Errorf("drained claim: %v", r)
	}
}

// leaving is the context of a client that leaves while its claim waits, at the moment
// at which a job comes.
type leaving struct {
	context.Context
	gone atomic.Bool
}

func (l *leaving) Err() error {
	if l.gone.Load() {
		return context.Canceled
	}
	return nil
}

func TestClaimOfAClientThatLeftIsUndone(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	ctx := &leaving{Context: t.Context()}
	claim := func(body string) string {
		var w httpd.Response
		j.server.Do(ctx, &httpd.Direct{Method: "POST", Path: "/v1/jobs/claim", Body: []byte(body)}, &w)
		return string(w.Body)
	}
	answered := make(chan string, 1)
	go func() { answered <- claim(`{"worker":"w","wait_ms":300000}`) }()
	j.Eventually("the claim waits", func() bool { return j.queue.Counters().Waiting == 1 })
	ctx.gone.Store(true)
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a"}`)
	if got := <-answered; got != `{"jobs":[]}` {
		t.Errorf("answered %s", got)
	}
	for _, body := range []string{`{"worker":"w"}`, `{"worker":"w","wait_ms":300000}`} { // they find the job at once
		if got := claim(body); got != `{"jobs":[]}` {
			t.Errorf("%s: answered %s", body, got)
		}
	}
	if id, _, job := j.claimOne(); id != "a" || job["attempt"] != 1.0 {
		t.Errorf("claimed %v", job)
	}
}

func TestUndeliveredClaimIsUndone(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a"}`)
	var w httpd.Response
	j.server.Do(t.Context(), &httpd.Direct{Method: "POST", Path: "/v1/jobs/claim", Body: []byte(`{"worker":"w"}`)}, &w)
	if err := w.Undelivered(); err != nil {
		t.Fatal(err)
	}
	if id, _, job := j.claimOne(); id != "a" || job["attempt"] != 1.0 {
		t.Errorf("claimed %v", job)
	}
}

// Without a collector a job keeps the traceparent of its submission, and costs nothing without one.
func TestJobsPassTheTraceOn(t *testing.T) {
	s := newJobSite(t, ledger.Options{})
	const trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for id, header := range map[string]string{"a": trace, "b": "00-nonsense", "c": ""} {
		a := s.Do("POST", "/v1/jobs", api.ContentTypeJSON, `{"function":"f","id":"`+id+`","payload":1}`, "traceparent", header)
		if a.Status != 202 || strings.Contains(a.Body, "traceparent") {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	a := s.Do("POST", "/v1/jobs/claim", api.ContentTypeJSON, `{"worker":"w","limit":3}`)
	var got struct {
		Jobs []struct {
			ID, Traceparent string
			Lease           struct{ Token string }
		}
	}
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || len(got.Jobs) != 3 {
		t.Fatalf("%v: %s", err, a.Body)
	}
	for _, j := range got.Jobs {
		if want := map[string]string{"a": trace}[j.ID]; j.Traceparent != want {
			t.Errorf("job %s has %q, want %q", j.ID, j.Traceparent, want)
		}
		if j.ID == "a" {
			s.Do("POST", "/v1/jobs/a/finish", api.ContentTypeJSON, `{"lease_token":"`+j.Lease.Token+`","status":"failed","error":"no \"ink\""}`)
		}
	}
	a = s.Do("GET", "/v1/jobs/a", "", "")
	if !strings.Contains(a.Body, `"traceparent":"`+trace+`"`) || !strings.Contains(a.Body, `"errors":[{"attempt":1,"at":"20`) || !strings.Contains(a.Body, `Z","worker":"w","error":"no \"ink\""}]`) {
		t.Error(a.Body)
	}
}
