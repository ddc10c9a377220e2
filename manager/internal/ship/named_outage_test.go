package ship_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

// gapsLogged is how many gaps the shipper counted.
func gapsLogged(t *testing.T, s *ship.Shipper) float64 {
	t.Helper()
	return counterOf(t, s, "oncegate_ship_gaps_total")
}

// counterOf is what a metric of the shipper says.
func counterOf(t *testing.T, s *ship.Shipper, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(s.Metrics()); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no " + name)
	return 0
}

// TestNamedLogInALongOutage: the destination is away while a log writes and gives up many times its backlog. Its disk stays bounded,
// a gap of that log and of no other is logged, and what it keeps is restored with every id, whether the manager
// was started again meanwhile or not.
func TestNamedLogInALongOutage(t *testing.T) {
	t.Parallel()
	const backlog = 8 * segmentBytes // of both logs together
	for name, restart := range map[string]bool{"one process": false, "started again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, dest := newDest(t)
			dir := t.TempDir()
			bounded := func(o *ship.Options) { o.BacklogBytes = backlog }
			m := startManager(t, dir, dest, bounded)
			m.make("busy")
			m.make("quiet") // keeps all of its entries
			keep := int64(logs.MinRetained)
			if _, _, err := m.engine.Put(t.Context(), "busy", logs.Change{RetainLen: &keep}); err != nil {
				t.Fatal(err)
			}
			shipped := m.write("busy", 50)
			quiet := m.write("quiet", 30)
			m.allShipped(dest, "busy", "quiet")
			if n := gapsLogged(t, m.shipper); n != 0 {
				t.Fatalf("%v gaps before the outage", n)
			}

			srv.Away.Store(true)
			disk := func() (n int64) {
				t.Helper()
				segments, err := filepath.Glob(filepath.Join(dir, ship.NamedDir, "busy", "*.wal"))
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range segments {
					if st, err := os.Stat(s); err == nil { // it may go meanwhile
						n += st.Size()
					}
				}
				return n
			}
			first := func() uint64 {
				t.Helper()
				info, err := m.engine.Get(t.Context(), "busy")
				if err != nil {
					t.Fatal(err)
				}
				return info.First
			}
			for again := restart; first() <= 2*shipped+20_000; {
				m.write("busy", 500)
				quiet = m.write("quiet", 10)
				if again && first() > shipped {
					m.crash()
					m = startManager(t, dir, dest, bounded)
					again = false
				}
			}
			eventually(t, "it says that shipping fails", func() bool { return m.journal.has("shipping fails") })
			// Besides the backlog: what the log keeps, and the segments in use, prepared and still to be given up.
			eventually(t, "the disk is bounded", func() bool { return disk() <= logs.MinRetained+backlog+8*segmentBytes })
			const batch = 10 // entries in a record, see write
			if lag, st := m.shipper.Lag("logs/busy"), m.shipper.State(); lag < (first()-shipped)/batch || st.Failing == 0 {
				t.Errorf("%d records of the log count as lag, though entries up to %d were given up: %+v", lag, first(), st)
			}

			srv.Away.Store(false)
			last := m.write("busy", 20)
			m.allShipped(dest, "busy", "quiet")
			eventually(t, "it says that shipping works", func() bool { return m.journal.has("shipping works again") })
			if !m.journal.has("cannot be restored to\" log=logs/busy") {
				t.Error("the gap of the log is not logged")
			}
			if m.journal.has("log=logs/quiet from=") || m.journal.has("log=ledger from=") || gapsLogged(t, m.shipper) < 1 {
				t.Errorf("gaps of other logs are logged, or none is counted: %v", gapsLogged(t, m.shipper))
			}
			m.stop()

			restored, report, err := restoreAll(t, dest, time.Time{})
			if err != nil || len(report.Logs) != 2 {
				t.Fatalf("restored %+v, %v", report, err)
			}
			e, err := walogs.Open(t.Context(), filepath.Join(restored, ship.NamedDir), smallLogs())
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			for name, want := range map[string]uint64{"busy": last, "quiet": quiet} {
				info, err := e.Get(t.Context(), name)
				if err != nil || info.Last != want || name == "quiet" && info.First != 1 {
					t.Fatalf("%s: %+v, %v, want it up to %d", name, info, err, want)
				}
				next := info.First
				for next <= want {
					page, err := e.Read(t.Context(), name, logs.Query{After: next - 1, Limit: logs.MaxLimit})
					if err != nil || len(page.Entries) == 0 {
						t.Fatalf("%s from %d on: %v", name, next, err)
					}
					for _, got := range page.Entries {
						if got.Number != next || got.ID != entryOf(name, next).ID {
							t.Fatalf("entry %d of %s is %d, %q", next, name, got.Number, got.ID)
						}
						next++
					}
				}
				// Ids of entries from before, in and after the gap.
				for _, n := range []uint64{1, want / 2, want} {
					if o, err := e.Append(t.Context(), name, []logs.Item{entryOf(name, n)}, false); err != nil || !o[0].Duplicate || o[0].Number != n {
						t.Errorf("entry %d of %s again: %+v, %v", n, name, o, err)
					}
				}
			}
		})
	}
}
