package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Handler does the work of one job. The context ends when the job is cancelled, when its lease is lost, and StopTimeout
// after the worker was stopped (see context.Cause). The result is encoded as JSON: at most 1 MiB, nested at most 64
// deep. The package documentation says how errors and panics are reported.
type Handler func(ctx context.Context, j *Job) (result any, err error)

// WorkerOptions configure a Worker. The zero value of a field means its default.
type WorkerOptions struct {
	// Handlers maps a function to the handler of its jobs. Required, at most 100.
	Handlers map[string]Handler
	// Name under which the worker claims: up to 128 visible ASCII characters. The default consists of host name,
	// process id and a random part.
	Name string
	// Concurrency bounds the handlers that run at the same time: 1 to 1000, default 10. Up to four times as many more jobs
	// wait for the manager to record how their handlers ended, so a slow store does not keep handlers idle.
	Concurrency int
	// Lease of the jobs: 100 ms to 24 h, default 30 s. The worker extends it after every third of it. When the worker
	// crashes, its jobs are delivered again after it.
	//
	// Only the manager ends a lease. While it cannot be reached, handlers continue, and for an hour and two leases after a
	// handler returned the worker tries to report that. Client's Options.MaxAttempts and
	// MaxRetryAfter do not bound this.
	Lease time.Duration
	// Wait is how long a claim waits while there are no jobs: at most 5 min, default 20 s.
	Wait time.Duration
	// StopTimeout is how long running handlers continue after a stop before their contexts end: default 30 s.
	StopTimeout time.Duration
	// StopGrace is how long they then have to return: default 5 s.
	StopGrace time.Duration
	// Logger receives errors and warnings; default slog.Default().
	Logger *slog.Logger
}

// maxReporting is how many times as many jobs as there may be handlers wait for their outcome to be recorded. With less,
// claims and finishes wait for each other in turns, and both become small.
const maxReporting = 4

// Worker claims jobs and runs handlers. Make it with NewWorker.
type Worker struct {
	client    *Client
	claims    *Client // for claims
	opts      WorkerOptions
	functions []string
	finishes  chan *finish
	beat      time.Duration // between two heartbeats
	contact   contact
}

// NewWorker checks the options. The worker does nothing until Run.
func (c *Client) NewWorker(o WorkerOptions) (*Worker, error) {
	if len(o.Handlers) < 1 || len(o.Handlers) > 100 {
		return nil, fmt.Errorf("client: Handlers for %d functions: must be 1 to 100", len(o.Handlers))
	}
	if o.Concurrency == 0 {
		o.Concurrency = 10
	}
	if o.Concurrency < 1 || o.Concurrency > 1000 {
		return nil, fmt.Errorf("client: Concurrency %d: must be 1 to 1000", o.Concurrency)
	}
	for _, d := range []struct {
		name             string
		d                *time.Duration
		def, least, most time.Duration
	}{
		{"Lease", &o.Lease, 30 * time.Second, 100 * time.Millisecond, 24 * time.Hour},
		{"Wait", &o.Wait, 20 * time.Second, time.Millisecond, 5 * time.Minute},
		{"StopTimeout", &o.StopTimeout, 30 * time.Second, time.Millisecond, 24 * time.Hour},
		{"StopGrace", &o.StopGrace, 5 * time.Second, time.Millisecond, 24 * time.Hour},
	} {
		if *d.d == 0 {
			*d.d = d.def
		}
		if *d.d < d.least || *d.d > d.most {
			return nil, fmt.Errorf("client: %s %v: must be %v to %v", d.name, *d.d, d.least, d.most)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Name == "" {
		o.Name = workerName()
	}
	if !api.Visible(o.Name, 1, 128) {
		return nil, fmt.Errorf("client: Name %.140q: must be up to 128 visible ASCII characters", o.Name)
	}
	w := &Worker{client: c.persistent(), claims: c.separate(), opts: o, finishes: make(chan *finish, o.Concurrency), beat: o.Lease / 3}
	for f, h := range o.Handlers {
		if !isName(f) || h == nil {
			return nil, fmt.Errorf("client: Handlers[%.140q]: needs a handler, and a name of 1 to 128 letters, digits and _ . : - ~", f)
		}
		w.functions = append(w.functions, f)
	}
	slices.Sort(w.functions)
	return w, nil
}

// isName reports whether the manager accepts f as the name of a function.
func isName(f string) bool {
	return len(f) >= 1 && len(f) <= 128 && f != "." && f != ".." && !strings.ContainsFunc(f, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.:-~", r)
	})
}

// workerName makes a name by which people can recognize the worker of a lease.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7e {
			return '_'
		}
		return r
	}, host)
	var b [4]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%.80s:%d:%s", host, os.Getpid(), hex.EncodeToString(b[:]))
}

// Name is the name under which the worker claims.
func (w *Worker) Name() string { return w.opts.Name }

// Run claims and handles jobs until ctx ends. Then it claims no more and waits for the running handlers: for
// StopTimeout undisturbed, and for StopGrace after their contexts ended. Jobs whose handlers give up, and jobs that a
// claim still brings, return to the queue, and their attempts do not count. Run returns nil when all handlers have
// returned and been reported, and otherwise an error that says how many have not. It must be called only once.
func (w *Worker) Run(ctx context.Context) error {
	work, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	defer w.claims.opts.HTTP.CloseIdleConnections()
	// Reports continue after the handlers' contexts ended, until Run returns.
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.finishLoop(reports)
	}()
	defer func() {
		endReports()
		<-finished
	}()

	var running sync.WaitGroup
	var handling atomic.Int64 // slots also counts what the claim under way may bring
	slots, reporting := make(chan struct{}, w.opts.Concurrency), make(chan struct{}, maxReporting*w.opts.Concurrency)
	running.Add(1)
	go func() {
		defer running.Done()
		w.claimLoop(ctx, work, slots, func(j *Job) {
			running.Add(1)
			go func() {
				defer running.Done()
				held := slots
				defer func() { <-held }()
				switch {
				case j.Lease == nil || j.Lease.Token == "":
					w.opts.Logger.Error("the manager sent a job without a lease", "job", j.ID)
				case ctx.Err() != nil:
					w.handBack(reports, j)
				default:
					handling.Add(1)
					returned := sync.OnceFunc(func() { handling.Add(-1) })
					defer returned()
					w.handle(work, reports, j, func() { // the next handler may run
						returned()
						reporting <- struct{}{}
						<-slots
						held = reporting
					})
				}
			}()
		})
	}()
	<-ctx.Done()

	done := make(chan struct{})
	go func() { // ends with the last handler, however late
		running.Wait()
		close(done)
	}()
	timer := time.NewTimer(w.opts.StopTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		giveUp(ErrStopping)
		timer.Reset(w.opts.StopGrace)
		select {
		case <-done:
		case <-timer.C:
			return fmt.Errorf("client: worker %s stopped, but %d handlers did not return, and %d outcomes were not recorded", w.opts.Name, handling.Load(), len(reporting))
		}
	}
	return nil
}

// claimLoop repeatedly claims as many jobs as there are free slots, and starts them, until ctx ends. It starts what its
// last claim brings after that, too.
func (w *Worker) claimLoop(ctx, work context.Context, slots chan struct{}, start func(*Job)) {
	failures, early, last := 0, 0, ""
	for ctx.Err() == nil {
		free := 0
		select {
		case slots <- struct{}{}:
			free = 1
		case <-ctx.Done():
			return
		}
		for yielded := false; free < cap(slots); {
			select {
			case slots <- struct{}{}:
				free++
				yielded = false
				continue
			default:
			}
			if yielded {
				break
			}
			runtime.Gosched() // other handlers may be returning right now
			yielded = true
		}
		asked := time.Now()
		jobs, err := w.claim(ctx, work, free)
		if len(jobs) > free { // not what was asked for: their leases will run out
			w.opts.Logger.Error("the manager answered a claim with too many jobs", "asked", free, "got", len(jobs))
			jobs = jobs[:free]
		}
		for range free - len(jobs) {
			<-slots
		}
		for i := range jobs {
			start(&jobs[i])
		}
		if err == nil {
			w.met(asked, nil, &last, "")
			failures = 0
			if len(jobs) > 0 || time.Since(asked) > w.opts.Wait/2 {
				early = 0
				continue
			}
			// A manager that is stopping answers claims immediately, and must not be asked continuously.
			early++
			_ = pause(ctx, w.client.backoff(early, nil))
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		w.met(asked, err, &last, "claim failed, trying again")
		_ = pause(ctx, w.client.backoff(failures, err))
	}
}

// handle runs one job and reports it. It calls returned between the two, unless there is nothing to report.
func (w *Worker) handle(work, reports context.Context, j *Job, returned func()) {
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	if j.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, j.Timeout, ErrTimeout)
		defer stop()
	}
	lease := w.keepLease(ctx, cancel, j)
	defer lease.stop()
	o := w.call(ctx, j)
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrLeaseLost) {
		w.opts.Logger.Warn("the lease was lost: the outcome is not reported", "job", j.ID, "function", j.Function)
		return
	}
	returned()
	w.report(reports, j, o, cause)
}
