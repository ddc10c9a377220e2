package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Peers returns how far the manager's data centre is behind the others.
func (c *Client) Peers(ctx context.Context) (*Peers, error) {
	var p Peers
	call := wire.Call{Method: "GET", Path: "/v1/peers"}
	if _, err := c.do(ctx, call, &p); err != nil {
		return nil, err
	}
	if p.Peers == nil {
		return nil, call.NotOurs("no peers")
	}
	return &p, nil
}

// Conflicts returns one page of the conflicts that a manager knows. limit is 1 to 1000, 100 when 0.
func (c *Client) Conflicts(ctx context.Context, limit int, cursor string) (*ConflictPage, error) {
	return c.conflicts(ctx, wire.PageQuery(url.Values{}, limit, cursor))
}

// ConflictOf returns the conflict about a key, nil if there is none.
func (c *Client) ConflictOf(ctx context.Context, scope, key string) (*Conflict, error) {
	page, err := c.conflicts(ctx, wire.PageQuery(url.Values{"key": {key}, "scope": {scope}}, 0, ""))
	if err != nil || len(page.Conflicts) == 0 {
		return nil, err
	}
	return &page.Conflicts[0], nil
}

func (c *Client) conflicts(ctx context.Context, query string) (*ConflictPage, error) {
	var page ConflictPage
	call := wire.Call{Method: "GET", Path: "/v1/ledger/conflicts" + query}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Conflicts == nil {
		return nil, call.NotOurs("no list of conflicts")
	}
	return &page, nil
}
