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
	call := wire.Page("/v1/ledger/entries", v, q.Limit, q.Cursor)
	return wire.Ask(ctx, c.client, call, "no list of entries", func(page *EntryPage) bool { return page.Entries != nil })
}

// Entry returns the entry of a key with its answer.
func (c *Client) Entry(ctx context.Context, scope, key string) (*Entry, error) {
	return c.entry(ctx, wire.Call{Method: "GET", Path: entryPath(scope, key, "")})
}

// EntryHistory returns what the manager has lately seen of a key. It has no changes and no outcomes if the manager has
// seen nothing or forgotten it.
func (c *Client) EntryHistory(ctx context.Context, scope, key string) (*EntryHistory, error) {
	call := wire.Call{Method: "GET", Path: entryPath(scope, key, "/history")}
	return wire.Ask(ctx, c.client, call, "no history", func(h *EntryHistory) bool { return h.Key != "" && h.Changes != nil })
}

// Resolve decides an entry that is unknown and returns the new entry. When an answer is lost and the call is repeated,
// it may say that the entry is not unknown, or not there: then the first call resolved it. Only administrators may call
// it.
func (c *Client) Resolve(ctx context.Context, scope, key string, r Resolution) (*Entry, error) {
	return c.entry(ctx, wire.Call{Method: "POST", Path: entryPath(scope, key, "/resolve"), Body: r})
}

func (c *Client) entry(ctx context.Context, call wire.Call) (*Entry, error) {
	return wire.Ask(ctx, c.client, call, "no entry", func(e *Entry) bool { return e.Key != "" && e.State != "" })
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
