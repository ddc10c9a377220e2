package clienttest

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
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
	m.work(m.client(f), client.WorkerOptions{Concurrency: n, Lease: lease, Logger: log.Logger(), Handlers: handlers(func(ctx context.Context, j *client.Job) (any, error) {
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
