package client

import "context"

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
