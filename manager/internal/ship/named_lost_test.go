package ship_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

// refusing is a store that refuses to write objects for as long as refuse says so.
type refusing struct {
	object.Store
	refuse func(name string) bool
}

var errRefused = errors.New("the store refuses that object")

func (s *refusing) Create(ctx context.Context, name string, b []byte) (object.Version, error) {
	if s.refuse(name) {
		return "", errRefused
	}
	return s.Store.Create(ctx, name, b)
}

func (s *refusing) Replace(ctx context.Context, name string, b []byte, old object.Version) (object.Version, error) {
	if s.refuse(name) {
		return "", errRefused
	}
	return s.Store.Replace(ctx, name, b, old)
}

// slow is a store whose writes below logs/ take until open is closed.
type slow struct {
	object.Store
	waits atomic.Bool // there is such a write
	open  chan struct{}
}

func (s *slow) Create(ctx context.Context, name string, b []byte) (object.Version, error) {
	if strings.HasPrefix(name, "logs/") {
		s.waits.Store(true)
		select {
		case <-s.open:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return s.Store.Create(ctx, name, b)
}

// The ledger is still shipped while an object of a named log takes forever.
func TestLedgerDoesNotWaitForNamedLogs(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	s := &slow{Store: dest, open: make(chan struct{})}
	m := startManager(t, t.TempDir(), s, nil)
	m.make("large")
	m.write("large", 50)
	eventually(t, "an object of the log is written", s.waits.Load)
	for range 10 {
		m.append(5)
		m.shipped()
	}
	if m.shipper.Lag("logs/large") == 0 {
		t.Error("the named log was shipped")
	}
	last := m.log.Durable()
	close(s.open)
	m.allShipped(dest, "large")
	m.stop()
	dir, _, err := restoreAll(t, dest, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, dir, "", last)
}

// The last round before a stop ships a log that was just made, and the catalog says so.
func TestStopShipsANewLog(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, nil, nil)
	m.stop()
	m = startManager(t, dir, dest, func(o *ship.Options) { o.Interval = time.Hour })
	eventually(t, "the first round ships", func() bool { return m.shipper.Lag(ship.LedgerLog) == 0 })
	m.make("new")
	last := m.write("new", 20)
	m.stop()
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"new": last})
}

// A log that cannot be shipped does not make the others wait for the next interval.
func TestFailingLogHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, nil, nil)
	m.make("bad")
	m.make("big")
	last := m.write("big", 2000) // more runs than one round ships
	m.stop()
	broken := &refusing{dest, func(name string) bool { return strings.HasPrefix(name, "logs/bad/") }}
	m = startManager(t, dir, broken, func(o *ship.Options) { o.Interval = time.Hour })
	eventually(t, "the other log is shipped", func() bool { return m.isShipped(dest, "big") != nil })
	m.crash()
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"big": last})
}

// A log whose records were given up before they were shipped continues with a snapshot. It can be restored only
// once the records that the snapshot keeps are shipped as well.
func TestBridgedLogIsNotedOnceComplete(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	var m *manager
	var released atomic.Bool // the log no longer has the first record to ship
	var open atomic.Bool
	var refused atomic.Int64 // since the snapshot was shipped
	bridged := func() bool { return m.journal.has("records were not shipped before a snapshot replaced them") }
	store := &refusing{dest, func(name string) bool {
		if !strings.HasPrefix(name, "logs/") || !strings.Contains(name, "/t") || open.Load() {
			return false
		}
		if !bridged() {
			return !released.Load()
		}
		refused.Add(1)
		return true
	}}
	ready := make(chan struct{})
	m = startManager(t, dir, &refusing{store, func(string) bool { <-ready; return false }}, func(o *ship.Options) { o.BacklogBytes = 1 })
	close(ready)
	keep := int64(logs.MinRetained)
	if _, _, err := m.engine.Put(t.Context(), "log", logs.Change{RetainLen: &keep}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "shipping the log fails", func() bool { return m.journal.has(errRefused.Error()) })
	segments, err := filepath.Glob(filepath.Join(dir, ship.NamedDir, "log", "*.wal"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	eventually(t, "the log gives up its first records", func() bool {
		var items []logs.Item
		for range 3 {
			items = append(items, logs.Item{Payload: make([]byte, 2<<10)})
		}
		if _, err := m.engine.Append(t.Context(), "log", items, false); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(segments[0])
		return errors.Is(err, os.ErrNotExist)
	})
	released.Store(true)
	eventually(t, "some rounds follow the snapshot", func() bool { return refused.Load() > 3 })
	if _, r, err := restoreAll(t, dest, time.Time{}); err != nil || len(r.Logs) != 0 || len(r.Forgotten) != 1 {
		t.Errorf("restored %+v, %v; want a log that was forgotten", r, err)
	}
	open.Store(true)
	m.allShipped(dest, "log")
	if _, r, err := restoreAll(t, dest, time.Time{}); err != nil || len(r.Logs) != 1 {
		t.Errorf("restored %+v, %v; want the log", r, err)
	}
}

// A log was deleted and made again with a longer TTL: a restore to a time of the first one refuses ids for the longer TTL.
func TestLaterLogOfANameLengthensTheQuarantine(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, nil)
	m.make("a")
	first := m.write("a", 20)
	m.allShipped(dest, "a")
	at := pause()
	m.append(1)
	m.allShipped(dest, "a")
	m.remove("a")
	window := 48 * time.Hour
	if _, _, err := m.engine.Put(t.Context(), "a", logs.Change{Window: &window}); err != nil {
		t.Fatal(err)
	}
	m.write("a", 5)
	m.stop()
	mustHaveLogs(t, dest, at, map[string]uint64{"a": first})
	if _, r, err := restoreAll(t, dest, at); err != nil || len(r.Logs) != 1 || len(r.Forgotten) != 0 || r.Logs[0].LongestTTL != window {
		t.Errorf("restored %+v, %v; want a quarantine of %v", r, err, window)
	}
	if _, r, err := restoreAll(t, dest, time.Time{}); err != nil || len(r.Logs) != 1 || len(r.Forgotten) != 0 || r.Logs[0].LongestTTL != window {
		t.Errorf("restored %+v, %v; want the second log", r, err)
	}
}

// A catalog that the destination lost, and a log that the data directory lost, are logged.
func TestLossesAreTold(t *testing.T) {
	t.Parallel()
	const noCatalog, noLog = "the catalog of named logs was lost", "gone from the data directory"
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, dest, nil)
	m.make("kept")
	m.make("lost")
	last := m.write("kept", 20)
	m.allShipped(dest, "kept", "lost")
	m.stop()
	if m.journal.has(noCatalog) || m.journal.has(noLog) {
		t.Error("nothing was lost yet")
	}
	if err := os.RemoveAll(filepath.Join(dir, ship.NamedDir, "lost")); err != nil {
		t.Fatal(err)
	}
	m = startManager(t, dir, dest, nil)
	m.allShipped(dest, "kept")
	m.stop()
	if !m.journal.has(noLog) || !m.journal.has("log=lost") || m.journal.has(noCatalog) {
		t.Error("the lost log is not logged")
	}
	if err := dest.Delete(t.Context(), "catalog"); err != nil {
		t.Fatal(err)
	}
	m = startManager(t, dir, dest, nil)
	m.allShipped(dest, "kept")
	m.stop()
	if !m.journal.has(noCatalog) {
		t.Error("the lost catalog is not logged")
	}
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"kept": last})
}
