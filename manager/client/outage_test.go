package client

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestOutagesLongerThanLeasesDoNotCount: the time of an outage does not count for leases, so the manager takes what
// handlers did meanwhile.
func TestOutagesLongerThanLeasesDoNotCount(t *testing.T) {
	m := startManager(t)
	now := time.Now()
	m.frozen.Store(&now) // a busy machine must not end leases either
	const lease, n = 100 * time.Millisecond, 10
	var started, runs, ended, beats, reports atomic.Int64
	endHalf, endAll := make(chan struct{}), make(chan struct{})
	f := &faults{}
	f.answer = func(r *http.Request) *http.Response {
		switch {
		case strings.HasSuffix(r.URL.Path, "/heartbeat"):
			beats.Add(1)
		case strings.HasSuffix(r.URL.Path, "/finish"):
			reports.Add(1)
		}
		return nil
	}
	log := new(httpdtest.Log)
	m.work(m.client(f), WorkerOptions{Concurrency: n, Lease: lease, Logger: log.Logger(), Handlers: handlers(func(ctx context.Context, j *Job) (any, error) {
		runs.Add(1)
		end := endHalf
		if started.Add(1)%2 == 0 {
			end = endAll
		}
		select {
		case <-end:
			ended.Add(1)
			return "done", ctx.Err()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})})
	var ids []string
	for range n {
		ids = append(ids, m.submit(jobs.Submission{MaxAttempts: 1}))
	}
	m.eventually("all run", func() bool { return started.Load() == n })
	m.stop()
	began, before := time.Now(), beats.Load()
	m.eventually("three leases passed without a heartbeat", func() bool { return time.Since(began) > 3*lease && beats.Load() > before+3*n })
	close(endHalf)
	m.eventually("reports fail", func() bool { return reports.Load() > 3 })
	m.listen()
	close(endAll)
	for _, id := range ids {
		if j := m.over(id); j.State != jobs.Complete || j.Attempt != 1 {
			t.Errorf("job %+v", j)
		}
	}
	m.eventually("the log says that it is over", func() bool { return strings.Contains(log.String(), "answers again") })
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "cannot be reached") {
		t.Errorf("logged %s", log)
	}
	if runs.Load() != n || ended.Load() != n {
		t.Errorf("%d runs of %d jobs, %d to the end", runs.Load(), n, ended.Load())
	}
}

// TestReportsEnd: a report that nobody takes ends after its time.
func TestReportsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "http://x", MaxAttempts: 1, HTTP: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			return nil, errCut
		})}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.NewWorker(WorkerOptions{Handlers: handlers(func(context.Context, *Job) (any, error) { return nil, nil }), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go w.finishLoop(ctx)
		began := time.Now()
		w.report(ctx, &Job{ID: "a", Lease: &Lease{Token: "t"}}, outcome{}, nil)
		if took, want := time.Since(began), time.Hour+2*30*time.Second; took != want {
			t.Errorf("gave up after %v, want %v", took, want)
		}
	})
}
