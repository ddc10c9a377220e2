package admin

import (
	"context"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Shard describes a ledger as one of several shards.
type Shard struct {
	LedgerID string `json:"ledger_id"`
	// Name is the shard's name, empty for a ledger that answers for any shard.
	Name string `json:"shard"`
	// Shards is the list in force, empty if there is none. Version is the list's version.
	Shards  []string `json:"shards"`
	Version uint64   `json:"shards_version"`
	// Moved counts by state the entries here whose keys other shards own. While there are any, gates must ask this
	// ledger first for such keys.
	Moved struct {
		Pending   int `json:"pending"`
		Committed int `json:"committed"`
		Rejected  int `json:"rejected"`
		Unknown   int `json:"unknown"`
	} `json:"moved"`
}

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
