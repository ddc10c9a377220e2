package admin

import (
	"context"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Quarantine returns the quarantine of the manager's ledger.
func (c *Client) Quarantine(ctx context.Context) (*Quarantine, error) {
	return c.quarantine(ctx, "GET")
}

// EndQuarantine ends the quarantine of the manager's ledger and returns what it was. What its reasons name can run again
// from then on. The caller must be an administrator.
func (c *Client) EndQuarantine(ctx context.Context) (*Quarantine, error) {
	return c.quarantine(ctx, "DELETE")
}

func (c *Client) quarantine(ctx context.Context, method string) (*Quarantine, error) {
	call := wire.Call{Method: method, Path: "/v1/ledger/quarantine"}
	return wire.Ask(ctx, c.client, call, "no reasons", func(q *Quarantine) bool { return q.Why != nil })
}
