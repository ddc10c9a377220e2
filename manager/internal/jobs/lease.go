package jobs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Beat is the answer to a heartbeat.
type Beat struct {
	// Cancelled: the job was cancelled. The worker should stop and finish it with the state Cancelled.
	Cancelled bool
	// ExpiresIn is how long the lease lasts from now.
	ExpiresIn time.Duration
}

// leased returns the job if token is that of its lease and its function is one of only, or only is nil.
func leased(tx store.Tx, id, token string, only []string) (*record, error) {
	r, err := find(tx, id)
	if err != nil {
		return nil, err
	}
	if only != nil && !slices.Contains(only, r.Function) {
		return nil, refuse(ErrForbidden, 403, api.CodeForbidden, "Forbidden", "these credentials do not allow work on the function of job "+id)
	}
	if r.State != Active || r.Lease.Token != token {
		return r, r.fenced(0)
	}
	return r, nil
}

// extend lets the lease last for d from at on, but not beyond the attempt's deadline.
func (l *Lease) extend(at time.Time, d time.Duration) {
	l.Until = at.Add(d).Truncate(time.Microsecond)
	if !l.Deadline.IsZero() && l.Deadline.Before(l.Until) {
		l.Until, d = l.Deadline, l.Deadline.Sub(at)
	}
	l.ExpiresIn = d
}

// timedOut reports whether the attempt has reached its deadline.
func (l *Lease) timedOut(at time.Time) bool { return !l.Deadline.IsZero() && !l.Deadline.After(at) }

func checkLease(id, token string) error {
	return cmp.Or(CheckID("id", id), checkVisible("lease_token", token, 1, MaxTokenBytes))
}

// Heartbeat extends a lease to the given time from now, or to the claim's duration when lease is 0. A lease that ran
// out is its worker's until it is revoked. A stale token is ErrFenced, and so is an attempt that has reached its
// timeout, before which every lease ends. Only are the functions whose jobs the caller
// may work on, nil for all.
func (q *Queue) Heartbeat(ctx context.Context, id, token string, lease time.Duration, only []string) (Beat, error) {
	if err := cmp.Or(checkLease(id, token), checkOptional("lease_ms", lease, MinLease, MaxLease)); err != nil {
		return Beat{}, err
	}
	var beat Beat
	var until time.Time // by the wall clock
	err := q.store.Update(ctx, func(tx store.Tx) error {
		r, err := leased(tx, id, token, only)
		if err != nil {
			return err
		}
		at := leaseNow(tx)
		if r.Lease.timedOut(at) {
			return r.fenced(r.Timeout)
		}
		left := cmp.Or(lease, r.Lease.Duration)
		r.Lease.extend(at, left)
		beat = Beat{Cancelled: r.CancelRequested, ExpiresIn: r.Lease.ExpiresIn}
		until = now(tx).Add(beat.ExpiresIn)
		return r.save(tx)
	})
	if err != nil {
		return Beat{}, q.countFenced(err)
	}
	q.due.note(until)
	return beat, nil
}

// Finish ends a job for good and releases its key and lock. Failed puts it into its function's dead letters. A repeated
// call, with the same token and state, gets the same answer. Another state after the first is ErrConflict, a stale
// token ErrFenced.
func (q *Queue) Finish(ctx context.Context, f Finish) (Job, error) {
	if err := f.check(); err != nil {
		return Job{}, err
	}
	call := &finishCall{Finish: f}
	if err := q.finish(ctx, call); err != nil {
		return Job{}, err
	}
	q.countFinished(call)
	return call.out.Job, call.out.Err
}

// finish runs one call, in a shared transaction where that pays.
func (q *Queue) finish(ctx context.Context, call *finishCall) error {
	if q.finishes != nil {
		c := &batch.Call[finishCall]{Arg: *call, Size: len(call.Result) + len(call.Error)}
		err := q.finishes.Do(ctx, c)
		if err == nil {
			*call = c.Arg
		}
		return err
	}
	return q.store.Update(ctx, func(tx store.Tx) error { return finishTx(tx, []*finishCall{call}) })
}

// Finished is the answer to one finish of FinishMany.
type Finished struct {
	// Job, if Err is nil; a payload or result over 512 bytes is left out.
	Job Job
	// Err is what Finish would have returned.
	Err error
}

// finishCall is a finish and its answer.
type finishCall struct {
	Finish
	out Finished
	// repeated: an earlier call finished the job.
	repeated bool
	job      *record // that was finished, nil otherwise
}

// FinishMany finishes up to MaxLimit jobs, in one transaction if they fit into one. Each is judged by itself: a refused
// finish does not affect the others. The error concerns all of them. It is that of the one transaction.
func (q *Queue) FinishMany(ctx context.Context, fs []Finish) ([]Finished, error) {
	if len(fs) == 0 || len(fs) > MaxLimit {
		return nil, invalidInt("finishes", int64(len(fs)), "1 to "+strconv.Itoa(MaxLimit)+" jobs")
	}
	size := 0
	calls := make([]finishCall, len(fs))
	var allowed []*finishCall
	for i := range fs {
		calls[i].Finish = fs[i]
		if calls[i].out.Err = fs[i].check(); calls[i].out.Err == nil {
			allowed = append(allowed, &calls[i])
		}
		size += len(fs[i].Result) + len(fs[i].Error)
	}
	if size > MaxAnswerBytes {
		return nil, tooLarge("finishes", size, MaxAnswerBytes)
	}
	var failed error
	finish := func(calls []*finishCall) error {
		return q.store.Update(ctx, func(tx store.Tx) error { return finishTx(tx, calls) })
	}
	ofOne := func(err error) bool { return errors.Is(err, store.ErrTooLarge) } // many following runs with large payloads
	batch.Split(allowed, finish, ofOne, func(calls []*finishCall, err error) {
		if len(calls) == len(allowed) {
			failed = err
		}
		for _, call := range calls {
			if err != nil {
				call.out, call.job = Finished{Err: err}, nil
			}
		}
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]Finished, len(fs))
	for i := range calls {
		q.countFinished(&calls[i])
		out[i] = calls[i].out
	}
	return out, nil
}

// died counts a job that became a dead letter, and reports it.
func (q *Queue) died(j Job) {
	q.rates.add(j.Function, rateFailed)
	if q.opt.Died != nil {
		q.opt.Died(j)
	}
}

func (q *Queue) countFinished(call *finishCall) {
	switch {
	case call.out.Err != nil:
		_ = q.countFenced(call.out.Err)
	case !call.repeated:
		q.account(call.job)
		q.stats.finished[call.State].Add(1)
		switch call.State {
		case Complete:
			q.rates.add(call.out.Job.Function, rateCompleted)
		case Failed:
			q.died(call.out.Job)
		}
	}
}

// finishTx does finishes in one transaction.
func finishTx(tx store.Tx, calls []*finishCall) error {
	ids := make([]string, len(calls))
	for i, call := range calls {
		ids[i] = call.ID
	}
	if err := prefetchFinished(tx, ids); err != nil {
		return err
	}
	for _, call := range calls {
		call.out, call.repeated = Finished{}, false
		err := call.finish(tx)
		if err != nil && !IsRefusal(err) {
			return err
		}
		call.out.Err = err
	}
	return nil
}

// prefetchFinished reads jobs that are about to end, and the records that change with them.
func prefetchFinished(tx store.Tx, ids []string) error {
	names := make([]store.ID, len(ids))
	for i, id := range ids {
		names[i] = store.ID{Collection: colJobs, Key: id}
	}
	if err := tx.Prefetch(names); err != nil {
		return err
	}
	names = nil
	for _, id := range ids {
		r, err := load(tx, id)
		if err != nil || r == nil {
			continue // the next call that loads it returns the error
		}
		if r.Key != "" {
			names = append(names, store.ID{Collection: colKeys, Key: r.Key})
		}
		if r.held.slots&slotFunction != 0 {
			names = append(names, store.ID{Collection: colSlots, Key: r.Function})
		}
		if r.held.slots&slotKey != 0 {
			names = append(names, store.ID{Collection: colSlots, Key: slotsKey(r.Function, r.ConcurrencyKey)})
		}
		if r.mayHoldLock() {
			names = append(names, store.ID{Collection: colLocks, Key: r.LockID})
		}
	}
	return tx.Prefetch(names)
}

func (f *Finish) check() error {
	if err := checkLease(f.ID, f.Token); err != nil {
		return err
	}
	if !f.State.Finishes() {
		return invalid("status", f.State.String(), "complete, failed, cancelled")
	}
	if f.Result != nil {
		if err := checkJSON("result", f.Result, MaxResultBytes); err != nil {
			return err
		}
	}
	return checkError(f.Error)
}

// finish is one finish of a transaction. A refused finish has written nothing.
func (f *finishCall) finish(tx store.Tx) error {
	r, err := leased(tx, f.ID, f.Token, f.Only)
	f.repeated = err != nil && r != nil && r.State.Terminal() && r.LastToken == f.Token
	switch {
	case f.repeated && r.State != f.State && (r.State != Replayed || f.State != Failed):
		return r.conflict("it was finished with this token before")
	case f.repeated:
		f.out.Job = r.job()
		return nil
	case err != nil:
		return err
	}
	if err := r.fetchToFollow(tx, f.State); err != nil {
		return err
	}
	if err := r.setResult(tx, f.Result); err != nil {
		return err
	}
	r.Error = f.Error
	r.LastToken = f.Token
	if f.State != Complete {
		r.attemptFailed(f.Error, now(tx))
	}
	if err := r.terminate(tx, f.State, now(tx)); err != nil {
		return err
	}
	f.job, f.out.Job = r, r.job()
	return nil
}

// IsRefusal reports whether the error is the queue's own answer to one call, which has written nothing.
func IsRefusal(err error) bool {
	var r *Error
	return errors.As(err, &r) && r.Kind != nil || errors.Is(err, store.ErrUnreadable) || errors.Is(err, ErrInvalid)
}
