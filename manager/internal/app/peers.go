package app

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// openFeed prepares the change feed of a ledger with an origin.
func (a *app) openFeed(ctx context.Context) error {
	err := a.feed.Open(ctx, a.restoredName())
	var other *feed.OriginError
	if errors.As(err, &other) {
		return settings.Usagef("--origin %q: %v", other.Want, other)
	}
	return err
}

// clashed logs a conflict. The key is part of it: without it the line would say nothing.
func (a *app) clashed(c ledger.Clash) {
	a.auditLog.Warn("two data centres ran the same key", "scope", c.Scope, "key", c.Key, "winner", c.Winner, "loser", c.Loser, "listed", c.Kept)
}

// newPeersCollector returns a collector of what the feed and its readers count; p is nil without peers.
func newPeersCollector(l *ledger.Ledger, f *feed.Feed, p *peers.Puller) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		s := l.OriginStats()
		scrape.Set(m, "oncegate_feed_published_total", f.Published())
		scrape.Set(m, "oncegate_feed_imported_total", s.Imported, "imported")
		scrape.Set(m, "oncegate_feed_imported_total", s.Repeated, "repeated")
		scrape.Set(m, "oncegate_feed_imported_total", s.Dropped, "dropped")
		scrape.Set(m, "oncegate_feed_imported_total", s.Deferred, "deferred")
		scrape.Set(m, "oncegate_feed_imported_total", s.Invalid, "invalid")
		scrape.Set(m, "oncegate_feed_conflicts_total", s.Conflicts)
		scrape.Set(m, "oncegate_feed_conflicts_unkept_total", s.Unkept)
		scrape.Set(m, "oncegate_feed_conflict_records", s.Losers)
		if p == nil {
			return nil
		}
		for _, peer := range p.Status() {
			scrape.Set(m, "oncegate_peer_lag_seconds", peer.LagSeconds, peer.Name)
			scrape.Set(m, "oncegate_peer_lag_entries", peer.LagEntries, peer.Name)
			scrape.Set(m, "oncegate_peer_failures_total", peer.Failures, peer.Name)
			scrape.Set(m, "oncegate_peer_repaired_total", peer.Repaired, peer.Name)
			scrape.Set(m, "oncegate_peer_refused_total", peer.Refused, peer.Name)
			scrape.Set(m, "oncegate_peer_copies_total", peer.Copies, peer.Name)
		}
		return nil
	},
		scrape.Describe("oncegate_feed_published_total", "Outcomes of this data centre that were published in the change feed."),
		scrape.Describe("oncegate_feed_imported_total", "Outcomes of other data centres by result: imported, repeated (known already), dropped (no room), deferred (another attempt of the key is under way at its home), invalid.", "result"),
		scrape.Describe("oncegate_feed_conflicts_total", "Keys that two data centres ran, each counted once for every outcome that lost."),
		scrape.Describe("oncegate_feed_conflicts_unkept_total", "Conflicts that are not listed, because outcomes that lost have used up their share of the window."),
		scrape.Describe("oncegate_feed_conflict_records", "Outcomes that lost a conflict and are kept beside the window."),
		scrape.Describe("oncegate_peer_lag_seconds", "For how long outcomes of the peer have been missing here.", "peer"),
		scrape.Describe("oncegate_peer_lag_entries", "Outcomes of the peer that are known to be missing here.", "peer"),
		scrape.Describe("oncegate_peer_failures_total", "Calls to the peer that failed, and imports of its outcomes.", "peer"),
		scrape.Describe("oncegate_peer_repaired_total", "Outcomes that the feed lost and a comparison of digests found.", "peer"),
		scrape.Describe("oncegate_peer_refused_total", "Outcomes of the peer that were refused, because they are malformed or their hybrid clock is too far ahead. Each try counts.", "peer"),
		scrape.Describe("oncegate_peer_copies_total", "How often everything was copied, because the peer's feed did not go back far enough.", "peer"))
}
