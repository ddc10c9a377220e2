package feed

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/metered"
)

// TestStartReadsLittle: what a start of a ledger and its feed reads does not grow with the entries, published or not.
func TestStartReadsLittle(t *testing.T) {
	const entries, scopes, most = 4000, 300, 300
	for _, c := range []struct {
		name      string
		published bool
	}{{"published", true}, {"not published", false}} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			disk := new(faultfs.FS)
			st, err := mem.Open(t.Context(), "data", mem.Options{Clock: clock.Now, State: disk.Pebble(), Log: wal.Options{FS: disk, SegmentBytes: 4 << 20, FillAhead: -1}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			m := metered.New(st)
			start := func() *site { return feedOn(t, m, ledger.Options{CommittedTTL: time.Hour}) }
			l := start()
			last := uint64(0)
			for i := range entries {
				f := finishReq(fmt.Sprint("k", i), "t", "x")
				f.Scope = fmt.Sprint("scope", i%scopes)
				if err := l.Commit(t.Context(), f); err != nil {
					t.Fatal(err)
				}
				last = l.Clock().Last()
			}
			if c.published {
				if err := l.Publish(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			m.Reads()
			clock.advance(-time.Minute)
			l = start()
			if _, err := l.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := m.Reads()
			t.Logf("read %d", n)
			if n > most {
				t.Errorf("a start with %d entries read %d records and hits, want at most %d", entries, n, most)
			}
			if got := l.Clock().Last(); got < last {
				t.Errorf("the hybrid clock went back from %d to %d", last, got)
			}
			if err := l.Publish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if h := l.Published(); h != map[bool]uint64{true: 0, false: entries}[c.published] {
				t.Errorf("%d are published after the start", h)
			}
			mustReserve(t, l, "new", "t")
		})
	}
}
