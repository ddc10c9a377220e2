package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/store/storetest/servers"
)

var (
	enqueueCallers = []int{1, 10, 64}
	claimWorkers   = []int{1, 10}
)

const workConcurrency = 64

// payload is 256 bytes of JSON.
var payload = []byte(`{"text":"` + strings.Repeat("x", 256-11) + `"}`)

// queue is a job queue as these measurements see it.
type queue interface {
	// enqueue submits one durable job with a key of its own.
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
		{"oncegate, wal engine", openWAL},
		{"oncegate, sqlite engine", openSQLite},
		{"oncegate, redis engine", openRedis},
		{"oncegate, postgres engine", openPostgres},
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
		".\nAll clients are Go libraries in one process; servers share the machine's cores with them. The oncegate rows use the queue as a library on each engine.\n"
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

// library is Oncegate's queue on a store in this process.
type library struct {
	s    store.Store
	q    *jobs.Queue
	stop func()
}

func openLibrary(s store.Store, stop func()) (queue, error) {
	q, err := jobs.New(s, jobs.Options{})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &library{s: s, q: q, stop: stop}, nil
}

func openIn(name string, open func(dir string) (store.Store, error)) (queue, error) {
	dir, err := os.MkdirTemp("", "oncegate-peers")
	if err != nil {
		return nil, err
	}
	s, err := open(filepath.Join(dir, name))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return openLibrary(s, func() { _ = os.RemoveAll(dir) })
}

func openWAL(ctx context.Context) (queue, error) {
	return openIn("wal", func(dir string) (store.Store, error) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		return mem.Open(ctx, dir, mem.Options{})
	})
}

func openSQLite(ctx context.Context) (queue, error) {
	return openIn("jobs.db", func(path string) (store.Store, error) { return sqlite.Open(ctx, path, sqlite.Options{}) })
}

func openRedis(ctx context.Context) (queue, error) {
	srv, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	s, err := redis.Open(ctx, redis.Options{URL: srv.URL})
	if err != nil {
		srv.Close()
		return nil, err
	}
	return openLibrary(s, srv.Close)
}

func openPostgres(ctx context.Context) (queue, error) {
	srv, err := servers.StartPostgres(ctx, "-c", "shared_buffers=256MB")
	if err != nil {
		return nil, err
	}
	s, err := postgres.Open(ctx, postgres.Options{DSN: srv.URL})
	if err != nil {
		srv.Close()
		return nil, err
	}
	return openLibrary(s, srv.Close)
}

func (l *library) close() {
	l.q.Close()
	_ = l.s.Close()
	l.stop()
}

func (l *library) enqueue(ctx context.Context, key string) error {
	_, err := l.q.Enqueue(ctx, jobs.Submission{Function: "noop", Payload: payload, Key: key})
	return err
}

func (l *library) claim(ctx context.Context, worker int) (bool, error) {
	got, err := l.q.Claim(ctx, jobs.ClaimRequest{Worker: fmt.Sprintf("w%d", worker), Functions: []string{"noop"}})
	return len(got) == 1, err
}

// work is what the client library's worker does, without HTTP: it claims as many
// jobs as there are free slots, and finishes together what is done at the same
// time.
func (l *library) work(ctx context.Context, n int) error {
	slots := make(chan struct{}, workConcurrency)
	done := make(chan jobs.Finish, workConcurrency)
	finished := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := l.finish(ctx, n, done, slots)
		if err != nil {
			cancel(err)
		}
		finished <- err
	}()
	for claimed := 0; claimed < n; {
		free, err := acquire(ctx, slots)
		if err != nil {
			break
		}
		got, err := l.q.Claim(ctx, jobs.ClaimRequest{Worker: "w", Functions: []string{"noop"}, Limit: free, Wait: time.Second})
		if err != nil {
			cancel(err)
			break
		}
		for range free - len(got) {
			<-slots
		}
		claimed += len(got)
		for _, j := range got {
			go func() { done <- jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete} }()
		}
	}
	return errors.Join(<-finished, context.Cause(ctx))
}

// acquire waits for a slot and takes all that are free.
func acquire(ctx context.Context, slots chan<- struct{}) (n int, err error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for n = 1; n < cap(slots); n++ {
		select {
		case slots <- struct{}{}:
		default:
			return n, nil
		}
	}
	return n, nil
}

// finish finishes n jobs and frees their slots.
func (l *library) finish(ctx context.Context, n int, done <-chan jobs.Finish, slots <-chan struct{}) error {
	for n > 0 {
		var batch []jobs.Finish
		select {
		case f := <-done:
			batch = append(batch, f)
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; more; {
			select {
			case f := <-done:
				batch = append(batch, f)
			default:
				more = false
			}
		}
		out, err := l.q.FinishMany(ctx, batch)
		if err != nil {
			return err
		}
		for i := range out {
			if out[i].Err != nil {
				return out[i].Err
			}
			<-slots
		}
		n -= len(batch)
	}
	return nil
}
