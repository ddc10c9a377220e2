package ledger

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/metered"
)

// TestStartReadsLittle: what a start reads does not grow with the entries, published or not.
func TestStartReadsLittle(t *testing.T) {
	const entries, scopes, most = 4000, 300, 300
	for _, c := range []struct {
		name      string
		published bool
	}{{"published", true}, {"not published", false}} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			m := metered.New(clockedStoreOn(t, new(faultfs.FS), clock.Now))
			start := func() *Ledger {
				l := ledgerOn(t, m, Options{Origin: "dc1", CommittedTTL: time.Hour})
				if err := l.OpenFeed(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				return l
			}
			l := start()
			last := uint64(0)
			for i := range entries {
				f := finishReq(name("k", i), "t", "x")
				f.Scope = name("scope", i%scopes)
				if err := l.Commit(t.Context(), f); err != nil {
					t.Fatal(err)
				}
				last = l.feed.clock.last.Load()
			}
			if c.published {
				if err := l.Publish(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			m.Reads()
			clock.advance(-time.Minute)
			l = start()
			if err := l.maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := m.Reads()
			t.Logf("read %d", n)
			if n > most {
				t.Errorf("a start with %d entries read %d records and hits, want at most %d", entries, n, most)
			}
			if got := l.feed.clock.last.Load(); got < last {
				t.Errorf("the hybrid clock went back from %d to %d", last, got)
			}
			if err := l.Publish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if h := l.FeedStats().Published; h != map[bool]uint64{true: 0, false: entries}[c.published] {
				t.Errorf("%d are published after the start", h)
			}
			mustReserve(t, l, "new", "t", api.StateReserved)
		})
	}
}
