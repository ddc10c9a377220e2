package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
)

// maxErrorText bounds reported errors; longer ones are cut.
const maxErrorText = 32 << 10

// maxResult is the manager's bound.
const maxResult = 1 << 20

// panicError is a handler's panic with its stack.
type panicError struct {
	value any
	stack []byte
}

func newPanic(v any) error { return &panicError{v, debug.Stack()} }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

func errorText(err error) string {
	s := err.Error()
	if len(s) > maxErrorText {
		cut := maxErrorText
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// reportTime bounds a report with its repetitions. An outage of the manager does not count for leases, so an outcome is
// offered for longer than a lease.
func (w *Worker) reportTime() time.Duration { return time.Hour + 2*w.opts.Lease }

// report tells the manager how a handler ended. It repeats that until the manager answers, for at most reportTime.
func (w *Worker) report(ctx context.Context, j *Job, result any, err error, cause error) {
	ctx, cancel := context.WithTimeout(ctx, w.reportTime())
	defer cancel()
	f := FinishRequest{ID: j.ID, LeaseToken: j.Lease.Token}
	var permanent permanentError
	var again retryError
	switch {
	case err == nil:
		f.Status = "complete"
		if result != nil {
			f.Result, err = json.Marshal(result)
			if err == nil && len(f.Result) > maxResult {
				err = fmt.Errorf("%d bytes, at most %d are kept", len(f.Result), maxResult)
			}
			if err != nil {
				f.unreportable(err)
			}
		}
	case errors.Is(cause, ErrCancelled):
		f.Status, f.Error = "cancelled", errorText(err)
	case errors.As(err, &permanent):
		f.Status, f.Error = "failed", errorText(err)
	case errors.Is(cause, ErrStopping): // nothing is wrong with the job
		w.handBack(ctx, j)
		return
	case j.Attempt < j.MaxAttempts:
		r := RetryRequest{LeaseToken: j.Lease.Token, Error: errorText(err)}
		if errors.As(err, &again) {
			ms := max(again.after.Milliseconds(), 0)
			r.DelayMS = &ms
		}
		retryErr := w.retry(ctx, j.ID, r)
		if !HasCode(retryErr, api.CodeConflict) && !HasCode(retryErr, api.CodeInvalidRequest) {
			w.reported(j, "retry", retryErr)
			return
		}
		f.Status, f.Error = "failed", r.Error
	default:
		f.Status, f.Error = "failed", errorText(err)
	}
	err = w.finish(ctx, f)
	if f.Result != nil && refused(err) {
		// For example nested too deep. The manager will never accept it, and without a report the work would run again.
		f.unreportable(err)
		err = w.finish(ctx, f)
	}
	w.reported(j, f.Status, err)
}

// handBack lets another worker have the job immediately, as if it had not been claimed.
func (w *Worker) handBack(ctx context.Context, j *Job) {
	err := w.retry(ctx, j.ID, RetryRequest{LeaseToken: j.Lease.Token, DelayMS: new(int64), Uncounted: true})
	w.reported(j, "hand back", err)
}

func (w *Worker) retry(ctx context.Context, id string, r RetryRequest) error {
	_, err := w.client.Retry(ctx, id, r)
	return err
}

// unreportable turns a success into a failure that says why the result could not be reported.
func (f *FinishRequest) unreportable(err error) {
	f.Status, f.Result, f.Error = "failed", nil, errorText(fmt.Errorf("the work is done, but its result cannot be reported: %w", err))
}

// refused reports whether the manager rejected a request because of its content, so that a repetition cannot succeed.
func refused(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge)
}

func (w *Worker) reported(j *Job, what string, err error) {
	switch {
	case err == nil:
	case HasCode(err, api.CodeFenced), HasCode(err, api.CodeNotFound):
		w.opts.Logger.Warn("lease lost before the report", "job", j.ID, "function", j.Function, "report", what)
	default:
		w.opts.Logger.Error("report failed, the job comes back when its lease runs out",
			"job", j.ID, "function", j.Function, "report", what, "error", err.Error())
	}
}

// finish is a FinishRequest that is waiting for the finisher.
type finish struct {
	req  FinishRequest
	done chan error // one answer
}

// Finishes are sent together: while one request is in progress, those that arrive wait for the next. Their results are
// bounded, so the request is too.
const (
	maxBatch      = 500
	maxBatchBytes = 256 << 10
)

func (w *Worker) finish(ctx context.Context, req FinishRequest) error {
	if len(req.Result)+len(req.Error) > maxBatchBytes/4 {
		_, err := w.client.Finish(ctx, req)
		return err
	}
	f := &finish{req: req, done: make(chan error, 1)}
	select {
	case w.finishes <- f:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-f.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finishLoop sends finishes until ctx ends.
func (w *Worker) finishLoop(ctx context.Context) {
	for {
		var batch []*finish
		select {
		case f := <-w.finishes:
			batch = append(batch, f)
		case <-ctx.Done():
			return
		}
		bytes, yielded := 0, false
	collect:
		for len(batch) < maxBatch && bytes < maxBatchBytes {
			select {
			case f := <-w.finishes:
				batch = append(batch, f)
				bytes += len(f.req.Result) + len(f.req.Error)
				yielded = false
			default:
				if yielded {
					break collect
				}
				runtime.Gosched() // other handlers may be returning right now
				yielded = true
			}
		}
		w.send(ctx, batch)
	}
}

func (w *Worker) send(ctx context.Context, batch []*finish) {
	ctx, cancel := context.WithTimeout(ctx, w.reportTime())
	defer cancel()
	reqs := make([]FinishRequest, len(batch))
	for i, f := range batch {
		reqs[i] = f.req
	}
	errs, err := w.client.FinishMany(ctx, reqs)
	apart := refused(err) // one of them caused it: the others must not suffer
	for i, f := range batch {
		switch {
		case apart:
			_, err := w.client.Finish(ctx, f.req)
			f.done <- err
		case err != nil:
			f.done <- err
		default:
			f.done <- errs[i]
		}
	}
}
