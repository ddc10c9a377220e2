package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	manager "github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// submissionStack is the flow in which the upstream is the manager itself: the gate caches and
// coalesces, the manager reserves, enqueues and commits in one transaction.
func submissionStack(t *testing.T, target envoyTarget, mode string, environment ...string) *stack {
	t.Helper()
	return managerStack(t, target, mode, map[string]any{
		"match":               []any{map[string]any{"methods": []string{"POST"}, "path": "/v1/jobs"}},
		"pending_ttl_seconds": 5,
	}, environment...)
}

// managerStack is a proxy in front of the manager's own API, whose ledger is that upstream.
func managerStack(t *testing.T, target envoyTarget, mode string, plugin map[string]any, environment ...string) *stack {
	t.Helper()
	plugin["ledger"] = "upstream"
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, environment: environment}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	s.startManager(t)
	s.paymentsAddr = s.managerAddr // the proxy's upstream
	s.startProxy(t)
	return s
}

func jobsClient(t *testing.T, address string) *manager.Client {
	t.Helper()
	c, err := manager.New(manager.Options{URL: "http://" + address})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func submit(key, text string) call {
	return call{path: "/v1/jobs", key: &key, body: fmt.Sprintf(`{"function":"echo","payload":{"text":%q}}`, text)}
}

// A job submitted through the gate is worked on once, and the wait returns its result. The gate
// answers the duplicate by itself: it does so even when the manager is gone.
func TestJobThroughTheGate(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := submissionStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		first := wantFirst(t, p, submit(key, "hello"), http.StatusAccepted)
		var job manager.Job
		if err := json.Unmarshal(first.body, &job); err != nil || job.ID == "" {
			t.Fatalf("no job in %v: %v", first, err)
		}

		c := jobsClient(t, s.managerAddr)
		var ran atomic.Int64
		w, err := c.NewWorker(manager.WorkerOptions{Wait: time.Second, Handlers: map[string]manager.Handler{
			"echo": func(_ context.Context, j *manager.Job) (any, error) {
				ran.Add(1)
				return j.Payload, nil
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()

		// The wait goes through the gate, too: a GET, which passes untouched.
		a := send(t, p, call{method: "GET", path: "/v1/jobs/" + job.ID + "?wait_ms=60000"})
		var done manager.Job
		if err := json.Unmarshal(a.body, &done); err != nil || done.State != "complete" || string(done.Result) != `{"text":"hello"}` {
			t.Fatalf("the wait returned %v, %v", a, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}

		wantReplay(t, p, submit(key, "hello"), first)
		if n := ran.Load(); n != 1 {
			t.Errorf("the job ran %d times", n)
		}
		s.manager.kill()
		wantReplay(t, p, submit(key, "hello"), first)
		if a := send(t, p, submit(newKey(), "hello")); a.status != http.StatusServiceUnavailable {
			t.Errorf("a new key without a manager: %v", a)
		}
	})
}

// Many clients submit the same job through two proxies while the manager is killed and
// started again: all get the same job, and there is only one.
func TestOneJobPerKeyWhileTheManagerCrashes(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := submissionStack(t, target, mode)
		s.startProxy(t)
		const n = 64
		key := newKey()
		ids := make([]string, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				for t.Context().Err() == nil {
					a, err := do(t.Context(), s.proxies[i%2], submit(key, "only once"))
					if err != nil || a.status != http.StatusAccepted {
						continue // the manager is away, or the first attempt is pending
					}
					var job manager.Job
					if err := json.Unmarshal(a.body, &job); err != nil {
						t.Errorf("%v: %v", a, err)
					}
					ids[i] = job.ID
					return
				}
			})
		}
		for range 3 {
			s.manager.kill()
			s.startManager(t)
		}
		wg.Wait()
		for i, id := range ids {
			if id == "" || id != ids[0] {
				t.Fatalf("client %d got job %q, client 0 %q", i, id, ids[0])
			}
		}
		page, err := admin.New(jobsClient(t, s.managerAddr)).List(t.Context(), admin.ListQuery{Function: "echo", Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Jobs) != 1 {
			t.Errorf("%d jobs exist for one key", len(page.Jobs))
		}
	})
}
