package clienttest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestRedirectsDoNotSwallowSubmissions: a load balancer that sends http to https
// with a 301 makes a GET of a POST, and GET /v1/jobs is a call that succeeds.
func TestRedirectsDoNotSwallowSubmissions(t *testing.T) {
	for status, followed := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			m := startManager(t)
			balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://"+m.addr+r.URL.Path, status)
			}))
			defer balancer.Close()
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			c, err := client.New(client.Options{URL: balancer.URL, HTTP: &http.Client{Transport: transport}})
			if err != nil {
				t.Fatal(err)
			}
			j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", ID: "a"})
			if followed {
				if err != nil || j.ID != "a" || len(m.all()) != 1 {
					t.Errorf("%+v, %v, %d jobs", j, err, len(m.all()))
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || !strings.Contains(err.Error(), m.addr) {
				t.Errorf("%+v, %v, want an error that says where the redirect leads", j, err)
			}
		})
	}
	// The caller's own rule still holds for what may be followed.
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer loop.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	asked := 0
	for _, h := range []*http.Client{
		{Transport: transport},
		{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { asked++; return http.ErrUseLastResponse }},
	} {
		c, err := client.New(client.Options{URL: loop.URL, HTTP: h, MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		if j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f"}); err == nil {
			t.Errorf("an endless redirect: %+v", j)
		}
	}
	if asked != 1 {
		t.Errorf("the caller's CheckRedirect was asked %d times", asked)
	}
}

// TestAnswersThatAreNotOfAManager: JSON that anything may answer is not taken
// for a success.
func TestAnswersThatAreNotOfAManager(t *testing.T) {
	m := startManager(t)
	finishes := []client.FinishRequest{{ID: "a", LeaseToken: "t", Status: "complete"}, {ID: "b", LeaseToken: "t", Status: "complete"}}
	calls := map[string]func(context.Context, *client.Client) error{
		"submit": func(ctx context.Context, c *client.Client) error {
			_, err := c.SubmitIdempotent(ctx, client.Submission{Function: "f"})
			return err
		},
		"get":  func(ctx context.Context, c *client.Client) error { _, err := c.Get(ctx, "a"); return err },
		"wait": func(ctx context.Context, c *client.Client) error { _, err := c.Wait(ctx, "a"); return err },
		"claim": func(ctx context.Context, c *client.Client) error {
			_, err := c.Claim(ctx, client.ClaimRequest{Worker: "w"})
			return err
		},
		"heartbeat":      func(ctx context.Context, c *client.Client) error { _, err := c.Heartbeat(ctx, "a", "t", 0); return err },
		"finish":         func(ctx context.Context, c *client.Client) error { _, err := c.Finish(ctx, finishes[0]); return err },
		"finish of many": func(ctx context.Context, c *client.Client) error { _, err := c.FinishMany(ctx, finishes); return err },
		"cancel":         func(ctx context.Context, c *client.Client) error { _, err := admin.New(c).Cancel(ctx, "a"); return err },
		"retry": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).Retry(ctx, "a", 0)
			return err
		},
		"put a schedule": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).PutSchedule(ctx, "s", admin.ScheduleSpec{})
			return err
		},
		"list schedules": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).Schedules(ctx, 0, "")
			return err
		},
		"run a schedule": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).RunSchedule(ctx, "s", "k")
			return err
		},
		"replay": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).Replay(ctx, "f", "a")
			return err
		},
	}
	for name, call := range calls {
		for _, body := range []string{
			`{}`, `null`, `{"status":"ok"}`, `{"results":[]}`, `{"results":[{"id":"a","state":"complete"}]}`,
			`{"results":[{"id":"b","state":"complete"},{"id":"a","state":"complete"}]}`, `{"results":[{"id":"a"},{"id":"b"}]}`,
		} {
			f := &faults{answer: func(*http.Request) *http.Response { return response(200, "application/json", body) }}
			err := call(t.Context(), m.client(f))
			if err == nil || !strings.Contains(err.Error(), "not of a manager") {
				t.Errorf("%s answered with %s: %v", name, body, err)
			}
			f.mu.Lock()
			if len(f.seen) != 1 {
				t.Errorf("%s answered with %s was tried %d times", name, body, len(f.seen))
			}
			f.mu.Unlock()
		}
	}
}

// deep is JSON that is nested deeper than the manager reads.
var deep = json.RawMessage(strings.Repeat("[", 99) + strings.Repeat("]", 99))

// TestWorkWhoseResultIsRefusedIsNotDoneAgain: without a report the job would
// come back when its lease runs out, until its attempts are used up.
func TestWorkWhoseResultIsRefusedIsNotDoneAgain(t *testing.T) {
	m := startManager(t)
	m.work(m.client(nil), client.WorkerOptions{Handlers: handlers(func(context.Context, *client.Job) (any, error) { return deep, nil })})
	j := m.over(m.submit(jobs.Submission{MaxAttempts: 3}))
	if j.State != jobs.Failed || j.Attempt != 1 || !strings.Contains(j.Error, "the work is done, but its result cannot be reported") {
		t.Errorf("job %+v", j)
	}
}

// TestAManagerThatHoldsNoClaimsIsNotAskedOverAndOver: a manager that is stopping
// answers claims at once, with nothing.
func TestAManagerThatHoldsNoClaimsIsNotAskedOverAndOver(t *testing.T) {
	m := startManager(t)
	first := make(chan struct{})
	var once sync.Once
	f := &faults{}
	c := m.clientWith(f, client.Options{BackoffBase: 24 * time.Hour, BackoffMax: 24 * time.Hour})
	m.queue.Drain()
	f.answer = func(r *http.Request) *http.Response {
		once.Do(func() { close(first) })
		return nil
	}
	stop := m.work(c, client.WorkerOptions{Handlers: handlers(func(context.Context, *client.Job) (any, error) { return nil, nil })})
	<-first
	other := m.client(nil)
	for range 20 { // time in which a worker that asks again would ask often
		if _, err := admin.New(other).Functions(t.Context(), 1, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := len(f.requests("/v1/jobs/claim")); n != 1 {
		t.Errorf("%d claims", n)
	}
}

// TestHeartbeatsThatHangAreRepeated: a manager that takes calls and does not answer ends no handler.
func TestHeartbeatsThatHangAreRepeated(t *testing.T) {
	m := startManager(t)
	now := time.Now()
	m.frozen.Store(&now)
	const lease = 100 * time.Millisecond
	var beats atomic.Int64
	f := &faults{answer: func(r *http.Request) *http.Response {
		if strings.HasSuffix(r.URL.Path, "/heartbeat") {
			if at, ok := r.Context().Deadline(); !ok || time.Until(at) > lease/3 {
				t.Errorf("a heartbeat until %v", at)
			}
			beats.Add(1)
			<-r.Context().Done()
		}
		return nil
	}}
	id := m.submit(jobs.Submission{MaxAttempts: 1})
	goOn := make(chan struct{})
	m.work(m.client(f), client.WorkerOptions{Lease: lease, Handlers: handlers(func(ctx context.Context, _ *client.Job) (any, error) {
		<-goOn
		return nil, ctx.Err()
	})})
	m.eventually("heartbeats for more than a lease", func() bool { return beats.Load() > 5 })
	close(goOn)
	if j := m.over(id); j.State != jobs.Complete || j.Attempt != 1 {
		t.Errorf("job %+v", j)
	}
}
