package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func TestSubmitRepeatsWithOneKey(t *testing.T) {
	m := startManager(t)
	f := &faults{before: map[string]int{"/v1/jobs": 2}, after: map[string]int{"/v1/jobs": 3}}
	c := m.client(f)
	j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Payload: map[string]int{"a": 1}, WALLocations: map[string]string{"main": "0/1"}})
	if err != nil {
		t.Fatal(err)
	}
	if !j.Replayed || j.State != "queued" || j.PayloadBytes != 7 || j.WALLocations["main"] != "0/1" {
		t.Errorf("job %+v", j)
	}
	attempts := f.requests("/v1/jobs")
	if len(attempts) != 6 {
		t.Errorf("%d attempts, want 2 cut before, 3 after and one answered", len(attempts))
	}
	key := attempts[0].Header.Get("Idempotency-Key")
	for _, r := range attempts {
		if r.Header.Get("Idempotency-Key") != key || !strings.HasPrefix(key, c.Keys().ClientID()+":1:") {
			t.Errorf("key %q, first %q", r.Header.Get("Idempotency-Key"), key)
		}
	}
	if all := m.all(); len(all) != 1 || all[0].ID != j.ID {
		t.Errorf("%d jobs", len(all))
	}
	// Another submission has another key; the caller's own is used as it is.
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f"}); err != nil {
		t.Fatal(err)
	}
	mine := client.Submission{Function: "f", IdempotencyKey: "mine"}
	one, err1 := c.SubmitIdempotent(t.Context(), mine)
	two, err2 := c.SubmitIdempotent(t.Context(), mine)
	if err1 != nil || err2 != nil || one.ID != two.ID || one.Replayed || !two.Replayed {
		t.Errorf("%+v %v, %+v %v", one, err1, two, err2)
	}
	if n := len(m.all()); n != 3 {
		t.Errorf("%d jobs, want 3", n)
	}
}

func TestSubmitOutlivesTheManager(t *testing.T) {
	m := startManager(t)
	c := m.client(nil)
	m.stop()
	type result struct {
		j   *client.Job
		err error
	}
	got := make(chan result, 1)
	go func() {
		j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f"})
		got <- result{j, err}
	}()
	m.listen()
	if r := <-got; r.err != nil || len(m.all()) != 1 {
		t.Errorf("%+v, %v", r.j, r.err)
	}
}

func TestRefusalsAreFinal(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	c := m.client(f)
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	_, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Key: "k"})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 409 || !client.HasCode(err, api.CodeDuplicateKey) || e.Detail == "" {
		t.Errorf("duplicate key: %v", err)
	}
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: ""}); !client.HasCode(err, api.CodeInvalidRequest) {
		t.Errorf("no function: %v", err)
	}
	_, err1 := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", IdempotencyKey: "x", Payload: 1})
	_, err2 := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", IdempotencyKey: "x", Payload: 2})
	if err1 != nil || !client.HasCode(err2, api.CodeFingerprintMismatch) {
		t.Errorf("%v, then with another payload: %v", err1, err2)
	}
	if _, err := c.Get(t.Context(), "nobody"); !client.HasCode(err, api.CodeNotFound) {
		t.Errorf("unknown job: %v", err)
	}
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Payload: func() {}}); err == nil {
		t.Error("a payload that is no JSON was accepted")
	}
	for _, key := range []string{"a\nb", "a,b", " ", "ü", strings.Repeat("k", 600)} { // the manager would never take it, however often it is tried
		if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", IdempotencyKey: key}); err == nil || !strings.Contains(err.Error(), "idempotency key") {
			t.Errorf("key %.20q: %v", key, err)
		}
	}
	if n := len(f.requests("/v1/jobs")); n != 5 {
		t.Errorf("%d requests, want one per call", n)
	}
}

func TestWhatIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		first *http.Response
		again bool
	}{
		{"overloaded", response(503, api.ContentTypeProblem, `{"code":"overloaded","title":"t"}`), true},
		{"a proxy's 502", response(502, "text/html", "<h1>bad gateway</h1>"), true},
		{"too many requests", response(429, "text/plain", ""), true},
		{"pending", response(409, api.ContentTypeProblem, `{"code":"request-pending","detail":"d"}`), true},
		{"internal error", response(500, api.ContentTypeProblem, `{"code":"internal","title":"t"}`), true},
		{"a recorded 500", response(500, "text/plain", "boom", "Idempotent-Replayed", "true"), false},
		{"unauthorized", response(401, api.ContentTypeProblem, `{"code":"unauthorized","title":"t"}`), false},
		{"conflict", response(409, api.ContentTypeProblem, `{"code":"conflict","title":"t"}`), false},
		{"a success that is not of a manager", response(200, "text/html", "<h1>hello</h1>"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := startManager(t)
			f := &faults{}
			first := true
			f.answer = func(*http.Request) *http.Response {
				if !first {
					return nil
				}
				first = false
				return c.first
			}
			_, err := m.client(f).SubmitIdempotent(t.Context(), client.Submission{Function: "f"})
			if n := len(f.requests("/v1/jobs")); (n == 2) != c.again || (err == nil) != c.again {
				t.Errorf("%d requests, %v", n, err)
			}
		})
	}
}

func TestRetriesAreBounded(t *testing.T) {
	m := startManager(t)
	f := &faults{answer: func(*http.Request) *http.Response {
		return response(503, api.ContentTypeProblem, `{"code":"overloaded","title":"Overloaded"}`)
	}}
	c := m.clientWith(f, client.Options{MaxAttempts: 3})
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f"}); !client.HasCode(err, api.CodeOverloaded) || len(f.requests("/v1/jobs")) != 3 {
		t.Errorf("%d requests, %v", len(f.requests("/v1/jobs")), err)
	}
	// The context bounds them as well, in the middle of a pause, and the error
	// reports both.
	c = m.clientWith(f, client.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	f.answer = func(*http.Request) *http.Response {
		cancel()
		return response(503, api.ContentTypeProblem, `{"code":"ledger-full","title":"t"}`, "Retry-After", "3600")
	}
	if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "f"}); !client.HasCode(err, api.CodeLedgerFull) || !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

func TestTokenIsSent(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	c := m.clientWith(f, client.Options{Token: "secret"})
	if _, err := admin.New(c).Functions(t.Context(), 0, ""); err != nil {
		t.Fatal(err)
	}
	if got := f.requests("/v1/functions")[0].Header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("authorization %q", got)
	}
}

func TestWaitReturnsTheJobsEnd(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	c := m.client(f)
	m.work(m.client(nil), client.WorkerOptions{Handlers: map[string]client.Handler{
		"double": func(_ context.Context, j *client.Job) (any, error) {
			var n int
			err := json.Unmarshal(j.Payload, &n)
			return 2 * n, err
		},
	}})
	f.set(map[string]int{"/v1/jobs": 1}, map[string]int{"/v1/jobs": 1})
	j, err := c.WaitIdempotent(t.Context(), client.Submission{Function: "double", Payload: 21})
	if err != nil || j.State != "complete" || string(j.Result) != "42" || !j.Terminal() || !j.Replayed {
		t.Fatalf("%+v, %v", j, err)
	}
	// A wait that ends early leaves the caller with the job that is there now.
	waitCtx, leave := context.WithCancel(t.Context())
	f.mu.Lock()
	f.answer = func(r *http.Request) *http.Response {
		if r.URL.Path == "/v1/jobs/later" {
			leave()
		}
		return nil
	}
	f.mu.Unlock()
	early, err := c.WaitIdempotent(waitCtx, client.Submission{Function: "nobody", ID: "later"})
	if !errors.Is(err, context.Canceled) || early == nil || early.ID != "later" || early.State != "queued" {
		t.Errorf("%+v, %v", early, err)
	}
	f.mu.Lock()
	f.answer = nil
	f.mu.Unlock()
	if _, err := admin.New(c).Cancel(t.Context(), "later"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Wait(ctx, j.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("wait after the context's end: %v", err)
	}
}

func TestOperatorsManageJobsAndFunctions(t *testing.T) {
	m := startManager(t)
	c := m.client(nil)
	ctx := t.Context()
	for i := range 3 {
		if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "f", ID: fmt.Sprint("j", i), RunAt: time.Now().Add(-time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	for cursor := ""; ; {
		page, err := admin.New(c).List(ctx, admin.ListQuery{Function: "f", State: "queued", Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			seen = append(seen, j.ID)
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if fmt.Sprint(seen) != "[j0 j1 j2]" {
		t.Errorf("listed %v", seen)
	}
	if j, err := admin.New(c).Cancel(ctx, "j1"); err != nil || j.State != "cancelled" {
		t.Errorf("cancel: %+v, %v", j, err)
	}
	for _, id := range []string{"h1", "h2"} {
		if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "h", ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if j, err := admin.New(c).Delete(ctx, "h1"); err != nil || j.ID != "h1" {
		t.Errorf("delete: %+v, %v", j, err)
	}
	if _, err := admin.New(c).Delete(ctx, "h1"); !client.HasCode(err, api.CodeNotFound) {
		t.Errorf("delete: %v", err)
	}
	for _, dry := range []bool{true, false} {
		res, err := admin.New(c).Bulk(ctx, admin.BulkRequest{Action: "delete", ListQuery: admin.ListQuery{Function: "h", State: "queued"}, DryRun: dry})
		if err != nil || res.Matched != 1 || (res.Done == 1) == dry || len(res.Refused) != 0 || res.Cursor != "" {
			t.Errorf("bulk: %+v, %v", res, err)
		}
	}
	if err := admin.New(c).Pause(ctx, "f"); err != nil {
		t.Error(err)
	}
	if got, err := c.Claim(ctx, client.ClaimRequest{Worker: "w"}); err != nil || len(got) != 0 {
		t.Errorf("claim while paused: %v, %v", got, err)
	}
	if page, err := admin.New(c).Functions(ctx, 10, ""); err != nil || len(page.Functions) != 1 || !page.Functions[0].Paused || page.Functions[0].Queued != 2 {
		t.Errorf("functions: %+v, %v", page, err)
	}
	if err := admin.New(c).Resume(ctx, "f"); err != nil {
		t.Error(err)
	}
	got, err := c.Claim(ctx, client.ClaimRequest{Worker: "w", Limit: 5, Lease: time.Minute})
	if err != nil || len(got) != 2 || got[0].Lease.Token == "" {
		t.Fatalf("claim: %v, %v", got, err)
	}
	if b, err := c.Heartbeat(ctx, got[0].ID, got[0].Lease.Token, time.Minute); err != nil || b.Cancelled || b.ExpiresIn != time.Minute {
		t.Errorf("heartbeat: %+v, %v", b, err)
	}
	if j, err := c.Finish(ctx, client.FinishRequest{ID: got[0].ID, LeaseToken: got[0].Lease.Token, Status: "failed", Error: "x"}); err != nil || j.State != "failed" {
		t.Errorf("finish: %+v, %v", j, err)
	}
	errs, err := c.FinishMany(ctx, []client.FinishRequest{
		{ID: got[1].ID, LeaseToken: "stale", Status: "failed"}, {ID: got[1].ID, LeaseToken: got[1].Lease.Token, Status: "failed"},
	})
	if err != nil || !client.HasCode(errs[0], api.CodeFenced) || errs[1] != nil {
		t.Errorf("finish of many: %v, %v", errs, err)
	}
	dead, err := admin.New(c).DeadLetters(ctx, "f", 1, "")
	if err != nil || len(dead.DeadLetters) != 1 || dead.DeadLetters[0].ID != "j0" || dead.DeadLetters[0].Reason != "x" || dead.Cursor == "" {
		t.Errorf("dead letters: %+v, %v", dead, err)
	}
	if j, err := admin.New(c).Replay(ctx, "f", "j0"); err != nil || j.State != "queued" {
		t.Errorf("replay: %+v, %v", j, err)
	}
	if j, err := admin.New(c).Retry(ctx, "j2", 0); err != nil || j.State != "queued" {
		t.Errorf("retry: %+v, %v", j, err)
	}
	if j, err := c.Get(ctx, "j2"); err != nil || j.Attempt != 0 || j.CreatedAt.IsZero() {
		t.Errorf("get: %+v, %v", j, err)
	}
	if d, err := m.queue.Depth(ctx); err != nil || d != (jobs.Depth{Queued: 2, Done: 2}) {
		t.Errorf("depth %+v, %v", d, err)
	}
}

// What operators ask of the ledger, and what it answers them.
func TestOperatorsSeeAndSettleEntries(t *testing.T) {
	m := startManager(t)
	c := m.client(nil)
	for _, key := range []string{"a", "b/?%", "."} {
		if _, err := m.ledger.Unknown(t.Context(), &api.ReserveRequest{Key: key, Scope: "s&t", Token: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := admin.New(c).Entries(t.Context(), admin.EntryQuery{State: "unknown", Limit: 2})
	if err != nil || len(page.Entries) != 2 || page.Cursor == "" || page.Entries[0].State != "unknown" || page.Entries[0].ExpiresIn > 5*time.Minute {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = admin.New(c).Entries(t.Context(), admin.EntryQuery{State: "unknown", Cursor: page.Cursor}); err != nil || len(page.Entries) != 1 || page.Cursor != "" {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = admin.New(c).Entries(t.Context(), admin.EntryQuery{Key: "b/?%"}); err != nil || len(page.Entries) != 1 || page.Entries[0].Key != "b/?%" || page.Entries[0].Scope != "s&t" {
		t.Fatalf("%+v %v", page, err)
	}
	headers := []api.Header{{Name: "x", Value: "y"}}
	for key, r := range map[string]admin.Resolution{
		"a": {As: "committed", Status: 201, Headers: headers, Body: []byte("hi")}, "b/?%": {As: "rejected", Status: 402}, ".": {As: "committed", Status: 204, Body: []byte{}},
	} {
		if e, err := admin.New(c).Resolve(t.Context(), "s&t", key, r); err != nil || e.Key != key || e.State != r.As || e.Status != r.Status {
			t.Errorf("%s: %+v %v", key, e, err)
		}
		e, err := admin.New(c).Entry(t.Context(), "s&t", key)
		if err != nil || e.Result == nil || e.Result.Status != r.Status || !bytes.Equal(e.Result.Body, r.Body) || e.Result.BodyOmitted != (r.Body == nil) {
			t.Errorf("%s: %+v %v", key, e, err)
		}
		if _, err := admin.New(c).Resolve(t.Context(), "s&t", key, r); !client.HasCode(err, api.CodeConflict) {
			t.Errorf("%s again: %v", key, err)
		}
	}
	if _, err := admin.New(c).Entry(t.Context(), "", "a"); !client.HasCode(err, api.CodeNotFound) {
		t.Errorf("another scope: %v", err)
	}
}
