package jobs

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Retry puts a job back into the queue.
//
// With a lease token a worker hands back the job it has leased. The delay grows with the attempts unless the worker
// sets it. When all attempts are used up that is ErrConflict: the worker must finish the job as Failed instead. A job
// that was cancelled meanwhile becomes Cancelled. A repeated call gets the same answer until the job is delivered
// again.
//
// Without a token an operator runs a failed, cancelled or expired job again with new attempts, or a scheduled one at
// another time. An expiry that would be over by then goes. The job acquires its key and its deduplication lock again; if another job holds one of them, that is
// ErrDuplicateKey. Jobs in other states are ErrConflict; that of a replayed job names its copy.
func (q *Queue) Retry(ctx context.Context, req Retry) (Job, error) {
	var delay time.Duration
	if req.Delay != nil {
		delay = *req.Delay
	}
	if err := cmp.Or(CheckID("id", req.ID), checkVisible("lease_token", req.Token, 0, MaxTokenBytes), checkDuration("delay_ms", delay, 0, MaxDelay), checkError(req.Error)); err != nil {
		return Job{}, err
	}
	if req.Uncounted && req.Token == "" {
		return Job{}, invalid("uncounted", "true", "only with a lease_token")
	}
	random := q.opt.Random()
	var job Job
	var r *record
	var repeated bool
	err := q.store.Update(ctx, func(tx store.Tx) error {
		var err error
		if repeated = false; req.Token != "" {
			r, repeated, err = q.workerRetry(tx, &req, random)
		} else {
			r, err = operatorRetry(tx, &req)
		}
		if err != nil {
			return err
		}
		job = r.job()
		return nil
	})
	if err != nil {
		return Job{}, q.countFenced(err)
	}
	q.account(r)
	q.noteDue(&job)
	if repeated {
		return job, nil
	}
	if req.Token != "" && !req.Uncounted && !job.State.Terminal() {
		q.rates.add(job.Function, rateRetried)
	}
	q.stats.retried.Add(1)
	return job, nil
}

// workerRetry hands back a job. repeated: an earlier call with the token did it.
func (q *Queue) workerRetry(tx store.Tx, req *Retry, random float64) (r *record, repeated bool, err error) {
	r, err = leased(tx, req.ID, req.Token, req.Only)
	if err != nil {
		if r != nil && r.LastToken == req.Token && (!r.State.Terminal() || r.State == Cancelled && r.CancelRequested) {
			return r, true, nil
		}
		return nil, false, err
	}
	if req.Error != "" {
		r.Error = req.Error
		r.attemptFailed(req.Error, now(tx))
	}
	r.LastToken = req.Token
	if r.CancelRequested {
		return r, false, r.terminate(tx, Cancelled, now(tx))
	}
	delay := q.opt.backoff(r.Attempt, random)
	if req.Uncounted {
		r.Attempt--
	}
	if r.Attempt >= r.MaxAttempts {
		return nil, false, r.conflict("all " + strconv.Itoa(r.MaxAttempts) + " attempts are used up; finish it as failed")
	}
	if req.Delay != nil {
		delay = *req.Delay
	}
	return r, false, r.requeue(tx, delay)
}

func operatorRetry(tx store.Tx, req *Retry) (*record, error) {
	r, err := find(tx, req.ID)
	if err != nil {
		return nil, err
	}
	switch {
	case !req.EndedBy.IsZero() && r.FinishedAt.After(req.EndedBy):
		return nil, r.conflict("it ended at " + r.FinishedAt.Format(time.RFC3339Nano) + ", after what the caller had seen; look at it again")
	case r.State == Scheduled && !r.over(now(tx)):
	case r.State == Scheduled, r.State == Failed, r.State == Cancelled, r.State == Expired: // holds neither key nor lock
		if r.LockID != "" {
			holder, err := lockHolder(tx, now(tx), r.LockID)
			if err != nil {
				return nil, err
			}
			if holder != nil {
				return nil, holder.duplicate("")
			}
		}
		if r.Key != "" {
			holder, err := keyHolder(tx, now(tx), r.Key)
			if err != nil {
				return nil, err
			}
			if holder != nil {
				return nil, holder.duplicate(r.Key)
			}
			if err := tx.Put(colKeys, r.Key, []byte(r.ID)); err != nil {
				return nil, err
			}
		}
		if err := r.setResult(tx, nil); err != nil {
			return nil, err
		}
		r.Attempt = 0
		r.FinishedAt, r.CancelRequested = time.Time{}, false
	case r.State == Replayed:
		return nil, r.replayed()
	default:
		return nil, r.conflict("only failed, cancelled, expired and scheduled jobs can be retried without a lease")
	}
	if req.Error != "" {
		r.Error = req.Error
	}
	r.LastToken = ""
	delay := time.Duration(0)
	if req.Delay != nil {
		delay = *req.Delay
	}
	if !r.ExpiresAt.After(now(tx).Add(delay)) { // the operator wants it to run
		r.ExpiresAt, r.DeadIfExpired = time.Time{}, false
	}
	return r, r.requeue(tx, delay)
}

// requeue lets the job be delivered after the delay.
func (r *record) requeue(tx store.Tx, delay time.Duration) error {
	at := now(tx)
	r.State, r.Lease, r.RunAt, r.Place = Queued, nil, at, 0
	if runAt := at.Add(delay).Truncate(time.Microsecond); runAt.After(at) {
		r.State, r.RunAt = Scheduled, runAt
	} else {
		notifyQueued(tx, r.Function)
	}
	if err := r.save(tx); err != nil {
		return err // before the lock, so that nothing is written if the concurrency key cannot be read
	}
	return r.holdLock(tx, at)
}

// Cancel keeps a job that no worker has from ever running. It only marks an active job: the worker learns of that with
// its next heartbeat, and the job is not delivered again whatever the worker does. Its key and lock are released when the
// worker lets go of it, so that no equal job runs beside it: when it reports, or its lease is lost. A cancelled job may be cancelled again. A complete, failed, expired or replayed one is ErrConflict.
func (q *Queue) Cancel(ctx context.Context, id string) (Job, error) {
	if err := CheckID("id", id); err != nil {
		return Job{}, err
	}
	var job Job
	var r *record
	var changed bool
	err := q.store.Update(ctx, func(tx store.Tx) (err error) {
		changed = false
		r, err = find(tx, id)
		if err != nil {
			return err
		}
		switch {
		case r.State == Replayed:
			return r.replayed()
		case r.State == Complete || r.State == Failed || r.State == Expired:
			return r.conflict("it is over already")
		case r.State == Cancelled || r.CancelRequested:
		case r.State == Active:
			changed = true
			r.CancelRequested = true
			r.Duplicates = false // they are cancelled with it
			if err := r.save(tx); err != nil {
				return err
			}
		default:
			changed = true
			r.LastToken = ""
			if err := r.terminate(tx, Cancelled, now(tx)); err != nil {
				return err
			}
		}
		job = r.jobNow(tx)
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	q.account(r)
	if changed {
		q.stats.cancelled.Add(1)
	}
	return job, nil
}
