package ship_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// manager is a ledger's log with named logs, all shipped, as a manager has them.
type manager struct {
	*ledger
	engine *walogs.Engine
	opts   walogs.Options
}

// smallLogs are options with which logs have many segments and snapshots soon.
func smallLogs() walogs.Options {
	return walogs.Options{SegmentBytes: segmentBytes, SnapshotInterval: 10 * time.Millisecond, DutyEvery: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Log: wal.Options{FillAhead: -1}}
}

// startManager starts one on a directory; store is nil for one that does not ship.
func startManager(t *testing.T, dir string, store object.Store, change func(*ship.Options)) *manager {
	t.Helper()
	m := &manager{opts: smallLogs()}
	var s *ship.Shipper
	l := &ledger{t: t, dir: dir, log: openLog(t, dir), journal: new(journal)}
	if store != nil {
		opts := ship.Options{
			Store: store, Interval: 5 * time.Millisecond, LeaseTTL: time.Minute, HolderFile: filepath.Join(dir, "holder"),
			Logger: slog.New(slog.NewTextHandler(l.journal, nil)),
		}
		if change != nil {
			change(&opts)
		}
		var err error
		if s, err = ship.New(opts); err != nil {
			t.Fatal(err)
		}
		switch store.(type) {
		case *stopping, *refusing:
			s.TryOnce()
		case *often:
			s.PruneOften()
		}
		s.Add(ship.LedgerLog, ship.WAL(l.log), false)
		m.opts.Follower = s
	}
	m.ledger = l
	engine, err := walogs.Open(t.Context(), filepath.Join(dir, ship.NamedDir), m.opts)
	if err != nil {
		t.Fatal(err)
	}
	m.engine = engine
	if s != nil {
		s.FollowNamed()
		s.Start(ship.Ledger{})
		l.shipper = s
	}
	if l.log.Last() == 0 {
		l.append(1)
	}
	t.Cleanup(func() {
		m.crash()
		l.journal.mu.Lock()
		defer l.journal.mu.Unlock()
		if t.Failed() && l.journal.b.Len() > 0 {
			t.Logf("journal of %s:\n%s", dir, l.journal.b.String())
		}
	})
	return m
}

// crash ends shipping without releasing the lease, and then the rest.
func (m *manager) crash() {
	if m.shipper != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		m.shipper.Close(ctx)
		m.shipper = nil
	}
	if m.engine != nil {
		_ = m.engine.Close()
		m.engine = nil
	}
	m.ledger.crash()
}

// stop ends all in order.
func (m *manager) stop() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if m.shipper != nil {
		m.shipper.Close(ctx)
		m.shipper = nil
	}
	if err := m.engine.Close(); err != nil {
		m.t.Error(err)
	}
	m.engine = nil
	m.ledger.crash()
}

func (m *manager) make(name string) {
	m.t.Helper()
	if _, created, err := m.engine.Put(m.t.Context(), name, logs.Change{}); err != nil || !created {
		m.t.Fatalf("make log %s: %v, %v", name, created, err)
	}
}

func (m *manager) remove(name string) {
	m.t.Helper()
	if err := m.engine.Delete(m.t.Context(), name); err != nil {
		m.t.Fatal(err)
	}
}

// entryOf is entry n of a log.
func entryOf(name string, n uint64) logs.Item {
	return logs.Item{ID: fmt.Sprintf("%s:%d", name, n), Payload: bytes.Repeat([]byte{byte(n)}, 1+int(n%300))}
}

// write appends the next n entries to a log, a few at a time.
func (m *manager) write(name string, n int) uint64 {
	m.t.Helper()
	info, err := m.engine.Get(m.t.Context(), name)
	if err != nil {
		m.t.Fatal(err)
	}
	for last := info.Last; n > 0; {
		var items []logs.Item
		for range min(n, 10) {
			last++
			items = append(items, entryOf(name, last))
		}
		n -= len(items)
		outcomes, err := m.engine.Append(m.t.Context(), name, items, true)
		if err != nil || outcomes[len(items)-1].Number != last || outcomes[0].Duplicate {
			m.t.Fatalf("append to %s: %+v, %v", name, outcomes, err)
		}
		info.Last = last
	}
	return info.Last
}

// allShipped waits until all that is durable is shipped, and the catalog has just these logs.
func (m *manager) allShipped(store object.Store, names ...string) *ship.Status {
	m.t.Helper()
	var st *ship.Status
	eventually(m.t, "all is shipped", func() bool { st = m.isShipped(store, names...); return st != nil })
	return st
}

// isShipped returns the status when all that is durable is shipped, and the catalog has just these
// logs; nil otherwise.
func (m *manager) isShipped(store object.Store, names ...string) *ship.Status {
	for _, name := range names {
		if m.shipper.Lag("logs/"+name) > 0 {
			return nil
		}
	}
	if m.shipper.Lag(ship.LedgerLog) > 0 {
		return nil
	}
	st, err := ship.ReadStatus(m.t.Context(), store, "")
	if err != nil {
		return nil
	}
	var there []string
	for _, l := range st.Logs {
		if l.Deleted == nil {
			there = append(there, l.Name)
		}
	}
	slices.Sort(names)
	slices.Sort(there)
	if !slices.Equal(there, names) {
		return nil
	}
	return st
}

// restoreAll restores everything as of a time, zero for the newest.
func restoreAll(t *testing.T, store object.Store, at time.Time) (string, *ship.Report, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	o := ship.RestoreOptions{Store: store, Dir: dir, At: at, CheckNamed: func(name string) func(wal.Entry) error { return walogs.NewCheck(name, nil) }}
	r, err := ship.Restore(t.Context(), o)
	mustVerify(t, o, r, err)
	return dir, r, err
}

// mustHaveLogs restores, and checks that there are these logs with exactly that many entries, in order,
// each known by its id, and that they take more.
func mustHaveLogs(t *testing.T, store object.Store, at time.Time, want map[string]uint64) {
	t.Helper()
	mustHaveLogsUpTo(t, store, at, want, 0)
}

// mustHaveLogsUpTo is mustHaveLogs for a time shortly after which each log got more entries, some of which it
// may have.
func mustHaveLogsUpTo(t *testing.T, store object.Store, at time.Time, want map[string]uint64, more uint64) {
	t.Helper()
	dir, r, err := restoreAll(t, store, at)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Logs) != len(want) {
		t.Errorf("restored the logs %+v, want %v", r.Logs, want)
	}
	e, err := walogs.Open(t.Context(), filepath.Join(dir, ship.NamedDir), smallLogs())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, last := range want {
		next := uint64(1)
		for q := (logs.Query{Beginning: true, Limit: logs.MaxLimit}); ; {
			page, err := e.Read(t.Context(), name, q)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, got := range page.Entries {
				if is := entryOf(name, next); got.Number != next || got.ID != is.ID || !bytes.Equal(got.Payload, is.Payload) {
					t.Fatalf("entry %d of %s is %d, %q", next, name, got.Number, got.ID)
				}
				next++
			}
			if len(page.Entries) == 0 {
				break
			}
			q = logs.Query{After: page.Cursor, Limit: logs.MaxLimit}
		}
		if next <= last || next > last+more+1 {
			t.Errorf("log %s has %d entries, want %d and at most %d more", name, next-1, last, more)
		}
		last = next - 1
		for _, n := range []uint64{1, last/2 + 1, last} {
			if last == 0 {
				break
			}
			if o, err := e.Append(t.Context(), name, []logs.Item{entryOf(name, n)}, false); err != nil || !o[0].Duplicate || o[0].Number != n {
				t.Errorf("entry %d of %s again: %+v, %v", n, name, o, err)
			}
		}
		if o, err := e.Append(t.Context(), name, []logs.Item{entryOf(name, last+1)}, false); err != nil || o[0].Duplicate || o[0].Number != last+1 {
			t.Errorf("the next entry of %s: %+v, %v", name, o, err)
		}
	}
}

// pause makes the next time another millisecond, the unit of a point in time, and returns one between.
func pause() time.Time {
	nextMillisecond()
	at := time.Now()
	nextMillisecond()
	return at
}

func nextMillisecond() {
	for now := time.Now().UnixMilli(); time.Now().UnixMilli() <= now; {
		runtime.Gosched()
	}
}
