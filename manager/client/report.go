package client

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// maxErrorText bounds reported errors; longer ones are cut.
const maxErrorText = 32 << 10

// maxResult is the manager's bound.
const maxResult = 1 << 20

// reportTime bounds a report with its repetitions. An outage of the manager does not count for leases, so an outcome is
// offered for longer than a lease.
func (w *Worker) reportTime() time.Duration { return time.Hour + 2*w.opts.Lease }

// report sends the manager how a handler ended. It repeats that until the manager answers, for at most reportTime.
func (w *Worker) report(ctx context.Context, j *Job, o outcome, cause error) {
	ctx, cancel := context.WithTimeout(ctx, w.reportTime())
	defer cancel()
	f := FinishRequest{ID: j.ID, LeaseToken: j.Lease.Token, Status: StateFailed, Error: o.failure}
	switch {
	case o.failure == "":
		f.Status, f.Result = StateComplete, o.result
	case o.done:
	case errors.Is(cause, ErrCancelled):
		f.Status = StateCancelled
	case o.permanent:
	case errors.Is(cause, ErrStopping): // nothing is wrong with the job
		w.handBack(ctx, j)
		return
	case j.Attempt < j.MaxAttempts:
		err := w.retry(ctx, j.ID, RetryRequest{LeaseToken: j.Lease.Token, Error: o.failure, Delay: o.after})
		if !HasCode(err, api.CodeConflict) && !HasCode(err, api.CodeInvalidRequest) {
			w.reported(j, "retry", err)
			return
		}
	}
	err := w.finish(ctx, f)
	if f.Result != nil && refused(err) {
		// For example nested too deep. The manager will never accept it, and without a report the work would run again.
		f.Status, f.Result, f.Error = StateFailed, nil, cut(notReportable+": "+err.Error())
		err = w.finish(ctx, f)
	}
	w.reported(j, string(f.Status), err)
}

// handBack lets another worker have the job immediately, as if it had not been claimed.
func (w *Worker) handBack(ctx context.Context, j *Job) {
	err := w.retry(ctx, j.ID, RetryRequest{LeaseToken: j.Lease.Token, Delay: new(time.Duration), Uncounted: true})
	w.reported(j, "hand back", err)
}

func (w *Worker) retry(ctx context.Context, id string, r RetryRequest) error {
	_, err := w.client.Retry(ctx, id, r)
	return err
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
		own, again := err, apart
		if err == nil {
			own = errs[i]
			again = own != nil && temporary(own)
		}
		if again {
			_, own = w.client.Finish(ctx, f.req)
		}
		f.done <- own
	}
}
