package settings

import (
	"fmt"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/peers"
)

// peersTable are the settings of several data centres.
func (s *Settings) peersTable() []setting {
	return []setting{
		{name: "origin", env: "ONCEGATE_ORIGIN", usage: "name of this data centre among several; outcomes are then offered to the others. It is kept with the data, which cannot have another origin then. None: there is one data centre", parse: func(v string) error {
			s.Peers.Origin = v
			return peers.CheckName(v)
		}},
		{name: "peer", repeated: true, usage: "another data centre, NAME=URL of its API listener, whose outcomes are pulled; may be repeated; needs --origin", parse: func(v string) error {
			p, err := peers.ParsePeer(v)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(s.Peers.Peers, func(o peers.Peer) bool { return o.Name == p.Name }) {
				return fmt.Errorf("%q is there twice; must be each name once", p.Name)
			}
			if len(s.Peers.Peers) == peers.MaxPeers {
				return fmt.Errorf("must be at most %d peers", peers.MaxPeers)
			}
			s.Peers.Peers = append(s.Peers.Peers, p)
			return nil
		}},
		protection("peer-token-file", "file with the bearer token for the peers: a line TOKEN for all, or lines NAME TOKEN; their --auth-token-file has it with the word peer", &s.Peers.TokenFile),
		protection("peer-ca", "CAs that sign the peers' certificates (PEM), instead of the system's", &s.Peers.CA),
		protection("peer-cert", "client certificate for the peers (PEM)", &s.Peers.Cert),
		protection("peer-key", "key of that certificate (PEM)", &s.Peers.Key),
		number("changes-kept", "", "changes that a peer may be behind; one that is further behind copies all of them", 100, 100_000_000, "100000", &s.Feed.Kept),
		duration("compare-interval-seconds", "", "a number of seconds between two comparisons of what a peer recorded with what is here of it", 0.1, 86400, "30", &s.CompareEvery),
	}
}

// checkPeers looks at what one of these settings alone cannot tell.
func (s *Settings) checkPeers() error {
	c := &s.Peers
	files := []struct{ flag, value string }{{"peer-token-file", c.TokenFile}, {"peer-ca", c.CA}, {"peer-cert", c.Cert}, {"peer-key", c.Key}}
	if len(c.Peers) > 0 && c.Origin == "" {
		return Usagef("--peer %s=%s: needs --origin, the name of this data centre", c.Peers[0].Name, c.Peers[0].URL)
	}
	for _, f := range files {
		if f.value != "" && len(c.Peers) == 0 {
			return Usagef("--%s %q: needs --peer", f.flag, f.value)
		}
	}
	for _, p := range c.Peers {
		if p.Name == c.Origin {
			return Usagef("--peer %s=%s: must be another data centre than --origin", p.Name, p.URL)
		}
	}
	s.Ledger.Origin = c.Origin
	return nil
}
