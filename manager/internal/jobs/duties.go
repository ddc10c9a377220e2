package jobs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// dutyBatch bounds the records that one transaction of the duties changes.
const dutyBatch = 128

// dutyBytes bounds what such a transaction may write.
const dutyBytes = 8 << 20

// DutyReport counts what a round of duties did.
type DutyReport struct {
	// Promoted jobs were scheduled and are queued now.
	Promoted int
	// Reclaimed jobs lost their lease and were queued again.
	Reclaimed int
	// Dead jobs lost the lease of their last attempt and failed.
	Dead int
	// Cancelled jobs lost their lease after a cancel.
	Cancelled int
	// TimedOut counts those of the reclaimed, dead and cancelled jobs whose attempt reached its timeout.
	TimedOut int
	// Expired jobs ended before an attempt.
	Expired int
	// Unlocked counts the locks that were removed because they had expired.
	Unlocked int
	// Purged jobs were terminal and removed by retention.
	Purged int
}

func (r *DutyReport) add(o DutyReport) {
	r.Promoted += o.Promoted
	r.Reclaimed += o.Reclaimed
	r.Dead += o.Dead
	r.Cancelled += o.Cancelled
	r.TimedOut += o.TimedOut
	r.Expired += o.Expired
	r.Unlocked += o.Unlocked
	r.Purged += o.Purged
}

// Run does the duties until ctx ends or the queue is closed: immediately, whenever a job is due, and at least every
// Options.Interval. On a shared store it also counts the jobs' bytes (see CountBytes). It passes errors to report, which may be nil and may
// be called concurrently, and the next round tries again. Several managers of one store may all run it.
//
// Correctness never depends on Run: claims do what is due before they search, and an expired lock or key is void. Run
// wakes waiting claims in time, and removes what has expired.
func (q *Queue) Run(ctx context.Context, report func(DutyReport, error)) {
	var counts sync.WaitGroup
	defer counts.Wait()
	counts.Go(func() { q.runCounts(ctx, report) })
	var upkeep time.Time // when locks and retention were processed last
	for {
		var did DutyReport
		var err error
		if time.Since(upkeep) >= q.opt.Interval {
			upkeep = time.Now()
			did, err = q.RunDuties(ctx)
		} else {
			did, err = q.fallDue(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if report != nil && (err != nil || did != DutyReport{}) {
			report(did, err)
		}
		pause := q.due.in(q.opt.Interval)
		if err != nil {
			pause = q.opt.Interval
		}
		if q.waitOr(ctx, q.due.kick, pause, nil) != nil || ctx.Err() != nil || q.base.Err() != nil {
			return
		}
	}
}

// RunDuties does everything that is due now, in bounded transactions: it queues scheduled jobs, revokes lost leases,
// removes what has expired, and applies retention.
func (q *Queue) RunDuties(ctx context.Context) (DutyReport, error) {
	total, err := q.fallDue(ctx)
	if err != nil {
		return total, err
	}
	n, err := q.expireLocks(ctx)
	total.Unlocked += n
	if err != nil {
		return total, err
	}
	n, err = q.retain(ctx, idxDone, q.opt.RetainFor, q.opt.RetainCount)
	total.Purged += n
	if err != nil {
		return total, err
	}
	n, err = q.retainBatches(ctx)
	total.Purged += n
	if err != nil {
		return total, err
	}
	n, err = q.retainDead(ctx)
	total.Purged += n
	err = errors.Join(err, q.retireKeyed(ctx))
	if err != nil || q.shared {
		return total, err // where managers share the store, each would remove as much: see CountBytes
	}
	n, err = q.trim(ctx)
	total.Purged += n
	return total, err
}

// fallDue moves the jobs that are due, batch by batch.
func (q *Queue) fallDue(ctx context.Context) (DutyReport, error) {
	var total DutyReport
	for {
		did, more, err := q.fallDueBatch(ctx)
		total.add(did)
		if err != nil || !more {
			return total, err
		}
	}
}

// duePart are the indexes whose jobs fall due, with the clock of each.
var duePart = []struct {
	index string
	now   func(store.Tx) time.Time
	one   func(*dutyRun, *record) (bool, error)
}{{idxActive, leaseNow, (*dutyRun).reclaim}, {idxScheduled, now, (*dutyRun).promote}, {idxExpires, now, (*dutyRun).expire}}

// dutyRun is the state of one run of a transaction that moves jobs.
type dutyRun struct {
	tx     store.Tx
	at     time.Time
	opt    *Options
	random float64
	did    DutyReport
	moved  []*record
}

// fallDueBatch is one transaction of fallDue. more says that the batch was full.
func (q *Queue) fallDueBatch(ctx context.Context) (did DutyReport, more bool, err error) {
	q.due.begin()
	var next time.Time
	var run dutyRun
	random := q.opt.Random()
	err = q.store.Update(ctx, func(tx store.Tx) error {
		more, next, run = false, time.Time{}, dutyRun{tx: tx, at: now(tx), opt: &q.opt, random: random}
		for _, part := range duePart {
			full, head, err := q.overdue(tx, part.index, part.now(tx), func(r *record) (bool, error) {
				before := run.did
				ok, err := part.one(&run, r)
				if ok && err == nil {
					run.moved = append(run.moved, r)
				} else {
					run.did = before
				}
				return ok, err
			})
			if err != nil {
				return err
			}
			next = earliest(next, onWall(head, part.now(tx), run.at))
			more = more || full
		}
		if more {
			next = run.at
		}
		return nil
	})
	if err != nil {
		return DutyReport{}, false, err
	}
	did = run.did
	q.due.record(run.at, next)
	q.account(run.moved...)
	for _, r := range run.moved {
		q.noteDue(&r.Job)
		switch {
		case r.lostBy != "":
			q.lost(r)
		case r.State == Failed:
			q.died(r.job())
		}
	}
	q.stats.expired.Add(int64(did.Expired))
	q.stats.timedOut.Add(int64(did.TimedOut))
	q.stats.promoted.Add(int64(did.Promoted))
	q.stats.reclaimed.Add(int64(did.Reclaimed))
	q.stats.deadByLease.Add(int64(did.Dead))
	return did, more, nil
}

// overdue calls f for the jobs of an index that are due, up to as many as one transaction should change; full says that
// there may be more. f reports whether it moved the job out of the index. next is the time of the first job that is not
// due yet.
func (q *Queue) overdue(tx store.Tx, index string, at time.Time, f func(*record) (bool, error)) (full bool, next time.Time, err error) {
	edge := timeKey(at.Add(time.Microsecond))
	hits, err := tx.Scan(colJobs, index, store.Range{To: edge, After: q.front.After(index), Limit: dutyBatch, Claim: true})
	if err != nil {
		return false, next, err
	}
	full = len(hits) == dutyBatch
	bytes, some := 0, false
	var lead unread.Lead
	for _, h := range hits {
		moved := false
		r, err := load(tx, h.Key)
		if err == nil && r != nil {
			moved, err = f(r)
		}
		if err != nil && !q.cannotWait(err) {
			return false, next, err
		}
		if lead.See(h, r != nil && err == nil); !moved {
			continue
		}
		some = true
		// The payload of a job that is followed by another run is copied.
		if bytes += r.PayloadBlob + len(r.Error); bytes > dutyBytes {
			full = true
			break
		}
	}
	if lead.Pass(&q.front, index); full && !some {
		q.front.Pass(index, hits[len(hits)-1]) // entries of other jobs' records, too
	}
	ahead, err := tx.Scan(colJobs, index, store.Range{From: edge, Limit: 1})
	if err == nil && len(ahead) > 0 {
		next = keyTime(ahead[0].SortKey)
	}
	return full, next, err
}

// lost counts a job whose lease was revoked, and reports it.
func (q *Queue) lost(r *record) {
	j := r.job()
	if q.opt.Lost != nil {
		q.opt.Lost(j, r.lostBy)
	}
	switch j.State {
	case Queued, Scheduled:
		q.rates.add(j.Function, rateRetried)
	case Failed:
		q.died(j)
	}
}

func (d *dutyRun) promote(r *record) (bool, error) {
	if r.State != Scheduled || r.RunAt.After(d.at) {
		return false, nil
	}
	if r.over(d.at) { // the engine may hide it from the search for expired jobs
		return d.expire(r)
	}
	r.State = Queued
	d.did.Promoted++
	notifyQueued(d.tx, r.Function)
	return true, r.save(d.tx)
}

// over reports whether the job is terminal, or waits and has expired.
func (r *record) over(at time.Time) bool {
	return r.State.Terminal() || (r.State == Queued || r.State == Scheduled) && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(at)
}

// expire ends a job that has expired. No run follows: its duplicates expire with it.
func (d *dutyRun) expire(r *record) (bool, error) {
	if r.State.Terminal() || !r.over(d.at) {
		return false, nil
	}
	d.did.Expired++
	r.Duplicates = false
	r.LastToken = ""
	r.Error = "it expired at " + r.ExpiresAt.Format(time.RFC3339Nano)
	if r.DeadIfExpired {
		return true, r.terminate(d.tx, Failed, d.at)
	}
	return true, r.terminate(d.tx, Expired, d.at)
}

// reclaim revokes a lost lease. The job is delivered again while attempts remain, and fails otherwise. After a timeout it
// waits first, as after a worker's retry. A cancelled job ends here, since no worker is left to tell.
func (d *dutyRun) reclaim(r *record) (bool, error) {
	tx, at := d.tx, d.at
	if r.State != Active || r.Lease.Until.After(leaseNow(tx)) {
		return false, nil
	}
	timedOut := r.Lease.timedOut(leaseNow(tx))
	lost := fmt.Sprintf("worker %s lost its lease on attempt %d of %d", r.Lease.Worker, r.Attempt, r.MaxAttempts)
	if timedOut {
		d.did.TimedOut++
		lost = fmt.Sprintf("attempt %d of %d reached its timeout of %s at worker %s", r.Attempt, r.MaxAttempts, r.Timeout, r.Lease.Worker)
	}
	r.attemptFailed(lost, at)
	r.lostBy = r.Lease.Worker
	switch {
	case r.CancelRequested:
		d.did.Cancelled++
		return true, r.terminate(tx, Cancelled, at)
	case r.Attempt >= r.MaxAttempts:
		if err := r.fetchToFollow(tx, Failed); err != nil {
			return false, err
		}
		d.did.Dead++
		r.Error = lost
		return true, r.terminate(tx, Failed, at)
	}
	r.Error = lost
	r.State, r.Lease, r.FreedAt = Queued, nil, at
	if r.over(at) {
		return d.expire(r)
	}
	d.did.Reclaimed++
	if timedOut {
		return true, r.requeue(tx, d.opt.backoff(r.Attempt, d.random))
	}
	notifyQueued(tx, r.Function)
	return true, r.save(tx)
}

// followed reports whether another run follows when the job ends as s. The duplicates of a job whose cancel was
// requested came after the request.
func (r *record) followed(s State) bool {
	return r.Duplicates && (s != Cancelled || r.CancelRequested) && r.Dedup != nil && r.Dedup.RescheduleOnce
}

// fetchToFollow reads what terminate needs besides the job. A caller that rejects the call when that cannot be read
// must call it before its first write.
func (r *record) fetchToFollow(tx store.Tx, s State) error {
	if !r.followed(s) {
		return nil
	}
	if r.ConcurrencyKey != "" {
		if _, err := loadKeySlots(tx, slotsKey(r.Function, r.ConcurrencyKey)); err != nil {
			return err
		}
	}
	if err := r.fetch(tx); err != nil || r.ConcurrencyKey == "" {
		return err
	}
	return markKeyed(tx, r.Function)
}

// terminate ends the job. It releases its key and its lock. If its deduplication asks for that, another run follows.
func (r *record) terminate(tx store.Tx, s State, at time.Time) error {
	if err := r.fetchToFollow(tx, s); err != nil {
		return err
	}
	if err := r.dropKey(tx); err != nil {
		return err
	}
	if err := r.dropLock(tx); err != nil {
		return err
	}
	followed := r.followed(s) && (r.ExpiresAt.IsZero() || r.ExpiresAt.After(at))
	r.State, r.FinishedAt, r.Lease, r.Duplicates = s, at, nil, false
	if followed {
		if err := r.follow(tx, at); err != nil {
			return err
		}
	}
	tx.Notify(topicDone + r.ID)
	return r.save(tx)
}

// follow enqueues the job once more, with the lock and the key that the job has just released. If the lock had run out
// and another job holds it, that job was submitted after all of the duplicates and replaces the run. If the lock cannot
// be read, or belongs to a job that cannot be read, the lock stays and the run has none.
func (r *record) follow(tx store.Tx, at time.Time) error {
	other, err := lockHolder(tx, at, r.LockID)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	if other != nil {
		// It cannot replace the run if it cannot hold their positions.
		err := other.absorb(tx, r.WALLocations)
		if !errors.Is(err, ErrInvalid) {
			return err
		}
	}
	id := followID(r.ID)
	for {
		// The id is in use if an earlier job of this id was followed and then removed.
		have, err := load(tx, id)
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return err
		}
		if have == nil && err == nil {
			break
		}
		id = followID(id)
	}
	f := r.again(id).record(at)
	f.ExpiresAt, f.DeadIfExpired = r.ExpiresAt, r.DeadIfExpired
	if err := f.holdLock(tx, at); err != nil {
		return err
	}
	if f.Key != "" {
		if _, err := tx.Get(colKeys, f.Key); !errors.Is(err, store.ErrUnreadable) {
			if err := tx.Put(colKeys, f.Key, []byte(f.ID)); err != nil {
				return err
			}
		}
	}
	notifyQueued(tx, f.Function)
	r.next = f
	return f.create(tx)
}

// followID derives the id of the run that follows: x, x~1, x~2 and so on. It is not random, so every run of an update
// function makes the same id.
func followID(id string) string {
	if base, n, ok := strings.Cut(id, "~"); ok {
		if v, err := strconv.ParseUint(n, 10, 63); err == nil {
			return base + "~" + strconv.FormatUint(v+1, 10)
		}
	}
	return id + "~1"
}

// expireLocks removes the locks that have expired.
func (q *Queue) expireLocks(ctx context.Context) (int, error) {
	const c = colLocks
	total := 0
	after := q.front.After(string(c))
	for {
		var n int
		var found []store.Hit
		err := q.store.Update(ctx, func(tx store.Tx) error {
			n = 0
			at := now(tx)
			var err error
			if found, err = tx.Scan(c, idxExpiry, store.Range{To: timeKey(at), After: after, Limit: dutyBatch, Claim: true}); err != nil {
				return err
			}
			var lead unread.Lead
			defer lead.Pass(&q.front, string(c))
			for _, h := range found {
				l, err := loadLock(tx, h.Key)
				if err != nil && !q.opt.Unreadable.Met(err) {
					return err
				}
				over := l != nil && !l.until.After(at)
				if lead.See(h, over); over {
					n++
					if err := tx.Delete(c, h.Key); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return total, err
		}
		total += n
		if len(found) < dutyBatch {
			return total, nil
		}
		after = &found[len(found)-1]
	}
}
