package clienttest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (m *manager) submit(s jobs.Submission) string {
	m.t.Helper()
	if s.Function == "" {
		s.Function = "f"
	}
	out, err := m.queue.Enqueue(m.t.Context(), s)
	if err != nil {
		m.t.Fatal(err)
	}
	return out.Job.ID
}

func handlers(h client.Handler) map[string]client.Handler { return map[string]client.Handler{"f": h} }

func TestWorkerReportsWhatHandlersReturn(t *testing.T) {
	m := startManager(t)
	big := strings.Repeat("x", 100<<10)
	for _, c := range []struct {
		name             string
		handler          client.Handler
		state            jobs.State
		attempt          int
		result, errorHas string
	}{
		{"a result", func(context.Context, *client.Job) (any, error) { return map[string]int{"n": 1}, nil }, jobs.Complete, 1, `{"n":1}`, ""},
		{"no result", func(context.Context, *client.Job) (any, error) { return nil, nil }, jobs.Complete, 1, "", ""},
		{"a large result", func(context.Context, *client.Job) (any, error) { return big, nil }, jobs.Complete, 1, `"` + big + `"`, ""},
		{"a result too large", func(context.Context, *client.Job) (any, error) { return strings.Repeat("x", 1<<20), nil }, jobs.Failed, 1, "", "at most 1048576"},
		{"a result that is no JSON", func(context.Context, *client.Job) (any, error) { return func() {}, nil }, jobs.Failed, 1, "", "cannot be reported"},
		{"an error each time", func(_ context.Context, j *client.Job) (any, error) { return nil, fmt.Errorf("no %d", j.Attempt) }, jobs.Failed, 3, "", "no 3"},
		{"an error at first", func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt < 3 {
				return nil, errors.New("not yet")
			}
			return "now", nil
		}, jobs.Complete, 3, `"now"`, ""},
		{"a permanent error", func(context.Context, *client.Job) (any, error) {
			return nil, fmt.Errorf("wrapped: %w", client.Permanent(errors.New("never")))
		}, jobs.Failed, 1, "", "wrapped: never"},
		{"an error with a delay", func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt == 1 {
				return nil, client.RetryAfter(errors.New("soon"), 0)
			}
			return nil, nil
		}, jobs.Complete, 2, "", ""},
		{"a panic", func(context.Context, *client.Job) (any, error) { panic("oh no") }, jobs.Failed, 3, "", "panic: oh no"},
		{"a panic at first", func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt == 1 {
				var none *client.Job
				return none.ID, nil
			}
			return nil, nil
		}, jobs.Complete, 2, "", ""},
		{"an error that is a nil pointer", func(context.Context, *client.Job) (any, error) {
			var none *codedError
			return nil, none
		}, jobs.Failed, 3, "", "error of the type *clienttest.codedError, whose text cannot be had: panic: "},
		{"an error without a text", func(context.Context, *client.Job) (any, error) { return nil, errors.New("") }, jobs.Failed, 3, "", "without a text"},
		{"a result that panics", func(context.Context, *client.Job) (any, error) { return panicking{}, nil }, jobs.Failed, 1, "", "cannot be reported: panic: no JSON"},
		{"a result that exits", func(context.Context, *client.Job) (any, error) { return exiting{}, nil }, jobs.Failed, 1, "", "cannot be reported: runtime.Goexit"},
		{"an exit", func(_ context.Context, j *client.Job) (any, error) {
			runtime.Goexit()
			return nil, nil
		}, jobs.Failed, 3, "", "the handler: runtime.Goexit ended the goroutine"},
		{"an exit while it panics", func(_ context.Context, j *client.Job) (any, error) {
			defer runtime.Goexit()
			panic("oh no")
		}, jobs.Failed, 3, "", "the handler: runtime.Goexit ended the goroutine"},
		{"an endless error", func(context.Context, *client.Job) (any, error) {
			return nil, client.Permanent(errors.New(strings.Repeat("ü", 100_000)))
		}, jobs.Failed, 1, "", "üü"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A function of its own: the last worker's claim may still be open.
			f := strings.ReplaceAll(c.name, " ", "-")
			stop := m.work(m.client(nil), client.WorkerOptions{Handlers: map[string]client.Handler{f: c.handler}})
			id := m.submit(jobs.Submission{Function: f, MaxAttempts: 3})
			m.over(id)
			if err := stop(); err != nil {
				t.Error(err)
			}
			j, err := m.queue.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if j.State != c.state || j.Attempt != c.attempt || string(j.Result) != c.result || !strings.Contains(j.Error, c.errorHas) ||
				strings.Contains(j.Error, "\uFFFD") {
				t.Errorf("%s after %d attempts with result %.60s and error %.200s", j.State, j.Attempt, j.Result, j.Error)
			}
		})
	}
	if client.Permanent(nil) != nil || client.RetryAfter(nil, time.Second) != nil {
		t.Error("no error became one")
	}
}

type codedError struct{ code int }

func (e *codedError) Error() string { return fmt.Sprint(e.code) }

type panicking struct{}

func (panicking) MarshalJSON() ([]byte, error) { panic("no JSON") }

type exiting struct{}

func (exiting) MarshalJSON() ([]byte, error) {
	runtime.Goexit()
	return nil, nil
}

func TestRetryAfterSetsTheDelay(t *testing.T) {
	m := startManager(t)
	m.work(m.client(nil), client.WorkerOptions{Handlers: handlers(func(_ context.Context, j *client.Job) (any, error) {
		return nil, client.RetryAfter(errors.New("later"), 3*time.Hour)
	})})
	id := m.submit(jobs.Submission{})
	m.eventually("the job waits", func() bool {
		j, err := m.queue.Get(t.Context(), id)
		return err == nil && j.State == jobs.Scheduled && j.RunAt.Sub(j.StartedAt) >= 3*time.Hour && j.Error == "later"
	})
}

func TestWorkerBoundsConcurrency(t *testing.T) {
	m := startManager(t)
	var running, most atomic.Int64
	full := make(chan struct{})
	release := make(chan struct{})
	m.work(m.client(nil), client.WorkerOptions{Concurrency: 3, Handlers: handlers(func(context.Context, *client.Job) (any, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == 3 {
			select {
			case full <- struct{}{}:
			case <-release:
			}
		}
		<-release
		return nil, nil
	})})
	var ids []string
	for range 20 {
		ids = append(ids, m.submit(jobs.Submission{}))
	}
	<-full
	if d, err := m.queue.Depth(t.Context()); err != nil || d.Active != 3 {
		t.Errorf("depth %+v: more is claimed than can run", d)
	}
	close(release)
	for _, id := range ids {
		m.over(id)
	}
	if most.Load() != 3 {
		t.Errorf("%d handlers at once", most.Load())
	}
}

// TestHandlersRunWhileOutcomesAreRecorded lets no report through: handlers continue to run until the reports that wait are as
// many as allowed, and no longer.
func TestHandlersRunWhileOutcomesAreRecorded(t *testing.T) {
	m := startManager(t)
	goOn := make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	f := &faults{answer: func(r *http.Request) *http.Response {
		if strings.HasSuffix(r.URL.Path, "/finish") {
			<-goOn
		}
		return nil
	}}
	var ids []string
	for range 20 {
		ids = append(ids, m.submit(jobs.Submission{}))
	}
	var ran atomic.Int64
	const most = 4*2 + 2 // for each handler that may run, four outcomes may wait to be recorded
	m.work(m.client(f), client.WorkerOptions{Concurrency: 2, Lease: time.Hour, Handlers: handlers(func(context.Context, *client.Job) (any, error) {
		ran.Add(1)
		return nil, nil
	})})
	m.eventually("as many handlers ran as may report, and two more", func() bool { return ran.Load() == most })
	if d, err := m.queue.Depth(t.Context()); err != nil || d.Active != most {
		t.Errorf("depth %+v, %v: want %d jobs, two of which wait to report", d, err, most)
	}
	release()
	for _, id := range ids {
		if j := m.over(id); j.State != jobs.Complete {
			t.Errorf("job %+v", j)
		}
	}
}

func TestWorkerTellsHandlersOfACancel(t *testing.T) {
	m := startManager(t)
	m.freeze(time.Now())
	started := make(chan struct{})
	wait := func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	m.work(m.client(nil), client.WorkerOptions{Lease: shortLease, Handlers: map[string]client.Handler{
		"stops":   func(ctx context.Context, _ *client.Job) (any, error) { return nil, wait(ctx) },
		"is-done": func(ctx context.Context, _ *client.Job) (any, error) { return wait(ctx).Error(), nil },
	}})
	for f, want := range map[string]jobs.State{"stops": jobs.Cancelled, "is-done": jobs.Complete} {
		id := m.submit(jobs.Submission{Function: f})
		<-started
		if _, err := m.queue.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if j := m.over(id); j.State != want || !strings.Contains(j.Error+string(j.Result), client.ErrCancelled.Error()) {
			t.Errorf("%s: %+v", f, j)
		}
	}
}

// TestTimeoutEndsAnAttempt: heartbeats do not make an attempt longer than its job's timeout. The handler is asked to stop, and
// the job is tried again while attempts remain.
func TestTimeoutEndsAnAttempt(t *testing.T) {
	m := startManager(t)
	c := m.client(nil)
	j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Timeout: 200 * time.Millisecond, MaxAttempts: 2})
	if err != nil {
		t.Fatal(err)
	}
	causes := make(chan error, 2)
	m.work(c, client.WorkerOptions{Lease: 300 * time.Millisecond, Handlers: map[string]client.Handler{
		"f": func(ctx context.Context, j *client.Job) (any, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		},
	}})
	done, err := c.Wait(t.Context(), j.ID)
	if err != nil || done.State != client.StateFailed || done.Attempt != 2 || len(done.Errors) != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	for range 2 {
		// The manager may notice it first.
		if cause := <-causes; !errors.Is(cause, client.ErrTimeout) && !errors.Is(cause, client.ErrLeaseLost) {
			t.Errorf("the handler's context ended with %v", cause)
		}
	}
}

// The handler's context ends with the attempt, and no sooner.
func TestHandlerHasUntilTheTimeout(t *testing.T) {
	m := startManager(t)
	c := m.client(nil)
	j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Timeout: time.Hour, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	m.work(c, client.WorkerOptions{Handlers: handlers(func(ctx context.Context, j *client.Job) (any, error) {
		if end, has := ctx.Deadline(); !has || j.Timeout != time.Hour || time.Until(end) < 30*time.Minute || time.Until(end) > time.Hour {
			return nil, fmt.Errorf("timeout %v, the context ends at %v", j.Timeout, end)
		}
		return nil, ctx.Err()
	})})
	if done, err := c.Wait(t.Context(), j.ID); err != nil || done.State != client.StateComplete || done.Timeout != time.Hour {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestHeartbeatsKeepALease(t *testing.T) {
	m := startManager(t)
	now := time.Now()
	m.freeze(now)
	f := &faults{}
	goOn := make(chan struct{})
	m.work(m.client(f), client.WorkerOptions{Lease: shortLease, Handlers: handlers(func(ctx context.Context, _ *client.Job) (any, error) {
		<-goOn
		return nil, ctx.Err()
	})})
	id := m.submit(jobs.Submission{MaxAttempts: 1})
	beats := func() int { return len(f.requests("/v1/jobs/" + id + "/heartbeat")) }
	m.eventually("beats", func() bool { return beats() > 2 })
	before, err := m.queue.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	// Some are lost, on the way there or back, and do no harm.
	f.set(map[string]int{"/heartbeat": 3}, map[string]int{"/heartbeat": 3})
	m.freeze(now.Add(shortLease / 2))
	n := beats()
	m.eventually("more beats", func() bool { return beats() > n+10 })
	after, err := m.queue.Get(t.Context(), id)
	if err != nil || after.State != jobs.Active || !after.Lease.Until.After(before.Lease.Until) {
		t.Errorf("lease until %v, then %+v, %v", before.Lease.Until, after.Lease, err)
	}
	close(goOn)
	if j := m.over(id); j.State != jobs.Complete {
		t.Errorf("job %+v", j)
	}
}

func TestLostLeaseEndsTheHandler(t *testing.T) {
	m := startManager(t)
	now := time.Now()
	m.freeze(now)
	causes := make(chan error, 2)
	var deliveries atomic.Int64
	m.work(m.client(nil), client.WorkerOptions{Lease: shortLease, Handlers: handlers(func(ctx context.Context, j *client.Job) (any, error) {
		if deliveries.Add(1) > 1 {
			return "second", nil
		}
		// The manager's clock leaps and another worker claims: it takes the lease back first.
		m.freeze(now.Add(time.Hour))
		if _, err := m.queue.RunDuties(context.Background()); err != nil {
			return nil, err
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return "first", nil
	})})
	j := m.over(m.submit(jobs.Submission{}))
	if cause := <-causes; !errors.Is(cause, client.ErrLeaseLost) {
		t.Errorf("cause %v", cause)
	}
	if string(j.Result) != `"second"` || j.Attempt != 2 {
		t.Errorf("job %+v", j)
	}
}

func TestWorkerOutlivesTheManager(t *testing.T) {
	m := startManager(t)
	started, goOn := make(chan struct{}), make(chan struct{})
	var runs atomic.Int64
	m.work(m.client(nil), client.WorkerOptions{Lease: time.Hour, Handlers: handlers(func(context.Context, *client.Job) (any, error) {
		if runs.Add(1) == 1 {
			close(started)
			<-goOn
		}
		return "done", nil
	})})
	id := m.submit(jobs.Submission{})
	<-started
	m.stop()
	close(goOn) // the report finds nobody
	m.listen()
	if j := m.over(id); string(j.Result) != `"done"` || j.Attempt != 1 {
		t.Errorf("job %+v", j)
	}
	if j := m.over(m.submit(jobs.Submission{})); j.Attempt != 1 {
		t.Errorf("the next job %+v", j)
	}
	if runs.Load() != 2 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestLostReportsAreRepeated(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	var runs sync.Map
	m.work(m.client(f), client.WorkerOptions{Lease: time.Hour, Handlers: handlers(func(_ context.Context, j *client.Job) (any, error) {
		if _, again := runs.LoadOrStore(fmt.Sprint(j.ID, " ", j.Attempt), true); again {
			t.Errorf("job %s: attempt %d twice", j.ID, j.Attempt)
		}
		if j.Attempt == 1 {
			return nil, errors.New("once more")
		}
		return nil, nil
	})})
	f.set(map[string]int{"/finish": 2, "/retry": 2}, map[string]int{"/finish": 3, "/retry": 3})
	for range 5 {
		if j := m.over(m.submit(jobs.Submission{})); j.State != jobs.Complete || j.Attempt != 2 {
			t.Errorf("job %+v", j)
		}
	}
}

func TestManyJobsManyWorkers(t *testing.T) {
	m := startManager(t)
	const n = 500
	var runs [n]atomic.Int64
	h := handlers(func(_ context.Context, j *client.Job) (any, error) {
		var i int
		if _, err := fmt.Sscan(string(j.Payload), &i); err != nil {
			return nil, client.Permanent(err)
		}
		runs[i].Add(1)
		if i%7 == 0 && j.Attempt == 1 {
			return nil, errors.New("again")
		}
		return i, nil
	})
	for range 3 {
		m.work(m.client(nil), client.WorkerOptions{Concurrency: 20, Handlers: h})
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = m.submit(jobs.Submission{Payload: []byte(fmt.Sprint(i))})
	}
	for i, id := range ids {
		want := int64(1)
		if i%7 == 0 {
			want = 2
		}
		if j := m.over(id); j.State != jobs.Complete || string(j.Result) != fmt.Sprint(i) || runs[i].Load() != want {
			t.Fatalf("job %d: %+v after %d runs", i, j, runs[i].Load())
		}
	}
}
