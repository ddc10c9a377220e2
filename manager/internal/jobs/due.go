package jobs

import (
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// dueTimes is what one queue knows about the next moment at which a job falls
// due: a scheduled job's run_at or the end of a lease. Claims consult it so that
// they look at those indexes only when there may be something, and Run so that
// it sleeps until then. It is a cache of facts: being wrong about what other
// managers did costs dueRefresh of delay, never correctness.
type dueTimes struct {
	mu      sync.Mutex
	checked time.Time // store's time of the last look, zero before the first
	local   time.Time // this machine's time of the last look
	next    time.Time // store's time of the next job, zero for none
	noted   time.Time // earliest note since the running look began
	kick    chan struct{}
}

// dueRefresh bounds how long a look is trusted.
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

// note tells of a job that falls due at t.
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

// stale reports whether a transaction at the given time should look.
func (d *dueTimes) stale(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.checked.IsZero() || at.Before(d.checked) || at.Sub(d.checked) >= dueRefresh ||
		!d.next.IsZero() && !d.next.After(at)
}

// begin must be called before a transaction looks.
func (d *dueTimes) begin() {
	d.mu.Lock()
	d.noted = time.Time{}
	d.mu.Unlock()
}

// looked records what a transaction at the given time found.
func (d *dueTimes) looked(at, next time.Time) {
	d.mu.Lock()
	d.checked, d.local = at, time.Now()
	d.next = earliest(next, d.noted)
	d.mu.Unlock()
}

// in returns how long it is until the next job falls due, at most limit.
func (d *dueTimes) in(limit time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next.IsZero() {
		return limit
	}
	left := d.next.Sub(d.checked.Add(time.Since(d.local)))
	return min(max(left, time.Millisecond), limit)
}

// nextDue looks at the heads of the two indexes that time moves jobs out of.
func (q *Queue) nextDue(tx store.Tx) (time.Time, error) {
	var next time.Time
	for _, index := range []string{idxActive, idxScheduled} {
		hits, err := tx.Scan(colJobs, index, store.Range{After: q.front.After(index), Limit: 1})
		if err != nil {
			return next, err
		}
		if len(hits) > 0 {
			next = earliest(next, keyTime(hits[0].SortKey))
		}
	}
	return next, nil
}
