package jobs

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// deadCounts is one queue's knowledge of how many dead letters a shared store has. It only counts those of all functions
// together, and counting each function's takes several scans. So they are counted once a function may have too many,
// and from time to time.
type deadCounts struct {
	mu    sync.Mutex
	at    time.Time // when they were counted, zero before
	total int       // how many remained then, or fewer
}

// recount is how long a count is trusted.
const recount = time.Minute

// due reports whether a function may have more than most: the total grew by a hundredth of most, or the last count is
// too old.
func (d *deadCounts) due(total, most int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total = min(d.total, total)
	return total > most && (d.at.IsZero() || time.Since(d.at) >= recount || total-d.total >= max(1, most/100))
}

func (d *deadCounts) counted(total int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.total = time.Now(), total
}

// retainDead removes the oldest dead letters of every function that has more than Options.DeadCount, and all dead
// letters that are too old.
func (q *Queue) retainDead(ctx context.Context) (int, error) {
	removed, err := q.retain(ctx, idxDead, q.opt.DeadFor, math.MaxInt)
	if err != nil {
		return removed, err
	}
	if !q.shared {
		n, err := q.retainDeadMost(ctx)
		return removed + n, err
	}
	total, err := q.store.Len(ctx, colJobs, idxDead)
	if err != nil || !q.dead.due(total, q.opt.DeadCount) {
		return removed, err
	}
	var functions []string
	if err := q.store.View(ctx, func(tx store.Tx) error {
		functions, err = functionsWithJobs(tx, "", 0)
		return err
	}); err != nil {
		return removed, err
	}
	for _, f := range functions {
		n, err := q.retainDeadOf(ctx, f)
		total -= n
		removed += n
		if err != nil {
			return removed, err
		}
	}
	q.dead.counted(total)
	return removed, nil
}

// countPage is how many hits one transaction counts.
const countPage = 10_000

// retainDeadOf removes the oldest dead letters of a function that has too many.
func (q *Queue) retainDeadOf(ctx context.Context, function string) (int, error) {
	from, to := functionRange(function, classDead)
	surplus := -q.opt.DeadCount
	for hits, err := range q.pages(ctx, idxFunction, store.Range{From: from, To: to, Limit: countPage}) {
		if err != nil {
			return 0, err
		}
		surplus += len(hits)
	}
	return q.removeDead(ctx, function, surplus)
}

// removeDead removes the oldest dead letters of a function, as many as surplus.
func (q *Queue) removeDead(ctx context.Context, function string, surplus int) (removed int, err error) {
	from, to := functionRange(function, classDead)
	for r := (store.Range{From: from, To: to, After: q.front.After(idxFunction + from)}); removed < surplus; {
		r.Limit = min(dutyBatch, surplus-removed)
		hits, err := q.scan(ctx, idxFunction, r)
		if err != nil || len(hits) == 0 {
			return removed, err
		}
		n, err := q.removeFirst(ctx, idxFunction, from, hits, math.MaxInt64)
		if removed += n; err != nil {
			return removed, err
		}
		r.After = &hits[len(hits)-1]
	}
	return removed, nil
}
