package admin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Quarantine is for how long a ledger refuses keys that it does not know, because it may have forgotten them.
type Quarantine struct {
	// Remaining is for how long more, 0 when there is no quarantine.
	Remaining time.Duration `json:"-"` // remaining_ms
	// Began is when it began, or the point in time that the data were restored to; nil if there was none so far.
	Began *time.Time `json:"began,omitempty"`
	// Why are the reasons, for people: what may be forgotten, and who knows it.
	Why []string `json:"why"`
}

type plainQuarantine Quarantine

type wireQuarantine struct {
	*plainQuarantine
	RemainingMS int64 `json:"remaining_ms"`
}

// MarshalJSON encodes the quarantine as the API does.
func (q Quarantine) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireQuarantine{(*plainQuarantine)(&q), wire.MS(q.Remaining)})
}

// UnmarshalJSON decodes a quarantine of the API.
func (q *Quarantine) UnmarshalJSON(b []byte) error {
	w := wireQuarantine{plainQuarantine: (*plainQuarantine)(q)}
	err := json.Unmarshal(b, &w)
	q.Remaining = wire.Duration(w.RemainingMS)
	return err
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
	call := wire.Call{Method: method, Path: "/v1/ledger/quarantine"}
	if _, err := c.do(ctx, call, &q); err != nil {
		return nil, err
	}
	if q.Why == nil {
		return nil, call.NotOurs("no reasons")
	}
	return &q, nil
}
