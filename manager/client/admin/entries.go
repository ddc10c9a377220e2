package admin

import (
	"context"
	"net/url"
	"strings"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// EntryQuery selects entries.
type EntryQuery struct {
	// Key: only the entries of this key, which may be in several scopes. The manager looks through all entries for them, a
	// bounded number for each page. So a page may be short or empty and still have a cursor.
	Key string
	// State: all of them when empty.
	State  EntryState
	Cursor string
	// Limit: 1 to 1000, 100 when 0.
	Limit int
}

// Entries returns one page of the ledger's entries, without their answers.
func (c *Client) Entries(ctx context.Context, q EntryQuery) (*EntryPage, error) {
	v := url.Values{}
	if q.Key != "" {
		v.Set("key", q.Key)
	}
	if q.State != "" {
		v.Set("state", string(q.State))
	}
	var page EntryPage
	call := wire.Call{Method: "GET", Path: "/v1/ledger/entries" + wire.PageQuery(v, q.Limit, q.Cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Entries == nil {
		return nil, call.NotOurs("no list of entries")
	}
	return &page, nil
}

// Entry returns the entry of a key with its answer.
func (c *Client) Entry(ctx context.Context, scope, key string) (*Entry, error) {
	return c.entry(ctx, wire.Call{Method: "GET", Path: entryPath(scope, key, "")})
}

// EntryHistory returns what the manager has lately seen of a key. It has no changes and no outcomes if the manager has
// seen nothing or forgotten it.
func (c *Client) EntryHistory(ctx context.Context, scope, key string) (*EntryHistory, error) {
	var h EntryHistory
	call := wire.Call{Method: "GET", Path: entryPath(scope, key, "/history")}
	if _, err := c.do(ctx, call, &h); err != nil {
		return nil, err
	}
	if h.Key == "" || h.Changes == nil {
		return nil, call.NotOurs("no history")
	}
	return &h, nil
}

// Resolve decides an entry that is unknown and returns the new entry. When an answer is lost and the call is repeated,
// it may say that the entry is not unknown, or not there: then the first call resolved it. Only administrators may call
// it.
func (c *Client) Resolve(ctx context.Context, scope, key string, r Resolution) (*Entry, error) {
	return c.entry(ctx, wire.Call{Method: "POST", Path: entryPath(scope, key, "/resolve"), Body: r})
}

func (c *Client) entry(ctx context.Context, call wire.Call) (*Entry, error) {
	var e Entry
	if _, err := c.do(ctx, call, &e); err != nil {
		return nil, err
	}
	if e.Key == "" || e.State == "" {
		return nil, call.NotOurs("no entry")
	}
	return &e, nil
}

func entryPath(scope, key, verb string) string {
	escaped := url.PathEscape(key)
	if key == "." || key == ".." { // a path segment cannot be one of these
		escaped = strings.ReplaceAll(key, ".", "%2E")
	}
	path := "/v1/ledger/entries/" + escaped + verb
	if scope == "" {
		return path
	}
	return path + "?" + url.Values{"scope": {scope}}.Encode()
}
