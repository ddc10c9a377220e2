package admin

import (
	"context"
	"encoding/json"
	"math"
	"net/url"
	"time"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
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
	// Lag is for how long the manager has not had everything that the peer recorded, LagEntries how many outcomes it lacks
	// as far as it knows.
	Lag        time.Duration `json:"-"` // lag_seconds
	LagEntries int64         `json:"lag_entries"`
	// AnsweredAgo is how long ago the peer last answered the manager; nil if it has not, or another manager of the store
	// asks it.
	AnsweredAgo *time.Duration `json:"-"` // answered_seconds_ago
	// DataCentres are those that the peer said last that it knows.
	DataCentres []string `json:"data_centres,omitempty"`
	// Error is why the last call to the peer failed, "" after one that did not.
	Error string `json:"error,omitempty"`
}

type plainPeer Peer

type wirePeer struct {
	*plainPeer
	LagSeconds         float64  `json:"lag_seconds"`
	AnsweredSecondsAgo *float64 `json:"answered_seconds_ago,omitempty"`
}

// MarshalJSON encodes the peer as the API does.
func (p Peer) MarshalJSON() ([]byte, error) {
	w := wirePeer{plainPeer: (*plainPeer)(&p), LagSeconds: p.Lag.Seconds()}
	if p.AnsweredAgo != nil {
		seconds := p.AnsweredAgo.Seconds()
		w.AnsweredSecondsAgo = &seconds
	}
	return wire.Marshal(w)
}

// UnmarshalJSON decodes a peer of the API.
func (p *Peer) UnmarshalJSON(b []byte) error {
	w := wirePeer{plainPeer: (*plainPeer)(p)}
	err := json.Unmarshal(b, &w)
	p.Lag = seconds(w.LagSeconds)
	if w.AnsweredSecondsAgo != nil {
		ago := seconds(*w.AnsweredSecondsAgo)
		p.AnsweredAgo = &ago
	}
	return err
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

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

// Conflict is a key of which several data centres recorded an outcome: its work ran more than once.
type Conflict struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// Winner is the data centre whose outcome retries get everywhere.
	Winner    string        `json:"winner"`
	ExpiresIn time.Duration `json:"-"` // expires_in_ms
	// Outcomes are those of all data centres, the winner's first.
	Outcomes []ConflictOutcome `json:"outcomes"`
}

type plainConflict Conflict

type wireConflict struct {
	*plainConflict
	ExpiresInMS int64 `json:"expires_in_ms"`
}

// MarshalJSON encodes the conflict as the API does.
func (c Conflict) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireConflict{(*plainConflict)(&c), wire.MS(c.ExpiresIn)})
}

// UnmarshalJSON decodes a conflict of the API.
func (c *Conflict) UnmarshalJSON(b []byte) error {
	w := wireConflict{plainConflict: (*plainConflict)(c)}
	err := json.Unmarshal(b, &w)
	c.ExpiresIn = wire.Duration(w.ExpiresInMS)
	return err
}

// ConflictOutcome is the outcome of one data centre in a conflict.
type ConflictOutcome struct {
	Origin string `json:"origin"`
	// State: EntryCommitted or EntryRejected.
	State  EntryState `json:"state"`
	Result Answer     `json:"result"`
}

// ConflictPage is one page of conflicts; Cursor is empty on the last one.
type ConflictPage struct {
	Conflicts []Conflict `json:"conflicts"`
	Cursor    string     `json:"cursor"`
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
