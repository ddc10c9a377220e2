package jobs

import (
	"context"
	"math"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// retain removes the oldest terminal jobs of an index that are too old or too many. On a shared store, whose counts are
// estimates, it may remove a few more than necessary.
func (q *Queue) retain(ctx context.Context, index string, age time.Duration, count int) (int, error) {
	surplus := math.MaxInt
	after := q.front.After(index)
	for total := 0; ; {
		old, err := q.retainable(ctx, index, age, count, after, &surplus)
		if err != nil || len(old) == 0 {
			return total, err
		}
		n, err := q.removeFirst(ctx, index, "", old, math.MaxInt64)
		total += n
		surplus -= n
		if err != nil || len(old) < dutyBatch {
			return total, err
		}
		after = &old[len(old)-1]
	}
}

// removeFirst removes jobs in the order of hits until their records had as many bytes. The hits are the next ones of an index,
// or of its part that begins with the sort key from.
func (q *Queue) removeFirst(ctx context.Context, index, from string, hits []store.Hit, bytes int64) (int, error) {
	var gone []*record
	err := q.store.Update(ctx, func(tx store.Tx) error {
		gone = nil
		left := bytes
		var lead unread.Lead
		defer lead.Pass(&q.front, index+from)
		for _, h := range hits {
			if left <= 0 {
				break
			}
			r, err := load(tx, h.Key)
			if err != nil && !q.opt.Unreadable.Met(err) {
				return err
			}
			// Otherwise it cannot be read, it was removed, or its state has changed.
			goes := r != nil && r.at(index, h.SortKey)
			if lead.See(h, goes); !goes {
				continue
			}
			if err := r.remove(tx); err != nil {
				return err
			}
			left -= r.stored.bytes
			gone = append(gone, r)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	q.account(gone...)
	return len(gone), nil
}

// retainable returns up to dutyBatch of the oldest jobs of an index after `after` that may be removed. Of those that are
// not too old it returns at most surplus, which it sets to how many are too many.
//
// It scans first and then counts. If another manager removes the same jobs in between, the count is lower, and no other
// jobs are removed in their place.
func (q *Queue) retainable(ctx context.Context, index string, age time.Duration, count int, after *store.Hit, surplus *int) ([]store.Hit, error) {
	var found []store.Hit
	var old time.Time
	err := q.store.View(ctx, func(tx store.Tx) error {
		old = now(tx).Add(-age)
		var err error
		found, err = tx.Scan(colJobs, index, store.Range{After: after, Limit: dutyBatch})
		return err
	})
	if err != nil {
		return nil, err
	}
	have := len(found)
	if have == dutyBatch || after != nil {
		if have, err = q.store.Len(ctx, colJobs, index); err != nil {
			return nil, err
		}
	}
	*surplus = max(0, min(*surplus, have-count))
	for i, h := range found {
		if i >= *surplus && keyTime(h.SortKey).After(old) {
			return found[:i], nil
		}
	}
	return found, nil
}
