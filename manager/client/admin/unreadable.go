package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Unreadable returns one page of the records that the manager cannot read. limit: 1 to 1000, 100 when 0. A page may
// have a few more, or none but still a cursor.
func (c *Client) Unreadable(ctx context.Context, limit int, cursor string) (*UnreadablePage, error) {
	call := wire.Page("/v1/unreadable", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of records", func(page *UnreadablePage) bool { return page.Records != nil })
}

// DeleteUnreadable deletes a record if the manager cannot read it. What the record remembered is lost. Only
// administrators may call it.
func (c *Client) DeleteUnreadable(ctx context.Context, collection, id string) (*UnreadableRecord, error) {
	call := wire.Call{Method: "DELETE", Path: "/v1/unreadable/" + url.PathEscape(collection) + "/" + url.PathEscape(id)}
	return wire.Ask(ctx, c.client, call, "no record", func(r *UnreadableRecord) bool { return r.ID != "" })
}
