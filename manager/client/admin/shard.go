package admin

import (
	"context"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Shard returns the identity of the ledger. The manager reads all of its entries for that.
func (c *Client) Shard(ctx context.Context) (*Shard, error) {
	var s Shard
	call := wire.Call{Method: "GET", Path: "/v1/ledger/shard"}
	if _, err := c.do(ctx, call, &s); err != nil {
		return nil, err
	}
	if s.LedgerID == "" {
		return nil, call.NotOurs("no ledger's id")
	}
	return &s, nil
}
