package peers

import (
	"context"
	"log/slog"
	"time"

	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Own is the Self of a manager.
type Own struct {
	*shard.Keeper
	Quarantine Quarantine
	// Remembers is the longest time for which the ledger remembers a key.
	Remembers func() time.Duration
	Log       *slog.Logger
}

// Quarantine is that of a ledger; see package quarantine. Remaining is for how much longer the ledger refuses keys. Doubt
// begins a quarantine that Trust may end, and Extend makes one last for that long from now on.
type Quarantine interface {
	Remaining() time.Duration
	Doubt(ctx context.Context, d time.Duration, why string) error
	Trust(ctx context.Context) (ended bool, err error)
	Extend(ctx context.Context, d time.Duration, why string) error
}

// Left implements Self.
func (o Own) Left() time.Duration { return o.Quarantine.Remaining() }

// Longest implements Self.
func (o Own) Longest() time.Duration { return o.Remembers() }

// Trust implements Self.
func (o Own) Trust(ctx context.Context) error {
	ended, err := o.Quarantine.Trust(ctx)
	if ended {
		o.Log.Info("all peers have answered that they know no earlier ledger of this data centre")
	}
	return err
}

// Fence implements Self.
func (o Own) Fence(ctx context.Context, why string) error {
	return o.Quarantine.Extend(ctx, FenceFor, why)
}

// Doubt begins a quarantine of a new ledger that has peers. They may remember an earlier one, whose keys it must not run
// again. It must be called before the ledger has an identity. longest is the longest time for which a ledger remembers a
// key. Errors: those of the quarantine, the store's.
func Doubt(ctx context.Context, n *Network, st store.Store, q Quarantine, longest time.Duration) error {
	if len(n.Peers()) == 0 {
		return nil
	}
	known, err := shard.Known(ctx, st)
	if err != nil || known {
		return err
	}
	return q.Doubt(ctx, longest, "the ledger is new, and not all peers have answered yet that they know no earlier one")
}
