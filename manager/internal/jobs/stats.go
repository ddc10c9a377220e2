package jobs

import (
	"context"
	"errors"
	"sync/atomic"
)

// counters count what this queue did since New.
type counters struct {
	enqueued, existing, deduplicated atomic.Int64
	claimed, retried, cancelled      atomic.Int64
	deleted                          atomic.Int64
	promoted, reclaimed, deadByLease atomic.Int64
	expired, timedOut                atomic.Int64
	fenced, full, overShare          atomic.Int64
	finished                         [Cancelled + 1]atomic.Int64
}

// countFenced counts a stale token and returns the error.
func (q *Queue) countFenced(err error) error {
	if errors.Is(err, ErrFenced) {
		q.stats.fenced.Add(1)
	}
	return err
}

// Counters count what this queue, not the whole store, did since New.
type Counters struct {
	// Enqueued jobs, and submissions answered with an existing job or dropped
	// as duplicates.
	Enqueued, Existing, Deduplicated int64
	// Claimed counts deliveries.
	Claimed int64
	// Completed, Failed and Cancelled count the calls of Finish by state.
	Completed, Failed, Cancelled int64
	// Retried counts Retry, CancelRequests counts Cancel, Deleted counts Delete.
	Retried, CancelRequests, Deleted int64
	// Promoted jobs were scheduled and are queued now. Reclaimed jobs lost a lease and were queued again. DeadByLease
	// jobs lost their last.
	Promoted, Reclaimed, DeadByLease int64
	// Expired jobs ended before an attempt. TimedOut attempts reached their timeout.
	Expired, TimedOut int64
	// Fenced calls came with a stale lease token.
	Fenced int64
	// Full counts submissions for which there was no room, OverShare those whose submitter had its share.
	Full, OverShare int64
	// Waiting calls at this moment.
	Waiting int64
}

// Counters returns the counts at this moment.
func (q *Queue) Counters() Counters {
	s := &q.stats
	return Counters{
		Enqueued: s.enqueued.Load(), Existing: s.existing.Load(), Deduplicated: s.deduplicated.Load(),
		Claimed:   s.claimed.Load(),
		Completed: s.finished[Complete].Load(), Failed: s.finished[Failed].Load(), Cancelled: s.finished[Cancelled].Load(),
		Retried: s.retried.Load(), CancelRequests: s.cancelled.Load(), Deleted: s.deleted.Load(),
		Promoted: s.promoted.Load(), Reclaimed: s.reclaimed.Load(), DeadByLease: s.deadByLease.Load(),
		Expired: s.expired.Load(), TimedOut: s.timedOut.Load(), Fenced: s.fenced.Load(), Full: s.full.Load(), OverShare: s.overShare.Load(), Waiting: q.waiters.Load(),
	}
}

// Depth counts the jobs in the store by state. On shared stores the numbers may
// be a few seconds old.
type Depth struct {
	Scheduled, Queued, Active int
	// Dead counts the dead letters, Done all other terminal jobs.
	Dead, Done int
}

// Depth returns how many jobs there are.
func (q *Queue) Depth(ctx context.Context) (Depth, error) {
	var d Depth
	for _, x := range []struct {
		index string
		n     *int
	}{{idxScheduled, &d.Scheduled}, {idxQueued, &d.Queued}, {idxKeyed, &d.Queued}, {idxActive, &d.Active}, {idxDead, &d.Dead}, {idxDone, &d.Done}} {
		n, err := q.store.Len(ctx, colJobs, x.index)
		if err != nil {
			return Depth{}, err
		}
		*x.n += n
	}
	return d, nil
}
