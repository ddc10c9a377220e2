package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

var (
	enqueueCallers = []int{1, 10, 64}
	claimWorkers   = []int{1, 10}
)

const workConcurrency = 64

// payload is 256 bytes of JSON.
var payload = json.RawMessage(`{"text":"` + strings.Repeat("x", 256-11) + `"}`)

// queue is a job queue as these measurements see it.
type queue interface {
	// enqueue submits one durable job with its own key.
	enqueue(ctx context.Context, key string) error
	// work runs no-op handlers until n jobs are complete.
	work(ctx context.Context, n int) error
	close()
}

// claimer is a queue that can hand out jobs one at a time.
type claimer interface {
	// claim takes one job durably; false when there is none.
	claim(ctx context.Context, worker int) (bool, error)
}

// filler is a claimer that has a faster way to get many jobs.
type filler interface {
	fill(ctx context.Context, n int) error
}

// contestant is a system and how to start it empty.
type contestant struct {
	name string
	open func(ctx context.Context) (queue, error)
}

func compareJobs(ctx context.Context, s settings) error {
	contestants := []contestant{
		{"oncegate, wal engine", openIn(s, "wal", "wal")},
		{"oncegate, sqlite engine", openIn(s, "sqlite", "jobs.db")},
		{"oncegate, redis engine", openAt(s, "redis", servers.StartRedis)},
		{"oncegate, postgres engine", openAt(s, "postgres", servers.StartPostgres, "-c", "shared_buffers=256MB")},
		{"asynq (redis appendfsync always)", openAsynq},
		{"river (postgres)", openRiver},
		{"naive redis WATCH/MULTI", openNaive},
		{"bare postgres SKIP LOCKED", openSkipLocked},
	}
	enqueues := &table{name: "jobs-enqueue", title: "Jobs enqueued with unique keys, durable", columns: labels(enqueueCallers, "callers")}
	claims := &table{name: "jobs-claim", title: fmt.Sprintf("Jobs claimed one at a time out of %d", s.jobs), columns: labels(claimWorkers, "workers")}
	worked := &table{name: "jobs-worked", title: fmt.Sprintf("Jobs worked end to end, no-op handlers, %d at once", workConcurrency), columns: []string{fmt.Sprintf("%d jobs", s.jobs)}}
	for _, c := range contestants {
		if !strings.Contains(c.name, s.only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s\n", c.name)
		enq, err := fresh(ctx, c, func(q queue) ([]float64, error) { return measureEnqueue(ctx, s, q) })
		if err != nil {
			return fmt.Errorf("%s: enqueue: %w", c.name, err)
		}
		enqueues.add(c.name, enq)
		took, err := fresh(ctx, c, func(q queue) ([]float64, error) { return measureClaims(ctx, s, q) })
		if err != nil {
			return fmt.Errorf("%s: claim: %w", c.name, err)
		}
		if took != nil {
			claims.add(c.name, took)
		}
		done, err := fresh(ctx, c, func(q queue) ([]float64, error) { return measureWork(ctx, s, q) })
		if err != nil {
			return fmt.Errorf("%s: work: %w", c.name, err)
		}
		if done != nil {
			worked.add(c.name, done)
		}
	}
	notes := strings.Join([]string{"Versions: " + version(ctx, s.manager, "version"), "asynq " + moduleVersion("github.com/hibiken/asynq"),
		"river " + moduleVersion("github.com/riverqueue/river"), version(ctx, "redis-server", "--version"), version(ctx, "psql", "--version")}, "; ") +
		".\nAll clients are Go libraries in one process; servers share the machine's cores with them. The oncegate rows have one server more than the others, the manager, which their client asks over HTTP.\n"
	for _, t := range []*table{enqueues, claims, worked} {
		if err := t.write(s.out, notes); err != nil {
			return err
		}
	}
	return nil
}

func labels(ns []int, unit string) []string {
	out := make([]string, len(ns))
	for i, n := range ns {
		out[i] = fmt.Sprintf("%d %s", n, unit)
	}
	return out
}

func fresh(ctx context.Context, c contestant, measure func(queue) ([]float64, error)) ([]float64, error) {
	q, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer q.close()
	return measure(q)
}

func measureEnqueue(ctx context.Context, s settings, q queue) ([]float64, error) {
	var values []float64
	for _, n := range enqueueCallers {
		v, err := timedCalls(ctx, s.duration, n, func(ctx context.Context, caller, i int) error {
			return q.enqueue(ctx, fmt.Sprintf("%d-%d-%d", n, caller, i))
		})
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// fill enqueues n jobs in parallel, not measured.
func fill(ctx context.Context, q queue, n int, prefix string) error {
	if f, ok := q.(filler); ok {
		return f.fill(ctx, n)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				if err := q.enqueue(ctx, fmt.Sprintf("%s-%d", prefix, i)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return errors.Join(collect(errs)...)
}

func collect(errs <-chan error) []error {
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return all
}

// measureClaims drains the queue with each number of workers, at most for the
// duration.
func measureClaims(ctx context.Context, s settings, q queue) ([]float64, error) {
	c, ok := q.(claimer)
	if !ok {
		return nil, nil
	}
	var values []float64
	for _, workers := range claimWorkers {
		if err := fill(ctx, q, s.jobs, fmt.Sprintf("fill-%d", workers)); err != nil {
			return nil, err
		}
		var claimed atomic.Int64
		var wg sync.WaitGroup
		errs := make(chan error, workers)
		start := time.Now()
		for w := range workers {
			wg.Go(func() {
				for time.Since(start) < 4*s.duration {
					ok, err := c.claim(ctx, w)
					if err != nil {
						errs <- err
						return
					}
					if !ok {
						return
					}
					claimed.Add(1)
				}
			})
		}
		wg.Wait()
		values = append(values, float64(claimed.Load())/time.Since(start).Seconds())
		close(errs)
		if err := errors.Join(collect(errs)...); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func measureWork(ctx context.Context, s settings, q queue) ([]float64, error) {
	if _, ok := q.(filler); ok {
		return nil, nil // a bare pattern without workers
	}
	if err := fill(ctx, q, s.jobs, "work"); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := q.work(ctx, s.jobs); err != nil {
		return nil, err
	}
	return []float64{float64(s.jobs) / time.Since(start).Seconds()}, nil
}

// oncegate is a manager as a program, asked through its client library.
type oncegate struct {
	manager *process
	client  *client.Client
	stop    func()
}

// openOncegate starts a manager with an engine. stop ends what the engine keeps its records in.
func openOncegate(s settings, stop func(), flags ...string) (queue, error) {
	p, err := startLogged("", s.manager, append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
	if err != nil {
		stop()
		return nil, err
	}
	c, err := client.New(client.Options{URL: "http://" + p.addr})
	if err != nil {
		p.stop()
		stop()
		return nil, err
	}
	return &oncegate{manager: p, client: c, stop: stop}, nil
}

func openIn(s settings, engine, name string) func(context.Context) (queue, error) {
	return func(context.Context) (queue, error) {
		dir, err := os.MkdirTemp("", "oncegate-peers")
		if err != nil {
			return nil, err
		}
		return openOncegate(s, func() { _ = os.RemoveAll(dir) }, "--store", engine, "--data-dir", filepath.Join(dir, name))
	}
}

func openAt(s settings, engine string, start func(context.Context, ...string) (*servers.Server, error), args ...string) func(context.Context) (queue, error) {
	return func(ctx context.Context) (queue, error) {
		srv, err := start(ctx, args...)
		if err != nil {
			return nil, err
		}
		return openOncegate(s, srv.Close, "--store", engine, "--store-dsn", srv.URL)
	}
}

func (o *oncegate) close() {
	o.manager.stop()
	o.stop()
}

func (o *oncegate) enqueue(ctx context.Context, key string) error {
	_, err := o.client.SubmitIdempotent(ctx, client.Submission{Function: "noop", Payload: payload, Key: key})
	return err
}

func (o *oncegate) claim(ctx context.Context, worker int) (bool, error) {
	got, err := o.client.Claim(ctx, client.ClaimRequest{Worker: fmt.Sprintf("w%d", worker), Functions: []string{"noop"}})
	return len(got) == 1, err
}

func (o *oncegate) work(ctx context.Context, n int) error { return o.workAt(ctx, workConcurrency, n) }

func (o *oncegate) workAt(ctx context.Context, concurrency, n int) error {
	var left atomic.Int64
	left.Store(int64(n))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := o.client.NewWorker(client.WorkerOptions{Concurrency: concurrency, Handlers: map[string]client.Handler{
		"noop": func(context.Context, *client.Job) (any, error) {
			if left.Add(-1) == 0 {
				cancel()
			}
			return nil, nil
		},
	}})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
