package ship_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

func TestRestoreHasWhatWasShipped(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 10, 1000} {
		_, dest := newDest(t)
		l := startLedger(t, t.TempDir(), dest, nil)
		last := l.append(n)
		l.shipped()
		mustRestore(t, dest, "", last) // while it runs
		l.append(3)
		l.stop() // which ships the rest
		mustRestore(t, dest, "", last+3)
	}
}

func TestRestoreFromDirectory(t *testing.T) {
	t.Parallel()
	dest := object.OpenDir(filepath.Join(t.TempDir(), "dest"))
	l := startLedger(t, t.TempDir(), dest, nil)
	last := l.append(100)
	l.stop()
	mustRestore(t, dest, "", last)
}

// Segments are sealed, snapshots delete them, runs are merged, the manager restarts.
func TestShipSegmentsAndSnapshots(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	var last uint64
	for round := range 4 {
		l := startLedger(t, dir, dest, nil)
		for range 150 {
			last = l.append(5)
			l.shipped()
		}
		if round%2 == 0 {
			l.snapshot()
			last = l.append(30)
		}
		if round == 2 {
			l.crash()
		} else {
			l.stop()
		}
	}
	mustRestore(t, dest, "", last)
	// 600 intervals have left a few merged runs.
	n := 0
	if err := object.All(t.Context(), dest, "ledger/", func(object.Info) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	if n > 200 {
		t.Errorf("%d objects", n)
	}
}

func TestRestoreAtATime(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	l := startLedger(t, dir, dest, nil)
	type moment struct {
		at   time.Time
		last uint64
	}
	var moments []moment
	var last uint64
	for i := range 30 {
		last = l.append(20)
		if i%3 == 0 { // other moments are between two points
			l.shipped()
		}
		moments = append(moments, moment{pause(), last})
		switch i {
		case 10, 20:
			l.snapshot()
		case 15:
			l.stop()
			l = startLedger(t, dir, dest, nil)
		}
	}
	l.stop()
	for i, m := range moments {
		dir, r, err := restore(t, dest, m.at)
		if err != nil {
			t.Fatal(err)
		}
		// Everything that was durable then is there, and perhaps what came until the next point.
		if next := moments[min(i+4, len(moments)-1)].last; r.Sequence < m.last || r.Sequence > next || r.Sequence < last && r.At.Before(m.at.Truncate(time.Millisecond)) {
			t.Errorf("at %v: restored to %d as of %v, want %d to %d", m.at, r.Sequence, r.At, m.last, next)
		}
		mustHold(t, dir, "", r.Sequence)
	}
	if _, _, err := restore(t, dest, moments[0].at.Add(-time.Hour)); !errors.Is(err, ship.ErrNothing) {
		t.Errorf("an hour before the first record: %v", err)
	}
}

func TestTwoManagersOnOnePlace(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	short := func(o *ship.Options) { o.LeaseTTL = 300 * time.Millisecond }
	first := startLedger(t, t.TempDir(), dest, nil)
	first.append(10)
	first.shipped()
	second := startLedger(t, t.TempDir(), dest, short)
	second.rounds = "second"
	second.append(20)
	eventually(t, "the second says that it has no lease", func() bool { return second.journal.has("another manager holds the shipping lease") })
	last := first.append(10)
	first.shipped()
	if second.shipper.Shipped() != 0 {
		t.Error("the second shipped")
	}
	mustRestore(t, dest, "", last)
	first.stop() // which releases the lease
	second.shipped()
	mustRestore(t, dest, "second", 20)
}

// A manager that was away for longer than its lease finds that another one has the
// destination, and stops: what it writes is not taken for the other's.
func TestStaleTermIsFenced(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	away := &objecttest.Gate{Store: dest}
	first := startLedger(t, t.TempDir(), away, func(o *ship.Options) { o.LeaseTTL = 200 * time.Millisecond })
	first.append(10)
	first.shipped()
	away.Close()
	// The second one keeps the lease, also on a machine that is too busy to renew one of 200 ms.
	second := startLedger(t, t.TempDir(), srv.Open(t, "dest"), nil)
	second.rounds = "second"
	last := second.append(25)
	second.shipped() // it got the lease when the first one had not renewed it
	first.append(40)
	away.Open()
	eventually(t, "the first is fenced", func() bool { return first.journal.has("lost the shipping lease") })
	mustRestore(t, dest, "second", last)
	second.append(5)
	second.shipped()
	mustRestore(t, dest, "second", last+5)
}

func TestBucketAwayAndBack(t *testing.T) {
	t.Parallel()
	for _, bounded := range []bool{false, true} {
		srv, dest := newDest(t)
		l := startLedger(t, t.TempDir(), dest, func(o *ship.Options) {
			if bounded {
				o.BacklogBytes = 2 * segmentBytes
			}
		})
		l.append(50)
		l.shipped()
		srv.Away.Store(true)
		for range 20 {
			l.append(100) // it does not wait for the bucket
			l.snapshot()
		}
		eventually(t, "it says so", func() bool { return l.journal.has("shipping fails") })
		if got := l.log.Stats().DiskBytes; bounded && got > 8*segmentBytes+l.log.Stats().SnapshotBytes {
			t.Errorf("the backlog has %d bytes", got)
		}
		srv.Away.Store(false)
		l.shipped()
		last := l.append(10)
		l.shipped()
		eventually(t, "it says so", func() bool { return l.journal.has("shipping works again") })
		mustRestore(t, dest, "", last)
		if l.journal.has("cannot be restored to") != bounded {
			t.Errorf("bounded %v: the log lines say otherwise about a gap", bounded)
		}
		l.stop()
	}
}

// Every kind of fault at once, with crashes.
func TestStoreWithFaults(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	srv.Default()
	dir := t.TempDir()
	var last uint64
	for range 6 {
		l := startLedger(t, dir, dest, nil)
		for range 40 {
			l.append(7)
			time.Sleep(time.Millisecond)
		}
		l.shipped()
		l.snapshot()
		last = l.append(3)
		l.shipped()
		l.crash()
		// Restoring has to live with the faults as well.
		mustRestore(t, dest, "", last)
	}
	if srv.Injected.Load() < 10 {
		t.Errorf("%d faults", srv.Injected.Load())
	}
}

// oneFault ships with a single kind of fault.
func oneFault(t *testing.T, set func(*objecttest.Server)) {
	t.Parallel()
	srv, dest := newDest(t)
	dir := t.TempDir()
	set(srv)
	var last uint64
	for range 2 {
		l := startLedger(t, dir, dest, nil)
		for range 30 {
			last = l.append(5)
			l.shipped()
		}
		l.crash()
	}
	mustRestore(t, dest, "", last)
	if srv.Injected.Load() == 0 {
		t.Error("there was no fault")
	}
}

func TestLostPutAnswer(t *testing.T) {
	oneFault(t, func(s *objecttest.Server) { s.LostPuts.Store(300) })
}
func TestWrong412IsTriedAgain(t *testing.T) {
	oneFault(t, func(s *objecttest.Server) { s.Conflicts.Store(300) })
}
func TestRefusingStoreIsTriedAgain(t *testing.T) {
	oneFault(t, func(s *objecttest.Server) { s.Refused.Store(200) })
}
func TestSlowStoreGetsEverything(t *testing.T) {
	oneFault(t, func(s *objecttest.Server) { s.Slow.Store(10) })
}
func TestStaleListingHidesNothing(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	srv.StaleLists.Store(true)
	dir := t.TempDir()
	var last uint64
	for range 5 { // each start sweeps by a listing that is older each time
		before := srv.Lists.Load()
		l := startLedger(t, dir, dest, nil)
		last = l.append(300)
		l.shipped()
		eventually(t, "a sweep lists", func() bool { return srv.Lists.Load() > before+1 }) // the start itself may list once
		l.crash()
		mustRestore(t, dest, "", last)
	}
	if srv.Injected.Load() == 0 {
		t.Error("no listing was stale")
	}
}

func TestStoreWithoutConditionsIsRefused(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"If-Match", "If-None-Match"} {
		srv, dest := newDest(t)
		srv.NoIfMatch.Store(header == "If-Match")
		srv.NoIfNoneMatch.Store(header == "If-None-Match")
		l := startLedger(t, t.TempDir(), dest, nil)
		l.append(1)
		eventually(t, header+": it says so", func() bool { return l.journal.has("ignores " + header + ":") })
		if l.shipper.Shipped() != 0 {
			t.Error(header + ": it shipped")
		}
	}
}

func TestDamagedAndMissingObjects(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	for range 70 {
		l.append(3)
		l.shipped()
	}
	l.snapshot()
	for range 20 { // runs that the manifest does not name
		l.append(5)
		l.shipped()
	}
	l.stop() // so that the head counts the last one
	var names []string
	if err := object.All(t.Context(), dest, "ledger/", func(o object.Info) error {
		names = append(names, o.Name)
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
		bad := append([]byte(nil), b...)
		bad[len(bad)*2/3] ^= 0x10
		_, err = dest.Replace(t.Context(), name, bad, v)
		if err != nil {
			t.Fatal(err)
		}
		_, _, damaged := restore(t, dest, time.Time{})
		if err := dest.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		_, _, missing := restore(t, dest, time.Time{})
		if _, err := dest.Create(t.Context(), name, b); err != nil {
			t.Fatal(err)
		}
		if damaged == nil && missing == nil {
			continue // of a time before the snapshot
		}
		used++
		var d *ship.DamageError
		if damaged != nil && (!errors.As(damaged, &d) || d.Object != name) {
			t.Errorf("%s with a flipped bit: %v", name, damaged)
		}
		if missing == nil {
			continue
		}
		if text := missing.Error(); !strings.Contains(text, "object "+name) || strings.Count(text, "missing") != 1 {
			t.Errorf("%s is missing: %v", name, missing)
		}
		if nothing := strings.HasSuffix(name, "/manifest"); errors.As(missing, &d) == nothing || errors.Is(missing, ship.ErrNothing) != nothing {
			t.Errorf("%s is missing: %#v", name, missing)
		}
	}
	if used < 2 {
		t.Errorf("%d of %d objects were used", used, len(names))
	}
	mustRestore(t, dest, "", 310)
}

// A restored directory that a manager takes into use ships to the same destination: the
// times before stay.
func TestRestoredLogShipsToTheSameDestination(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(50)
	l.shipped()
	l.stop()
	first := time.Now()
	time.Sleep(5 * time.Millisecond)
	dir, r, err := restore(t, dest, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	l = startLedger(t, dir, dest, nil)
	last := l.append(5)
	l.shipped()
	l.stop()
	mustRestore(t, dest, "", last)
	again, r2, err := restore(t, dest, first)
	if err != nil || r2.Sequence != r.Sequence {
		t.Fatalf("%+v %v", r2, err)
	}
	mustHold(t, again, "", r.Sequence)
}

// A copy of the data directory that goes its own way is not mixed up with the original.
func TestOldObjectsAreRemoved(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	var last uint64
	count := func() (n int) {
		if err := object.All(t.Context(), dest, "ledger/", func(object.Info) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 8 { // each start looks for what is too old
		l := startLedger(t, dir, dest, func(o *ship.Options) { o.Retention = time.Millisecond })
		for range 10 {
			last = l.append(50)
			l.shipped()
		}
		l.snapshot()
		l.append(1)
		l.shipped()
		time.Sleep(5 * time.Millisecond)
		l.stop()
		last++
		mustRestore(t, dest, "", last)
	}
	if n := count(); n > 60 {
		t.Errorf("%d objects are left", n)
	}
}

func TestRestoreIntoADirectoryInUse(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(1)
	l.stop()
	_, err := ship.Restore(t.Context(), ship.RestoreOptions{Store: dest, Dir: l.dir})
	var d *ship.DirError
	if !errors.As(err, &d) {
		t.Errorf("restore into a directory in use: %v", err)
	}
	volume := t.TempDir()
	if err := os.Mkdir(filepath.Join(volume, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{t.TempDir(), volume} {
		if _, err := ship.Restore(t.Context(), ship.RestoreOptions{Store: dest, Dir: dir}); err != nil {
			t.Errorf("restore into an empty directory: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(volume, "lost+found")); err != nil {
		t.Error(err)
	}
	_, empty := newDest(t)
	if _, _, err := restore(t, empty, time.Time{}); !errors.Is(err, ship.ErrNothing) {
		t.Errorf("restore from an empty destination: %v", err)
	}
}

// TestLongestWindowIsShipped: a restore knows the longest window that named logs ever had, of each point in time, and the
// destination has a longer one before the records that follow.
func TestLongestWindowIsShipped(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	log := openLog(t, dir)
	defer log.Close()
	l := &ledger{t: t, dir: dir, log: log}
	s, err := ship.New(ship.Options{Store: dest, Interval: 5 * time.Millisecond, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(log)
	l.shipper = s
	l.append(1)
	var window atomic.Int64
	s.Start(ship.Ledger{LongestWindow: func() time.Duration { return time.Duration(window.Load()) }})
	defer s.Close(t.Context())
	l.shipped()
	before := pause()
	must := func(at time.Time, want time.Duration) {
		t.Helper()
		r, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest, At: at})
		if err != nil || r.LongestWindow != want {
			t.Errorf("%+v, %v, want %v", r, err, want)
		}
	}
	must(before, 0)
	for _, d := range []time.Duration{time.Hour, time.Minute, 48 * time.Hour} {
		window.Store(int64(d))
		l.append(1)
		l.shipped()
		must(before, max(d, time.Hour))
		must(time.Time{}, max(d, time.Hour))
	}
}
