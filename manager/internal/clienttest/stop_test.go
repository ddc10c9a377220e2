package clienttest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestRollingStopsUnderLoad deploys workers while jobs keep coming, in turn those that always find jobs and those that
// mostly wait for one. No attempt is lost and no job is left with a lease: it would be late by that lease.
func TestRollingStopsUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name        string
		concurrency int
		http2       bool
	}{{"workers that always find jobs", 1, false}, {"workers that wait for jobs", 50, false}, {"workers that share a connection", 5, true}} {
		t.Run(c.name, func(t *testing.T) {
			m := startManager(t)
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!c.http2)
			protocols.SetUnencryptedHTTP2(c.http2)
			shared := &http.Client{Transport: &http.Transport{Protocols: protocols, MaxIdleConnsPerHost: 100}}
			t.Cleanup(shared.CloseIdleConnections)
			c2, err := client.New(client.Options{URL: "http://" + m.addr, HTTP: shared, MaxAttempts: 1})
			if err != nil {
				t.Fatal(err)
			}
			var runs sync.Map
			var done atomic.Int64
			work := func() (stop func() error) {
				return m.work(c2, client.WorkerOptions{Concurrency: c.concurrency, Handlers: handlers(func(_ context.Context, j *client.Job) (any, error) {
					if _, again := runs.LoadOrStore(j.ID, true); again {
						t.Errorf("job %s ran twice", j.ID)
					}
					done.Add(1)
					return nil, nil
				})})
			}
			ctx, end := context.WithCancel(t.Context())
			var load sync.WaitGroup
			for range 2 {
				load.Go(func() {
					for ctx.Err() == nil {
						// As many jobs wait as keep all workers busy, or one or two.
						if d, err := m.queue.Depth(ctx); err == nil && d.Queued <= 20/c.concurrency {
							m.submit(jobs.Submission{MaxAttempts: 1})
						}
					}
				})
			}
			stops := []func() error{work(), work(), work()}
			for range 50 {
				before := done.Load()
				m.eventually("jobs are done", func() bool { return done.Load() > before })
				stops = append(stops, work())
				if err := stops[0](); err != nil {
					t.Error(err)
				}
				stops = stops[1:]
			}
			for _, stop := range stops {
				if err := stop(); err != nil {
					t.Error(err)
				}
			}
			end()
			load.Wait()
			// The manager may still put back what it claimed for a worker that left.
			m.eventually("no job is leased to nobody", func() bool {
				d, err := m.queue.Depth(t.Context())
				return err == nil && d.Active == 0
			})
			for _, j := range m.all() {
				_, ran := runs.Load(j.ID)
				if want := map[bool]jobs.State{true: jobs.Complete, false: jobs.Queued}[ran]; j.State != want || j.Attempt > 1 {
					t.Errorf("a job that ran: %v, is %s after %d attempts", ran, j.State, j.Attempt)
				}
			}
		})
	}
}

func TestStopWaitsForRunningHandlers(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	started, goOn := make(chan struct{}), make(chan struct{})
	var ended error
	w, err := m.client(f).NewWorker(client.WorkerOptions{Concurrency: 1, Handlers: handlers(func(ctx context.Context, j *client.Job) (any, error) {
		close(started)
		<-goOn
		ended = ctx.Err()
		return nil, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	id := m.submit(jobs.Submission{})
	<-started
	next := m.submit(jobs.Submission{})
	stop()
	select {
	case err := <-stopped:
		t.Fatalf("stopped while a handler ran: %v", err)
	default:
	}
	close(goOn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if ended != nil {
		t.Errorf("the handler's context ended at the stop: %v", ended)
	}
	if j := m.over(id); j.State != jobs.Complete {
		t.Errorf("job %+v", j)
	}
	if j, err := m.queue.Get(t.Context(), next); err != nil || j.State != jobs.Queued || j.Attempt != 0 {
		t.Errorf("the next job: %+v, %v", j, err)
	}
}

func TestStopGivesUpOnSlowHandlers(t *testing.T) {
	m := startManager(t)
	started := make(chan struct{})
	stop := m.work(m.client(nil), client.WorkerOptions{StopTimeout: time.Millisecond, StopGrace: patience, Handlers: handlers(func(ctx context.Context, j *client.Job) (any, error) {
		close(started)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})})
	id := m.submit(jobs.Submission{MaxAttempts: 1})
	<-started
	if err := stop(); err != nil {
		t.Error(err)
	}
	j, err := m.queue.Get(t.Context(), id)
	if err != nil || j.State != jobs.Queued || j.Attempt != 0 {
		t.Errorf("the job that could not be done: %+v, %v", j, err)
	}
}

func TestStopReportsHandlersThatDoNotReturn(t *testing.T) {
	m := startManager(t)
	started, goOn, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	stop := m.work(m.client(nil), client.WorkerOptions{StopTimeout: time.Millisecond, StopGrace: time.Millisecond, Handlers: handlers(func(context.Context, *client.Job) (any, error) {
		close(started)
		<-goOn
		close(returned)
		return nil, nil
	})})
	m.submit(jobs.Submission{})
	<-started
	if err := stop(); err == nil || !strings.Contains(err.Error(), "1 handlers did not return") {
		t.Errorf("stopped with %v", err)
	}
	close(goOn)
	<-returned
}

func TestStopLeavesWaitingJobsAlone(t *testing.T) {
	m := startManager(t)
	for range 20 {
		var ran atomic.Int64
		stop := m.work(m.client(nil), client.WorkerOptions{Lease: time.Hour, Handlers: handlers(func(context.Context, *client.Job) (any, error) {
			ran.Add(1)
			return nil, nil
		})})
		m.eventually("the worker waits", func() bool { return m.queue.Counters().Waiting == 1 })
		id := m.submit(jobs.Submission{})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		// Whether the worker still got it or not: it is done, or it waits.
		m.eventually("the job is done or back", func() bool {
			j, err := m.queue.Get(t.Context(), id)
			return err == nil && (j.State == jobs.Complete && ran.Load() == 1 || j.State == jobs.Queued && ran.Load() == 0)
		})
		if _, err := m.queue.Cancel(t.Context(), id); err != nil && !errors.Is(err, jobs.ErrConflict) {
			t.Fatal(err)
		}
	}
}
