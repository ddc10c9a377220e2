package jobstest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// clock shows the queue a later time than the store's, on any engine and in any
// number of managers. The store's own clock runs meanwhile.
type clock struct{ ahead atomic.Int64 }

func (c *clock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

// move returns the instance with all its stores under the clock.
func (c *clock) move(in *Instance) *Instance {
	moved := &Instance{Store: movedStore{in.Store, c}}
	if in.Peer != nil {
		moved.Peer = func(t testing.TB) store.Store { return movedStore{in.Peer(t), c} }
	}
	if in.Reopen != nil {
		moved.Reopen = func(t testing.TB) store.Store { return movedStore{in.Reopen(t), c} }
	}
	return moved
}

type movedStore struct {
	store.Store
	clock *clock
}

func (m movedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return m.Store.Update(ctx, m.clock.tx(fn))
}

func (m movedStore) View(ctx context.Context, fn func(store.Tx) error) error {
	return m.Store.View(ctx, m.clock.tx(fn))
}

func (c *clock) tx(fn func(store.Tx) error) func(store.Tx) error {
	return func(tx store.Tx) error { return fn(movedTx{tx, time.Duration(c.ahead.Load())}) }
}

// movedTx shows the same time throughout, as the contract of a transaction demands.
type movedTx struct {
	store.Tx
	ahead time.Duration
}

func (m movedTx) Now() time.Time { return m.Tx.Now().Add(m.ahead) }

func (m movedTx) Wall() time.Time { return m.Tx.Wall().Add(m.ahead) }
