package ship_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/walogs"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

func TestNamedLogsAreShipped(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, nil, nil) // before anything is shipped
	m.make("old")
	old := m.write("old", 2000)
	m.stop()
	m = startManager(t, dir, dest, nil)
	m.make("new")
	last := m.write("new", 1500)
	m.make("empty")
	m.allShipped(dest, "old", "new", "empty")
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"old": old, "new": last, "empty": 0})
	last = m.write("new", 10)
	m.stop() // which ships the rest
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"old": old, "new": last, "empty": 0})
	for range 3 { // restarts continue where the last one ended
		m = startManager(t, dir, dest, nil)
		old = m.write("old", 300)
		m.allShipped(dest, "old", "new", "empty")
		m.crash()
	}
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"old": old, "new": last, "empty": 0})
}

func TestNamedLogsOfATime(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, dest, nil)
	m.allShipped(dest)
	before := pause()
	m.make("a")
	first := m.write("a", 500)
	m.allShipped(dest, "a")
	there := pause()
	second := m.write("a", 500)
	m.allShipped(dest, "a")
	full := pause()
	m.remove("a")
	m.allShipped(dest)
	deleted := pause()
	m.append(1)
	m.make("a") // another log of that name
	third := m.write("a", 20)
	st := m.allShipped(dest, "a")
	if len(st.Logs) != 2 || st.Logs[0].Deleted == nil || st.Logs[0].Prefix == st.Logs[1].Prefix {
		t.Errorf("status: %+v", st.Logs)
	}
	again := pause()
	m.append(1)
	m.allShipped(dest, "a")
	m.stop()
	for _, c := range []struct {
		what string
		at   time.Time
		want map[string]uint64
		more uint64
	}{
		{"before it was made", before, nil, 0},
		{"there", there, map[string]uint64{"a": first}, second - first},
		{"full", full, map[string]uint64{"a": second}, 0},
		{"deleted", deleted, nil, 0},
		{"made again", again, map[string]uint64{"a": third}, 0},
		{"the newest", time.Time{}, map[string]uint64{"a": third}, 0},
	} {
		t.Run(c.what, func(t *testing.T) { mustHaveLogsUpTo(t, dest, c.at, c.want, c.more) })
	}
	_, r, err := restoreAll(t, dest, before)
	if err != nil || len(r.Forgotten) != 1 || r.Forgotten[0].Name != "a" || r.Forgotten[0].LongestTTL != 5*time.Minute {
		t.Errorf("what a restore forgot: %+v, %v", r, err)
	}

	// Deleted while nothing was shipped.
	m = startManager(t, dir, nil, nil)
	m.remove("a")
	m.stop()
	m = startManager(t, dir, dest, nil)
	m.allShipped(dest)
	m.stop()
	mustHaveLogs(t, dest, time.Time{}, nil)
	mustHaveLogs(t, dest, again, map[string]uint64{"a": third})
}

// A log that was deleted longer ago than can be restored is collected.
func TestDeletedLogIsCollected(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, func(o *ship.Options) { o.Retention = time.Millisecond })
	for range 3 {
		m.make("gone")
		m.write("gone", 300)
		m.allShipped(dest, "gone")
		m.remove("gone")
		srv.LostPuts.Store(200) // the rest must do with lost answers
		eventually(t, "its objects are deleted", func() bool {
			n := 0
			err := object.All(t.Context(), dest, "logs/", func(object.Info) error { n++; return nil })
			return err == nil && n == 0
		})
		srv.LostPuts.Store(0)
	}
	eventually(t, "the catalog forgets it", func() bool {
		b, _, err := dest.Get(t.Context(), "catalog")
		return err == nil && !bytes.Contains(b, []byte("gone"))
	})
}

// Retention deletes entries of the log. Its snapshots, which name the entries that are kept, continue
// meanwhile.
func TestNamedLogWithRetention(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	m := startManager(t, dir, dest, nil)
	m.make("log")
	keep := int64(logs.MinRetained)
	if _, _, err := m.engine.Put(t.Context(), "log", logs.Change{RetainLen: &keep}); err != nil {
		t.Fatal(err)
	}
	var last uint64
	for {
		last = m.write("log", 500)
		info, err := m.engine.Get(t.Context(), "log")
		if err != nil {
			t.Fatal(err)
		}
		if info.First > 1000 {
			break
		}
	}
	m.allShipped(dest, "log")
	m.stop()
	for _, again := range []bool{false, true} { // the second one is of what ships from a restored directory
		restored, _, err := restoreAll(t, dest, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		m = startManager(t, restored, dest, nil)
		var info logs.Info
		eventually(t, "what is not kept is given up again", func() bool {
			if info, err = m.engine.Get(t.Context(), "log"); err != nil {
				t.Fatal(err)
			}
			return info.First > 1
		})
		if info.Last != last {
			t.Fatalf("%+v", info)
		}
		for _, n := range []uint64{info.First, last} {
			page, err := m.engine.Read(t.Context(), "log", logs.Query{After: n - 1, Limit: 1})
			if err != nil || len(page.Entries) != 1 || page.Entries[0].ID != entryOf("log", n).ID {
				t.Fatalf("entry %d: %+v, %v", n, page, err)
			}
		}
		if !again {
			last = m.write("log", 100)
		}
		m.allShipped(dest, "log")
		m.stop()
	}
}

func TestNamedLogDamage(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, nil)
	m.make("good")
	m.write("good", 20)
	m.make("bad")
	for range 3 {
		m.write("bad", 200)
		m.allShipped(dest, "good", "bad")
	}
	m.stop()
	var names []string
	if err := object.All(t.Context(), dest, "", func(o object.Info) error {
		if strings.HasPrefix(o.Name, "logs/bad/") || o.Name == "catalog" {
			names = append(names, o.Name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, name := range names {
		b, v, err := dest.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(b)
		bad[len(bad)*2/3] ^= 0x10
		if _, err = dest.Replace(t.Context(), name, bad, v); err != nil {
			t.Fatal(err)
		}
		_, _, damaged := restoreAll(t, dest, time.Time{})
		if err := dest.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		dir, _, missing := restoreAll(t, dest, time.Time{})
		if _, err := dest.Create(t.Context(), name, b); err != nil {
			t.Fatal(err)
		}
		if damaged == nil && missing == nil {
			continue // of a time before the snapshot
		}
		used++
		for _, err := range []error{damaged, missing} {
			if err == nil || !strings.Contains(err.Error(), name) && !strings.HasSuffix(name, "/manifest") || name != "catalog" && !strings.Contains(err.Error(), `log "bad"`) {
				t.Errorf("%s damaged or missing: %v", name, err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, ship.PartialDir)); err != nil {
			t.Errorf("a manager would take what was restored without %s: %v", name, err)
		}
	}
	if used < 4 {
		t.Errorf("%d of %d objects are used", used, len(names))
	}
	if _, _, err := restoreAll(t, dest, time.Time{}); err != nil {
		t.Error(err)
	}
}

// A manager that was away finds another one that took its lease. Its logs are then those of the past, and
// nothing that it writes is taken for the other's.
func TestNamedLogsOfAStaleTerm(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	away := &objecttest.Gate{Store: dest}
	first := startManager(t, t.TempDir(), away, func(o *ship.Options) { o.LeaseTTL = 200 * time.Millisecond })
	first.make("log")
	first.write("log", 100)
	first.allShipped(dest, "log")
	away.Close()
	second := startManager(t, t.TempDir(), srv.Open(t, "dest"), nil)
	second.make("log")
	last := second.write("log", 30)
	second.make("other")
	eventually(t, "the second ships", func() bool { return second.shipper.Shipped(ship.LedgerLog) > 0 })
	second.allShipped(dest, "log", "other")
	first.write("log", 50)
	first.make("late")
	away.Open()
	eventually(t, "the first is fenced", func() bool { return first.journal.has("lost the shipping lease") })
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"log": last, "other": 0})
	last = second.write("log", 5)
	second.allShipped(dest, "log", "other")
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"log": last, "other": 0})
}

// Every kind of fault at once, while logs are made, written, deleted and made again, with crashes.
func TestNamedLogsWithFaults(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	srv.Default()
	dir := t.TempDir()
	for round := range 4 {
		m := startManager(t, dir, dest, nil)
		name := fmt.Sprintf("log-%d", round)
		if round == 0 {
			m.make("always")
		}
		m.make(name)
		want := map[string]uint64{"always": m.write("always", 300), name: m.write(name, 100)}
		m.allShipped(dest, "always", name)
		mustHaveLogs(t, dest, time.Time{}, want)
		m.remove(name)
		m.make(name)
		want[name] = m.write(name, 7)
		m.allShipped(dest, "always", name)
		m.crash()
		mustHaveLogs(t, dest, time.Time{}, want)
		m = startManager(t, dir, dest, nil)
		m.remove(name)
		m.allShipped(dest, "always")
		m.crash()
		mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"always": want["always"]})
	}
	if srv.Injected.Load() < 10 {
		t.Errorf("%d faults", srv.Injected.Load())
	}
}

// stopping is a store that is gone for good after a number of requests that change something, the last of
// which may happen without an answer.
type stopping struct {
	object.Store
	left   int
	happen bool
	mu     chan struct{}
}

var errStopped = errors.New("the process is gone")

func (s *stopping) step(do func() error) error {
	s.mu <- struct{}{}
	defer func() { <-s.mu }()
	if s.left--; s.left > 0 {
		return do()
	}
	if s.left == 0 && s.happen {
		_ = do()
	}
	return errStopped
}

func (s *stopping) Create(ctx context.Context, name string, b []byte) (v object.Version, err error) {
	return v, s.step(func() error { v, err = s.Store.Create(ctx, name, b); return err })
}

func (s *stopping) Replace(ctx context.Context, name string, b []byte, old object.Version) (v object.Version, err error) {
	return v, s.step(func() error { v, err = s.Store.Replace(ctx, name, b, old); return err })
}

func (s *stopping) Delete(ctx context.Context, name string) error {
	return s.step(func() error { return s.Store.Delete(ctx, name) })
}

// TestShippedSnapshotCrash ends the process between each two writes to the store, with the last one
// done or not, while a log's records, snapshot, manifest and catalog are shipped. Whatever was shipped must be a
// state that restores, with as many entries as were there before at least.
func TestShippedSnapshotCrash(t *testing.T) {
	t.Parallel()
	t.Run("it continues", func(t *testing.T) { t.Parallel(); cutOff(t, false) })
	// What is shipped first of another history is a snapshot, and the records that it keeps follow.
	t.Run("it begins again", func(t *testing.T) { t.Parallel(); cutOff(t, true) })
}

func cutOff(t *testing.T, fork bool) {
	top := t.TempDir()
	was, shipped := filepath.Join(top, "was"), filepath.Join(top, "shipped")
	m := startManager(t, was, object.OpenDir(shipped), nil)
	m.make("log")
	first := m.write("log", 300)
	m.allShipped(object.OpenDir(shipped), "log")
	snapshotted := func() bool {
		names, err := filepath.Glob(filepath.Join(was, ship.NamedDir, "log", "*.snap"))
		return err == nil && len(names) > 0
	}
	eventually(t, "a snapshot is taken", snapshotted)
	m.stop()
	if fork {
		ahead := filepath.Join(top, "ahead")
		copyDir(t, was, ahead)
		m = startManager(t, ahead, object.OpenDir(shipped), nil)
		m.write("log", 20)
		m.allShipped(object.OpenDir(shipped), "log")
		m.stop()
	}
	for left := 1; ; left++ {
		ended := false // in one of the two: how many writes there are depends on when records become durable
		for _, happen := range []bool{false, true} {
			done := false
			dir, dest := filepath.Join(top, fmt.Sprint(left, happen)), filepath.Join(top, fmt.Sprint("dest", left, happen))
			copyDir(t, was, dir)
			copyDir(t, shipped, dest)
			base := object.OpenDir(dest)
			cut := &stopping{Store: base, left: left, happen: happen, mu: make(chan struct{}, 1)}
			m := startManager(t, dir, cut, nil)
			m.make("more")
			m.write("more", 10)
			m.remove("more")
			last := m.write("log", 10)
			most := last
			if fork {
				most = first + 20
			}
			eventually(t, "the process ends, or has shipped all", func() bool {
				if m.journal.has(errStopped.Error()) {
					return true
				}
				done = m.isShipped(base, "log") != nil
				return done
			})
			m.crash()
			restored, r, err := restoreAll(t, base, time.Time{})
			if err != nil {
				t.Fatalf("cut off at write %d (it happens: %v): %v", left, happen, err)
			}
			e, err := walogs.Open(t.Context(), filepath.Join(restored, ship.NamedDir), smallLogs())
			if err != nil {
				t.Fatal(err)
			}
			info, err := e.Get(t.Context(), "log")
			if err != nil || info.Last < first || info.Last > most || done && info.Last != last {
				t.Errorf("cut off at write %d (it happens: %v): %+v, %v; %+v", left, happen, info, err, r.Logs)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			// And a start continues from there.
			m = startManager(t, dir, base, nil)
			m.allShipped(base, "log")
			m.crash()
			mustHaveLogs(t, base, time.Time{}, map[string]uint64{"log": last})
			ended = ended || !done
		}
		if !ended {
			return
		}
	}
}
