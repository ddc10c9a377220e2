package app

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// logUnreadable logs each record that cannot be read once, up to unread.MaxKnown records.
func (a *app) logUnreadable(ctx context.Context) {
	logged := 0
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-a.unreadable.News():
			a.log.Error("a record cannot be read; only its key or job is affected",
				"collection", string(u.Collection), "key", u.Key, "reason", u.Reason)
			if logged++; logged == unread.MaxKnown {
				a.log.Error("further unreadable records are not logged; oncegate unreadable list has all of them", "logged", logged)
			}
		}
	}
}

// newUnreadableCollector returns a collector of what a tracker counts.
func newUnreadableCollector(t *unread.Tracker) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		for collection, n := range t.Counts() {
			scrape.Set(m, "oncegate_unreadable_records", n.Known, string(collection))
			scrape.Set(m, "oncegate_unreadable_records_met_total", n.Met, string(collection))
		}
		return nil
	},
		scrape.Describe("oncegate_unreadable_records", "Records that this manager met and could not read, up to 1000.", "collection"),
		scrape.Describe("oncegate_unreadable_records_met_total", "How often this manager met a record that it could not read.", "collection"))
}
