package client

import "context"

// Shard is who a ledger is among others.
type Shard struct {
	LedgerID string `json:"ledger_id"`
	// Name is the shard's, empty for a ledger that takes calls for any.
	Name string `json:"shard"`
	// Shards is the list in force, empty without one, and Version that of the list.
	Shards  []string `json:"shards"`
	Version uint64   `json:"shards_version"`
	// Moved counts by state the entries that are there of keys which other shards own. Gates must ask
	// there first as long as there are any.
	Moved struct {
		Pending   int `json:"pending"`
		Committed int `json:"committed"`
		Rejected  int `json:"rejected"`
		Unknown   int `json:"unknown"`
	} `json:"moved"`
}

// Shard returns who the ledger is. The manager goes through all of its entries for it.
func (c *Client) Shard(ctx context.Context) (*Shard, error) {
	var s Shard
	call := call{method: "GET", path: "/v1/ledger/shard"}
	if _, err := c.do(ctx, call, &s); err != nil {
		return nil, err
	}
	if s.LedgerID == "" {
		return nil, call.notOurs("no ledger's id")
	}
	return &s, nil
}
