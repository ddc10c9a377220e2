package languages

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// goClient is the driver of the Go client.
type goClient struct {
	c      *client.Client
	worker *goWorker // nil without one
}

// goWorker is the driver's worker.
type goWorker struct {
	stop   context.CancelFunc
	result chan error
	goOn   chan struct{}
}

// drive is the driver's main function. It returns the exit status.
func drive(in io.Reader, out io.Writer) int {
	terminated, ignore := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer ignore()
	lines, read := make(chan []byte), make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		for r := bufio.NewReader(in); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	d := &goClient{}
	for {
		select {
		case <-terminated.Done():
		case <-read:
		case line := <-lines:
			b, err := json.Marshal(d.answer(line))
			if err != nil {
				b = fmt.Appendf(nil, `{"error":{"detail":%q}}`, err)
			}
			fmt.Fprintf(out, "%s\n", b)
			continue
		}
		if _, err := d.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

func (d *goClient) answer(line []byte) answer {
	var command struct {
		Op     string          `json:"op"`
		Args   json.RawMessage `json:"args"`
		Within int64           `json:"within_ms"`
	}
	if err := json.Unmarshal(line, &command); err != nil {
		return answer{Error: &failure{Detail: err.Error()}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	if command.Within > 0 {
		ctx, cancel = context.WithTimeout(ctx, millis(command.Within))
	}
	defer cancel()
	v, err := d.do(ctx, command.Op, command.Args)
	if errors.Is(err, errors.ErrUnsupported) {
		return answer{Unsupported: true}
	}
	if err != nil {
		return answer{Error: failureOf(err)}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return answer{Error: failureOf(err)}
	}
	return answer{OK: b}
}

func failureOf(err error) *failure {
	f := &failure{Detail: err.Error(), Temporary: errors.Is(err, context.DeadlineExceeded)}
	var e *client.Error
	if errors.As(err, &e) {
		f.Status, f.Code, f.Temporary, f.Replayed = e.Status, string(e.Code), e.Temporary(), e.Replayed
		f.RetryAfter = e.RetryAfter.Milliseconds()
	}
	var network interface{ Timeout() bool } // of package net: no answer
	if errors.As(err, &network) {
		f.Temporary = true
	}
	return f
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// jobOf returns a job with what its JSON lacks.
func jobOf(j *client.Job, err error) (any, error) {
	if j == nil {
		return nil, err
	}
	text, encErr := j.MarshalJSON()
	return json.RawMessage(fmt.Sprintf(`%s,"replayed":%t}`, text[:len(text)-1], j.Replayed)), errors.Join(err, encErr)
}

func sentOf(s *client.Sent, err error) (any, error) {
	if s == nil {
		return nil, err
	}
	return map[string]any{"event": s.Event, "jobs": s.Jobs, "replayed": s.Replayed}, err
}

// goArgs are the members of all commands' arguments.
type goArgs struct {
	goSubmission
	URL           string            `json:"url"`
	Failover      []string          `json:"failover"`
	Token         string            `json:"token"`
	ClientID      string            `json:"client_id"`
	Timeout       int64             `json:"timeout_ms"`
	BackoffBase   int64             `json:"backoff_base_ms"`
	BackoffMax    int64             `json:"backoff_max_ms"`
	MaxRetryAfter int64             `json:"max_retry_after_ms"`
	Items         []goSubmission    `json:"items"`
	State         client.State      `json:"state"`
	Limit         int               `json:"limit"`
	Cursor        string            `json:"cursor"`
	Worker        string            `json:"worker"`
	Functions     []string          `json:"functions"`
	Lease         int64             `json:"lease_ms"`
	Wait          int64             `json:"wait_ms"`
	LeaseToken    string            `json:"lease_token"`
	Status        client.State      `json:"status"`
	Result        json.RawMessage   `json:"result"`
	Error         string            `json:"error"`
	RetryDelay    *int64            `json:"delay_ms"`
	Uncounted     bool              `json:"uncounted"`
	N             int               `json:"n"`
	File          string            `json:"file"`
	Scope         string            `json:"scope"`
	Handler       string            `json:"handler"`
	Handlers      map[string]string `json:"handlers"`
	Log           string            `json:"log"`
	Name          string            `json:"name"`
	Concurrency   int               `json:"concurrency"`
	StopTimeout   int64             `json:"stop_timeout_ms"`
	StopGrace     int64             `json:"stop_grace_ms"`
}

// goSubmission is a submission in the API's JSON.
type goSubmission struct {
	Function    string          `json:"function"`
	Payload     json.RawMessage `json:"payload"`
	ID          string          `json:"id"`
	Key         string          `json:"key"`
	Concurrency string          `json:"concurrency_key"`
	Priority    int             `json:"priority"`
	Delay       int64           `json:"delay_ms"`
	MaxAttempts int             `json:"max_attempts"`
	Dedup       *client.Dedup   `json:"dedup"`
	OnDuplicate string          `json:"on_duplicate"`
	Idempotency string          `json:"idempotency_key"`
	Traceparent string          `json:"traceparent"`
	ExpiresIn   int64           `json:"expires_in_ms"`
	OnExpiry    string          `json:"on_expiry"`
	JobTimeout  int64           `json:"timeout_ms"`
}

func (s *goSubmission) submission() client.Submission {
	out := client.Submission{
		Function: s.Function, ID: s.ID, Key: s.Key, ConcurrencyKey: s.Concurrency, Priority: s.Priority, Delay: millis(s.Delay), MaxAttempts: s.MaxAttempts,
		Dedup: s.Dedup, OnDuplicate: s.OnDuplicate, ExpiresIn: millis(s.ExpiresIn), OnExpiry: s.OnExpiry, Timeout: millis(s.JobTimeout),
		IdempotencyKey: s.Idempotency, Traceparent: s.Traceparent,
	}
	if s.Payload != nil {
		out.Payload = s.Payload
	}
	return out
}

func (d *goClient) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	var a goArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, err
	}
	// These members belong to submissions as well.
	a.JobTimeout = a.Timeout
	if a.RetryDelay != nil {
		a.Delay = *a.RetryDelay
	}
	switch op {
	case "open":
		return nil, d.open(&a)
	case "submit":
		return jobOf(d.c.SubmitIdempotent(ctx, a.submission()))
	case "submit_wait":
		return jobOf(d.c.WaitIdempotent(ctx, a.submission()))
	case "submit_batch":
		return d.submitBatch(ctx, a.Items)
	case "send":
		return sentOf(d.c.SendIdempotent(ctx, client.Event{Name: a.Name, Payload: a.Payload, IdempotencyKey: a.Idempotency}))
	case "start_batch":
		return d.startBatch(ctx, raw)
	case "wait_batch":
		return d.c.WaitBatch(ctx, a.ID)
	case "subscribe":
		return nil, d.c.Subscribe(ctx, a.Name, a.Function)
	case "unsubscribe":
		return nil, d.c.Unsubscribe(ctx, a.Name, a.Function)
	case "wait":
		return jobOf(d.c.Wait(ctx, a.ID))
	case "get":
		return jobOf(d.c.Get(ctx, a.ID))
	case "cancel":
		return jobOf(admin.New(d.c).Cancel(ctx, a.ID))
	case "list":
		var q admin.ListQuery
		if err := schema.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		return admin.New(d.c).List(ctx, q)
	case "claim":
		return d.c.Claim(ctx, client.ClaimRequest{Worker: a.Worker, Functions: a.Functions, Limit: a.Limit, Lease: millis(a.Lease), Wait: millis(a.Wait)})
	case "heartbeat":
		b, err := d.c.Heartbeat(ctx, a.ID, a.LeaseToken, millis(a.Lease))
		if err != nil {
			return nil, err
		}
		return map[string]any{"cancelled": b.Cancelled, "expires_in_ms": b.ExpiresIn.Milliseconds()}, nil
	case "finish":
		return jobOf(d.c.Finish(ctx, client.FinishRequest{ID: a.ID, LeaseToken: a.LeaseToken, Status: a.Status, Result: a.Result, Error: a.Error}))
	case "retry":
		r := client.RetryRequest{LeaseToken: a.LeaseToken, Error: a.Error, Uncounted: a.Uncounted}
		if a.RetryDelay != nil {
			after := millis(*a.RetryDelay)
			r.Delay = &after
		}
		return jobOf(d.c.Retry(ctx, a.ID, r))
	case "put_schedule", "get_schedule", "list_schedules", "delete_schedule", "pause_schedule", "resume_schedule", "run_schedule", "functions", "set_limits":
		return d.operate(ctx, op, &a, raw)
	case "reserve", "renew", "commit", "reject", "release":
		return d.ledger(ctx, op, raw)
	case "entry":
		return admin.New(d.c).Entry(ctx, a.Scope, a.Key)
	case "keys":
		return keysOf(client.NewKeys(a.ClientID))(a.N)
	case "open_keys":
		return keysOf(client.OpenKeys(a.File))(a.N)
	case "check":
		return nil, checkHandler(a.Handler, a.Payload)
	case "work":
		return nil, d.work(&a)
	case "go_on":
		close(d.worker.goOn)
		return nil, nil
	case "stop":
		return d.stop()
	}
	return nil, errors.ErrUnsupported
}

func (d *goClient) open(a *goArgs) (err error) {
	o := client.Options{
		URL: a.URL, Failover: a.Failover, Token: a.Token, Timeout: millis(a.Timeout), BackoffBase: millis(a.BackoffBase), BackoffMax: millis(a.BackoffMax),
		MaxRetryAfter: millis(a.MaxRetryAfter), MaxAttempts: a.MaxAttempts,
	}
	if a.ClientID != "" {
		if o.Keys, err = client.NewKeys(a.ClientID); err != nil {
			return err
		}
	}
	d.c, err = client.New(o)
	return err
}

func (d *goClient) submitBatch(ctx context.Context, items []goSubmission) (any, error) {
	all := make([]client.Submission, len(items))
	for i := range items {
		all[i] = items[i].submission()
	}
	answers, err := d.c.SubmitBatch(ctx, all)
	if err != nil {
		return nil, err
	}
	out := make([]map[string]any, len(answers))
	for i, s := range answers {
		out[i] = map[string]any{"idempotency_key": s.IdempotencyKey}
		if s.Err != nil {
			out[i]["error"] = failureOf(s.Err)
		} else {
			out[i]["job"], _ = jobOf(s.Job, nil)
		}
	}
	return out, nil
}

func keysOf(k *client.Keys, err error) func(n int) (any, error) {
	return func(n int) (any, error) {
		if err != nil {
			return nil, err
		}
		out := make([]string, n)
		for i := range out {
			out[i] = k.Next()
		}
		return out, nil
	}
}

func (d *goClient) work(a *goArgs) error {
	log, err := os.OpenFile(a.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	running := &goWorker{result: make(chan error, 1), goOn: make(chan struct{})}
	handlers := map[string]client.Handler{}
	for f, name := range a.Handlers {
		h := goHandler(name, running.goOn)
		if h == nil {
			return fmt.Errorf("no handler %q", name)
		}
		handlers[f] = logged(log, h)
	}
	w, err := d.c.NewWorker(client.WorkerOptions{
		Handlers: handlers, Name: a.Name, Concurrency: a.Concurrency, Lease: millis(a.Lease), Wait: millis(a.Wait),
		StopTimeout: millis(a.StopTimeout), StopGrace: millis(a.StopGrace),
	})
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, running.stop = context.WithCancel(context.Background())
	go func() { running.result <- w.Run(ctx) }()
	d.worker = running
	return nil
}

func (d *goClient) stop() (any, error) {
	if d.worker == nil {
		return nil, nil
	}
	d.worker.stop()
	err := <-d.worker.result
	d.worker = nil
	return nil, err
}

// logged writes a handler's begin and end to the log.
func logged(log io.Writer, h client.Handler) client.Handler {
	return func(ctx context.Context, j *client.Job) (any, error) {
		fmt.Fprintf(log, `{"event":"begin","job":%q,"attempt":%d}`+"\n", j.ID, j.Attempt)
		defer func() {
			fmt.Fprintf(log, `{"event":"end","job":%q,"attempt":%d,"cause":%q}`+"\n", j.ID, j.Attempt, causeOf(ctx))
		}()
		return h(ctx, j)
	}
}

func causeOf(ctx context.Context) string {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, client.ErrCancelled):
		return "cancelled"
	case errors.Is(cause, client.ErrTimeout):
		return "timeout"
	case errors.Is(cause, client.ErrLeaseLost):
		return "lease-lost"
	case errors.Is(cause, client.ErrStopping):
		return "stopping"
	}
	return ""
}

func number(j *client.Job) int64 {
	n, err := strconv.ParseInt(string(j.Payload), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
