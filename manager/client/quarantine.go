package client

import (
	"context"
	"time"
)

// Quarantine is for how long a ledger refuses keys that it does not know, because it may have forgotten them.
type Quarantine struct {
	// RemainingMS is for how many milliseconds more, 0 when there is no quarantine.
	RemainingMS int64 `json:"remaining_ms"`
	// Began is when it began, or the point in time that the data were restored to; nil if there was none so far.
	Began *time.Time `json:"began,omitempty"`
	// Why are the reasons, for people: what may be forgotten, and who knows it.
	Why []string `json:"why"`
}

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
	var q Quarantine
	call := call{method: method, path: "/v1/ledger/quarantine"}
	if _, err := c.do(ctx, call, &q); err != nil {
		return nil, err
	}
	if q.Why == nil {
		return nil, call.notOurs("no reasons")
	}
	return &q, nil
}
