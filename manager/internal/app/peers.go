package app

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/peers"
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

func (a *app) feedFailed(err error) {
	a.log.Warn("publishing the change feed failed; retrying", "error", err.Error())
}

// clashed logs a conflict. The key is part of it: without it the line would say nothing.
func (a *app) clashed(c ledger.Clash) {
	a.auditLog.Warn("two data centres ran the same key", "scope", c.Scope, "key", c.Key, "winner", c.Winner, "loser", c.Loser, "listed", c.Kept)
}

// peersCollector exports what the feed and its readers count.
type peersCollector struct {
	ledger *ledger.Ledger
	feed   *feed.Feed
	puller *peers.Puller // nil without peers
}

func peerDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descPublished = peerDesc("oncegate_feed_published_total", "Outcomes of this data centre that were published in the change feed.")
	descImported  = peerDesc("oncegate_feed_imported_total", "Outcomes of other data centres by result: imported, repeated (known already), dropped (no room), deferred (another attempt of the key is under way at its home), invalid.", "result")
	descConflicts = peerDesc("oncegate_feed_conflicts_total", "Keys that two data centres ran, each counted once for every outcome that lost.")
	descUnkept    = peerDesc("oncegate_feed_conflicts_unkept_total", "Conflicts that are not listed, because outcomes that lost have used up their share of the window.")
	descLosers    = peerDesc("oncegate_feed_conflict_records", "Outcomes that lost a conflict and are kept beside the window.")
	descLag       = peerDesc("oncegate_peer_lag_seconds", "For how long outcomes of the peer have been missing here.", "peer")
	descBehind    = peerDesc("oncegate_peer_lag_entries", "Outcomes of the peer that are known to be missing here.", "peer")
	descFailures  = peerDesc("oncegate_peer_failures_total", "Calls to the peer that failed, and imports of its outcomes.", "peer")
	descRepaired  = peerDesc("oncegate_peer_repaired_total", "Outcomes that the feed lost and a comparison of digests found.", "peer")
	descRefused   = peerDesc("oncegate_peer_refused_total", "Outcomes of the peer that were refused, because they are malformed or their hybrid clock is too far ahead. Each try counts.", "peer")
	descCopies    = peerDesc("oncegate_peer_copies_total", "How often everything was copied, because the peer's feed did not go back far enough.", "peer")
)

// Describe implements prometheus.Collector.
func (c *peersCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPublished, descImported, descConflicts, descUnkept, descLosers, descLag, descBehind, descFailures, descRepaired, descRefused, descCopies} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *peersCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	s := c.ledger.OriginStats()
	counter(descPublished, c.feed.Published())
	counter(descImported, s.Imported, "imported")
	counter(descImported, s.Repeated, "repeated")
	counter(descImported, s.Dropped, "dropped")
	counter(descImported, s.Deferred, "deferred")
	counter(descImported, s.Invalid, "invalid")
	counter(descConflicts, s.Conflicts)
	counter(descUnkept, s.Unkept)
	ch <- prometheus.MustNewConstMetric(descLosers, prometheus.GaugeValue, float64(s.Losers))
	if c.puller == nil {
		return
	}
	for _, p := range c.puller.Status() {
		ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, p.LagSeconds, p.Name)
		ch <- prometheus.MustNewConstMetric(descBehind, prometheus.GaugeValue, float64(p.LagEntries), p.Name)
		counter(descFailures, p.Failures, p.Name)
		counter(descRepaired, p.Repaired, p.Name)
		counter(descRefused, p.Refused, p.Name)
		counter(descCopies, p.Copies, p.Name)
	}
}
