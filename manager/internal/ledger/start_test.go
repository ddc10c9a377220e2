package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// meter counts what transactions read: records, and hits of scans.
type meter struct {
	store.Store
	read int
}

func (m *meter) Update(ctx context.Context, fn func(store.Tx) error) error {
	return m.Store.Update(ctx, func(tx store.Tx) error { return fn(&meterTx{tx, m}) })
}

func (m *meter) View(ctx context.Context, fn func(store.Tx) error) error {
	return m.Store.View(ctx, func(tx store.Tx) error { return fn(&meterTx{tx, m}) })
}

type meterTx struct {
	store.Tx
	m *meter
}

func (tx *meterTx) Get(c store.Collection, key string) ([]byte, error) {
	tx.m.read++
	return tx.Tx.Get(c, key)
}

func (tx *meterTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	hits, err := tx.Tx.Scan(c, index, r)
	tx.m.read += 1 + len(hits)
	return hits, err
}

// Size implements store.Sizer.
func (tx *meterTx) Size(c store.Collection) (int, int64, error) { return tx.Tx.(store.Sizer).Size(c) }

// TestStartReadsLittle: what a start reads does not grow with the entries, published or not.
func TestStartReadsLittle(t *testing.T) {
	const entries, scopes, most = 4000, 300, 300
	for _, c := range []struct {
		name      string
		published bool
	}{{"published", true}, {"not published", false}} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			m := &meter{Store: clockedStoreOn(t, new(faultfs.FS), clock.Now)}
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
			m.read = 0
			clock.advance(-time.Minute)
			l = start()
			if err := l.maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Logf("read %d", m.read)
			if m.read > most {
				t.Errorf("a start with %d entries read %d records and hits, want at most %d", entries, m.read, most)
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
