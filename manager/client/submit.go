package client

import (
	"context"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// SubmitIdempotent submits a job at most once: it repeats the call with the same key until it has an answer or ctx
// ends.
//
// An *Error that is not Temporary is the manager's refusal. After any other error it is unknown whether the job was
// enqueued, since an attempt may have arrived and its answer been lost. Repeating the same Submission with the same
// IdempotencyKey finds out. A caller that may need that must set the key itself, for example to Keys().Next().
func (c *Client) SubmitIdempotent(ctx context.Context, s Submission) (*Job, error) {
	if s.IdempotencyKey == "" {
		s.IdempotencyKey = c.opts.Keys.Next()
	}
	call := wire.Call{Method: "POST", Path: "/v1/jobs", Key: s.IdempotencyKey, Trace: s.Traceparent}
	s.IdempotencyKey = "" // which is in the header
	call.Body = s
	return c.job(ctx, call)
}

// WaitIdempotent is SubmitIdempotent followed by Wait for the job's end. It returns the job with its result, whether
// the job completed, failed, was cancelled or expired, and with how the submission was answered (Replayed, Deduplicated,
// Existing). If only the wait fails, it returns the job as submitted together with the error; the caller may wait again
// by the job's ID.
func (c *Client) WaitIdempotent(ctx context.Context, s Submission) (*Job, error) {
	j, err := c.SubmitIdempotent(ctx, s)
	if err != nil {
		return nil, err
	}
	done, err := c.Wait(ctx, j.ID)
	if err != nil {
		return j, err
	}
	done.Replayed, done.Deduplicated, done.Existing = j.Replayed, j.Deduplicated, j.Existing
	return done, nil
}

// waitStep is how long one call of Wait lets the manager wait.
const waitStep = 30 * time.Second

// Wait returns the job once it is terminal.
func (c *Client) Wait(ctx context.Context, id string) (*Job, error) {
	return waitFor(ctx, wire.JobPath(id), c.job, (*Job).Terminal)
}

// waitFor repeats a call that the manager lets wait, until over says that there is nothing more to wait for.
func waitFor[T any](ctx context.Context, path string, call func(context.Context, wire.Call) (*T, error), over func(*T) bool) (*T, error) {
	path += "?wait_ms=" + strconv.FormatInt(waitStep.Milliseconds(), 10)
	for {
		answer, err := call(ctx, wire.Call{Method: "GET", Path: path, Wait: waitStep})
		if err != nil || over(answer) {
			return answer, err
		}
		// A manager that is stopping answers before the time is over.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
