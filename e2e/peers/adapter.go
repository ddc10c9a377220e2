package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// manifest is what the harness reads before it starts the adapter.
//
//go:embed adapter.json
var manifest []byte

// adapter lets the harness of github.com/hardbyte/postgresql-job-queue-benchmarking measure the queue of a manager. The
// harness starts `peers adapter` with DATABASE_URL and other variables, reads JSON lines, first a descriptor and then
// samples, and sends SIGTERM at the end.
type adapter struct {
	client                        *client.Client
	instance                      int // among the adapters that share the database
	rate, batch, tick             int // jobs each second, jobs of a call, ms
	target                        int // depth of the queue, which then replaces the rate; else 0
	workers, work, payload, every int // work in ms, payload in bytes, every in seconds
	enqueued, completed           atomic.Int64
	untilBegin, untilEnd          window // since the job was made
}

// serveAdapter starts a manager on the harness's Postgres, and enqueues and works jobs as any client does, until ctx ends.
func serveAdapter(ctx context.Context) error {
	if s := cmp.Or(os.Getenv("SCENARIO"), "long_horizon"); s != "long_horizon" {
		return usageError(fmt.Sprintf("SCENARIO=%q: only long_horizon is served", s))
	}
	a := &adapter{}
	for name, v := range map[string]struct {
		number       *int
		usual, least int
	}{
		"BENCH_INSTANCE_ID": {&a.instance, 0, 0}, "SAMPLE_EVERY_S": {&a.every, 5, 1}, "TARGET_DEPTH": {&a.target, 1000, 1},
		"PRODUCER_RATE": {&a.rate, 800, 0}, "PRODUCER_BATCH_MAX": {&a.batch, 128, 1}, "PRODUCER_BATCH_MS": {&a.tick, 10, 1},
		"WORKER_COUNT": {&a.workers, 32, 1}, "JOB_WORK_MS": {&a.work, 1, 0}, "JOB_PAYLOAD_BYTES": {&a.payload, 256, 0},
	} {
		text := cmp.Or(os.Getenv(name), strconv.Itoa(v.usual))
		n, err := strconv.Atoi(text)
		if err != nil || n < v.least {
			return usageError(fmt.Sprintf("%s=%q: must be a number of at least %d", name, text, v.least))
		}
		*v.number = n
	}
	if os.Getenv("PRODUCER_MODE") != "depth-target" {
		a.target = 0
	}
	dsn := os.Getenv("DATABASE_URL")
	database, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t := &table{settings: settings{build: filepath.Dir(self)}}
	defer t.stop()
	manager, err := t.startManager(ctx, "--store", "postgres", "--store-dsn", dsn)
	if err != nil {
		return err
	}
	defer func() { fmt.Fprint(os.Stderr, manager.Printed()) }()
	if a.client, err = client.New(client.Options{URL: "http://" + manager.URL}); err != nil {
		return err
	}
	worker, err := a.client.NewWorker(client.WorkerOptions{Concurrency: a.workers, StopTimeout: 2 * time.Second, StopGrace: time.Second,
		Handlers: map[string]client.Handler{"adapter": a.handle}})
	if err != nil {
		return err
	}
	descriptor := map[string]any{"kind": "descriptor", "version": version(ctx, t.manager(), "version"), "started_at": time.Now().UTC().Format(stamp)}
	if err := json.Unmarshal(manifest, &descriptor); err != nil {
		return err
	}
	descriptor["db_name"] = database.Database
	a.print(descriptor)
	// The harness says here too what to enqueue, and could not end while it waits for somebody to read that.
	go func() { _, _ = io.Copy(io.Discard, os.Stdin) }()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.produce(ctx) })
	wg.Go(func() { a.sample(ctx) })
	err = worker.Run(ctx)
	cancel()
	wg.Wait()
	return err
}

func (a *adapter) handle(ctx context.Context, job *client.Job) (any, error) {
	a.untilBegin.add(time.Since(job.CreatedAt))
	if err := sleep(ctx, time.Duration(a.work)*time.Millisecond); err != nil {
		return nil, err
	}
	a.untilEnd.add(time.Since(job.CreatedAt))
	a.completed.Add(1)
	return nil, nil
}

// produce enqueues jobs: as many each second as the harness asks for, or as many as the queue lacks.
func (a *adapter) produce(ctx context.Context) {
	job := client.Submission{Function: "adapter", Payload: strings.Repeat("x", max(0, a.payload-2))}
	due, last := 0.0, time.Now()
	for ctx.Err() == nil {
		now := time.Now()
		if a.target == 0 {
			due += a.wanted() * now.Sub(last).Seconds() // by the clock: slow calls make the next ones larger
		} else if depth, err := a.depth(ctx); err == nil {
			due = float64(a.target - depth)
		}
		last = now
		n := min(int(due), a.batch)
		if n < 1 {
			_ = sleep(ctx, time.Duration(a.tick)*time.Millisecond)
			continue
		}
		due -= float64(n)
		answers, err := a.client.SubmitBatch(ctx, slices.Repeat([]client.Submission{job}, n))
		for _, answer := range answers {
			if answer.Err == nil {
				a.enqueued.Add(1)
			}
			err = cmp.Or(err, answer.Err)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "peers: enqueue:", err)
		}
	}
}

// wanted is how many jobs a second are to be enqueued. The harness changes that in a file.
func (a *adapter) wanted() float64 {
	text, _ := os.ReadFile(os.Getenv("PRODUCER_RATE_CONTROL_FILE"))
	rate, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil { // there is none, or it is being written
		return float64(a.rate)
	}
	return rate
}

// depth is how many jobs wait for a worker.
func (a *adapter) depth(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // samples do not wait for a Postgres that the harness has stopped
	defer cancel()
	page, err := admin.New(a.client).Functions(ctx, 0, "")
	if err == nil && len(page.Functions) > 0 {
		n = page.Functions[0].Queued
	}
	return n, err
}

// sample prints samples at the times that all adapters have in common.
func (a *adapter) sample(ctx context.Context) {
	last, every := time.Now(), int64(a.every)
	var enqueued, completed int64
	for sleep(ctx, time.Until(time.Unix((time.Now().Unix()/every+1)*every, 0))) == nil {
		now := time.Now()
		sample := func(metric string, value float64, window int) {
			a.print(map[string]any{"kind": "adapter", "t": now.UTC().Format(stamp), "subject_kind": "adapter", "subject": "",
				"metric": metric, "value": value, "window_s": window})
		}
		rate := func(metric string, count *atomic.Int64, before *int64) {
			n := count.Load()
			sample(metric, float64(n-*before)/now.Sub(last).Seconds(), a.every)
			*before = n
		}
		rate("enqueue_rate", &a.enqueued, &enqueued)
		rate("completion_rate", &a.completed, &completed)
		last = now
		for _, percent := range []int{50, 95, 99} {
			sample(fmt.Sprintf("claim_p%d_ms", percent), a.untilBegin.quantile(percent), windowSeconds)
			sample(fmt.Sprintf("end_to_end_p%d_ms", percent), a.untilEnd.quantile(percent), windowSeconds)
		}
		if a.instance > 0 { // all would say the same of the queue
			continue
		}
		if depth, err := a.depth(ctx); err == nil {
			sample("queue_depth", float64(depth), 0)
		}
		if a.target == 0 {
			sample("producer_target_rate", a.wanted(), 0)
		}
	}
}

func (a *adapter) print(line map[string]any) {
	line["system"], line["instance_id"] = "oncegate", a.instance
	text, _ := json.Marshal(line)
	fmt.Printf("%s\n", text)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

const (
	stamp         = "2006-01-02T15:04:05.000Z"
	windowSeconds = 30
)

// window counts the durations of the last thirty seconds, apart for each second. It keeps three digits of them, so that
// its memory is bounded.
type window struct {
	mu     sync.Mutex
	counts [windowSeconds]map[time.Duration]int
	second [windowSeconds]int64 // of the counts
}

func (w *window) add(d time.Duration) {
	unit := time.Microsecond
	for d >= 1000*unit {
		unit *= 10
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	second := time.Now().Unix()
	i := second % windowSeconds
	if w.second[i] != second {
		w.second[i], w.counts[i] = second, map[time.Duration]int{}
	}
	w.counts[i][max(0, d.Truncate(unit))]++
}

// quantile is in milliseconds, and 0 without durations.
func (w *window) quantile(percent int) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, n := map[time.Duration]int{}, 0
	for i, counts := range w.counts {
		if w.second[i] > time.Now().Unix()-windowSeconds {
			for d, count := range counts {
				all[d] += count
				n += count
			}
		}
	}
	rank := (n - 1) * percent / 100
	for _, d := range slices.Sorted(maps.Keys(all)) {
		if rank -= all[d]; rank < 0 {
			return float64(d.Microseconds()) / 1e3
		}
	}
	return 0
}
