package client

import (
	"context"
	"net/url"
)

// UnreadableRecord is a record that is in the store and that the manager cannot read.
type UnreadableRecord struct {
	// Collection and ID name it in calls.
	Collection string `json:"collection"`
	ID         string `json:"id"`
	// Key is what it is stored under, for people: the id of a job, for example.
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// UnreadablePage is one page of such records; Cursor is empty on the last one.
type UnreadablePage struct {
	Records []UnreadableRecord `json:"records"`
	Cursor  string             `json:"cursor"`
}

// Unreadable returns one page of the records that the manager cannot read. Limit: 1 to
// 1000, 100 when 0; a page may have a few more, or none and still a cursor.
func (c *Client) Unreadable(ctx context.Context, limit int, cursor string) (*UnreadablePage, error) {
	var page UnreadablePage
	call := call{method: "GET", path: "/v1/unreadable" + pageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Records == nil {
		return nil, call.notOurs("no list of records")
	}
	return &page, nil
}

// DeleteUnreadable deletes a record that the manager cannot read, and no other. What it
// remembered is forgotten. Only administrators may.
func (c *Client) DeleteUnreadable(ctx context.Context, collection, id string) (*UnreadableRecord, error) {
	var r UnreadableRecord
	call := call{method: "DELETE", path: "/v1/unreadable/" + url.PathEscape(collection) + "/" + url.PathEscape(id)}
	if _, err := c.do(ctx, call, &r); err != nil {
		return nil, err
	}
	if r.ID == "" {
		return nil, call.notOurs("no record")
	}
	return &r, nil
}
