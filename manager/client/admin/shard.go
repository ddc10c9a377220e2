package admin

import (
	"context"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Shard returns the identity of the ledger. The manager reads all of its entries for that.
func (c *Client) Shard(ctx context.Context) (*Shard, error) {
	call := wire.Call{Method: "GET", Path: "/v1/ledger/shard"}
	return wire.Ask(ctx, c.client, call, "no ledger's id", func(s *Shard) bool { return s.LedgerID != "" })
}
