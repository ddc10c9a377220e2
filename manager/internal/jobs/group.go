package jobs

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Bounds of one transaction of a group.
const (
	groupCalls = 128
	groupBytes = 4 << 20
	// groupLanes is how many transactions of a group run concurrently: while the medium makes one durable, the server
	// works on another.
	groupLanes = 2
)

// newGroup runs calls of one kind that arrive at the same time in shared transactions, on stores where a transaction is a
// few round trips however much it does. run does the calls in one transaction, and may be called again.
//
// Inside a transaction the calls run one after the other. Each sees what those before it did, and a refused call has
// written nothing. So the other calls make no difference to a caller.
func newGroup[T any](q *Queue, run func(tx store.Tx, calls []*T) error) *batch.Batcher[T] {
	transact := func(calls []*batch.Call[T]) error {
		ctx, cancel := context.WithTimeout(q.base, claimTimeout)
		defer cancel()
		args := batch.Args(calls)
		err := q.store.Update(ctx, func(tx store.Tx) error { return run(tx, args) })
		if err != nil && q.base.Err() != nil {
			err = ErrClosed
		}
		return err
	}
	together := func(_ context.Context, calls []*batch.Call[T]) error {
		err := transact(calls)
		if err == nil || len(calls) == 1 || err == ErrClosed || store.Unknown(err) {
			return err
		}
		// An error of one call (a damaged record, a transaction that is too large, conflicts with other transactions)
		// must not affect the others.
		for i, c := range calls {
			c.Finish(transact(calls[i : i+1]))
		}
		return nil
	}
	return &batch.Batcher[T]{Run: together, Life: q.life, Closed: ErrClosed, Lanes: groupLanes, Count: groupCalls, Size: groupBytes}
}
