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
	// groupTransactions is how many transactions of a group run concurrently: while the medium makes one durable, the server
	// works on another.
	groupTransactions = 2
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
	// An error of one call (a damaged record, a transaction that is too large, conflicts with other transactions) must not
	// affect the others.
	ofOne := func(err error) bool { return err != ErrClosed && !store.Unknown(err) }
	together := func(_ context.Context, calls []*batch.Call[T]) error {
		batch.Split(calls, transact, ofOne, func(calls []*batch.Call[T], err error) {
			for _, c := range calls {
				c.Finish(err)
			}
		})
		return nil
	}
	return &batch.Batcher[T]{Run: together, Life: q.life, Closed: ErrClosed, Lanes: groupTransactions, Count: groupCalls, Size: groupBytes}
}
