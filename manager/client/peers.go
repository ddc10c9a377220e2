package client

import (
	"context"
	"net/url"
)

// Peers is what a manager knows of the other data centres.
type Peers struct {
	// Origin is the name of the manager's own data centre, "" if it has none.
	Origin string `json:"origin"`
	// DataCentres are all that the manager knows, its own included. The home of a global key follows from them.
	DataCentres []string `json:"data_centres,omitempty"`
	// Refuses is why this data centre is the home of no new global keys now, "" if it is.
	Refuses string `json:"refuses,omitempty"`
	Peers   []Peer `json:"peers"`
}

// Peer is how far a data centre is behind another one.
type Peer struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	// LagSeconds is for how long the manager has not had everything that the peer recorded, LagEntries how many outcomes
	// it lacks as far as it knows.
	LagSeconds float64 `json:"lag_seconds"`
	LagEntries int64   `json:"lag_entries"`
	// AnsweredSecondsAgo is how long ago the peer last answered the manager; nil if it has not, or another manager of the
	// store asks it.
	AnsweredSecondsAgo *float64 `json:"answered_seconds_ago,omitempty"`
	// DataCentres are those that the peer said last that it knows.
	DataCentres []string `json:"data_centres,omitempty"`
	// Error is why the last call to the peer failed, "" after one that did not.
	Error string `json:"error,omitempty"`
}

// Peers returns how far the manager's data centre is behind the others.
func (c *Client) Peers(ctx context.Context) (*Peers, error) {
	var p Peers
	call := call{method: "GET", path: "/v1/peers"}
	if _, err := c.do(ctx, call, &p); err != nil {
		return nil, err
	}
	if p.Peers == nil {
		return nil, call.notOurs("no peers")
	}
	return &p, nil
}

// Conflict is a key of which several data centres recorded an outcome: its work ran more than once.
type Conflict struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// Winner is the data centre whose outcome retries get everywhere.
	Winner      string `json:"winner"`
	ExpiresInMS int64  `json:"expires_in_ms"`
	// Outcomes are those of all data centres, the winner's first.
	Outcomes []ConflictOutcome `json:"outcomes"`
}

// ConflictOutcome is the outcome of one data centre in a conflict.
type ConflictOutcome struct {
	Origin string `json:"origin"`
	// State: committed or rejected.
	State  string `json:"state"`
	Result Answer `json:"result"`
}

// ConflictPage is one page of conflicts; Cursor is empty on the last one.
type ConflictPage struct {
	Conflicts []Conflict `json:"conflicts"`
	Cursor    string     `json:"cursor"`
}

// Conflicts returns one page of the conflicts that a manager knows. limit is 1 to 1000, 100 when 0.
func (c *Client) Conflicts(ctx context.Context, limit int, cursor string) (*ConflictPage, error) {
	return c.conflicts(ctx, pageQuery(url.Values{}, limit, cursor))
}

// ConflictOf returns the conflict about a key, nil if there is none.
func (c *Client) ConflictOf(ctx context.Context, scope, key string) (*Conflict, error) {
	page, err := c.conflicts(ctx, pageQuery(url.Values{"key": {key}, "scope": {scope}}, 0, ""))
	if err != nil || len(page.Conflicts) == 0 {
		return nil, err
	}
	return &page.Conflicts[0], nil
}

func (c *Client) conflicts(ctx context.Context, query string) (*ConflictPage, error) {
	var page ConflictPage
	call := call{method: "GET", path: "/v1/ledger/conflicts" + query}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Conflicts == nil {
		return nil, call.notOurs("no list of conflicts")
	}
	return &page, nil
}
