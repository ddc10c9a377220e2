package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Unreadable returns one page of the records that the manager cannot read. limit: 1 to 1000, 100 when 0. A page may
// have a few more, or none but still a cursor.
func (c *Client) Unreadable(ctx context.Context, limit int, cursor string) (*UnreadablePage, error) {
	var page UnreadablePage
	call := wire.Call{Method: "GET", Path: "/v1/unreadable" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Records == nil {
		return nil, call.NotOurs("no list of records")
	}
	return &page, nil
}

// DeleteUnreadable deletes a record if the manager cannot read it. What the record remembered is lost. Only
// administrators may call it.
func (c *Client) DeleteUnreadable(ctx context.Context, collection, id string) (*UnreadableRecord, error) {
	var r UnreadableRecord
	call := wire.Call{Method: "DELETE", Path: "/v1/unreadable/" + url.PathEscape(collection) + "/" + url.PathEscape(id)}
	if _, err := c.do(ctx, call, &r); err != nil {
		return nil, err
	}
	if r.ID == "" {
		return nil, call.NotOurs("no record")
	}
	return &r, nil
}
