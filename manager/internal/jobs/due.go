package jobs

import (
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// dueTimes is one queue's knowledge of when the next job is due: at a scheduled job's run_at, at the end of a lease, or
// when a job expires.
// With it, claims search those indexes only when there may be something, and Run sleeps until then. It is a cache: a
// mistake about other managers' jobs delays a job by at most dueRefresh, and by as long as a repeated scan may pass an
// entry by (see store.Range), and affects nothing else.
type dueTimes struct {
	mu      sync.Mutex
	checked time.Time // store's wall clock at the last check, zero before the first
	local   time.Time // this machine's time of the last check
	next    time.Time // store's wall clock when the next job is due, zero for none
	noted   time.Time // earliest note since the running check began
	kick    chan struct{}
}

// dueRefresh is how long a check is trusted.
const dueRefresh = 100 * time.Millisecond

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(t time.Time, others ...time.Time) time.Time {
	for _, o := range others {
		if o.After(t) {
			t = o
		}
	}
	return t
}

// note records that a job is due at t, by the wall clock.
func (d *dueTimes) note(t time.Time) {
	d.mu.Lock()
	d.noted = earliest(d.noted, t)
	sooner := d.next.IsZero() || t.Before(d.next)
	d.next = earliest(d.next, t)
	d.mu.Unlock()
	if sooner {
		select {
		case d.kick <- struct{}{}:
		default:
		}
	}
}

// noteDue notes when a job that was written is due.
func (q *Queue) noteDue(j *Job) {
	if j.State == Scheduled {
		q.due.note(j.RunAt)
	}
	if !j.ExpiresAt.IsZero() && !j.State.Terminal() {
		q.due.note(j.ExpiresAt)
	}
}

// stale reports whether a transaction at the given time must check.
func (d *dueTimes) stale(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.checked.IsZero() || at.Before(d.checked) || at.Sub(d.checked) >= dueRefresh ||
		!d.next.IsZero() && !d.next.After(at)
}

// begin must be called before a transaction checks.
func (d *dueTimes) begin() {
	d.mu.Lock()
	d.noted = time.Time{}
	d.mu.Unlock()
}

// checked records the next due time that a transaction at the given time found.
func (d *dueTimes) record(at, next time.Time) {
	d.mu.Lock()
	d.checked, d.local = at, time.Now()
	d.next = earliest(next, d.noted)
	d.mu.Unlock()
}

// in returns how long it is until the next job is due, at most limit.
func (d *dueTimes) in(limit time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next.IsZero() {
		return limit
	}
	left := d.next.Sub(d.checked.Add(time.Since(d.local)))
	return min(max(left, time.Millisecond), limit)
}

// onWall returns what the wall clock shows at a time of another clock; both show it now. The zero time stays zero.
func onWall(t, clock, wall time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(wall.Sub(clock))
}

// nextDue reads the first entries of the indexes whose jobs become due.
func (q *Queue) nextDue(tx store.Tx) (time.Time, error) {
	var next time.Time
	for _, part := range duePart {
		hits, err := tx.Scan(colJobs, part.index, store.Range{After: q.front.After(part.index), Limit: 1, Repeated: true})
		if err != nil {
			return next, err
		}
		if len(hits) > 0 {
			next = earliest(next, onWall(keyTime(hits[0].SortKey), part.now(tx), now(tx)))
		}
	}
	return next, nil
}
