package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Peers returns how far the manager's data centre is behind the others.
func (c *Client) Peers(ctx context.Context) (*Peers, error) {
	return wire.Ask(ctx, c.client, wire.Call{Method: "GET", Path: "/v1/peers"}, "no peers", func(p *Peers) bool { return p.Peers != nil })
}

// Conflicts returns one page of the conflicts that a manager knows. limit is 1 to 1000, 100 when 0.
func (c *Client) Conflicts(ctx context.Context, limit int, cursor string) (*ConflictPage, error) {
	return c.conflicts(ctx, nil, limit, cursor)
}

// ConflictOf returns the conflict about a key, nil if there is none.
func (c *Client) ConflictOf(ctx context.Context, scope, key string) (*Conflict, error) {
	page, err := c.conflicts(ctx, url.Values{"key": {key}, "scope": {scope}}, 0, "")
	if err != nil || len(page.Conflicts) == 0 {
		return nil, err
	}
	return &page.Conflicts[0], nil
}

func (c *Client) conflicts(ctx context.Context, query url.Values, limit int, cursor string) (*ConflictPage, error) {
	call := wire.Page("/v1/ledger/conflicts", query, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of conflicts", func(page *ConflictPage) bool { return page.Conflicts != nil })
}
