package ship_test

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// isPart reports whether an object is a part of a snapshot.
func isPart(name string) bool { return strings.HasPrefix(path.Base(name), "s") }

// partless is a store that takes no part of a snapshot until open.
func partless(store object.Store) (s *refusing, open *atomic.Bool) {
	open = new(atomic.Bool)
	return &refusing{store, func(name string) bool { return isPart(name) && !open.Load() }}, open
}

// engine is a log whose snapshots have records of 1 MiB each; none: those of the log.
type engine struct {
	ship.Log
	records        int
	size           atomic.Int64 // of the next snapshot in records, instead of records
	damaged        atomic.Bool  // the last record cannot be read
	opened, closed atomic.Int64
}

func (e *engine) OpenSnapshot(ctx context.Context) (ship.Snapshot, error) {
	s, err := e.Log.OpenSnapshot(ctx)
	if s == nil || err != nil {
		return nil, err
	}
	e.opened.Add(1)
	records := e.records
	if n := int(e.size.Load()); n > 0 {
		records = n
	}
	return &engineSnapshot{Snapshot: s, engine: e, records: records, buf: make([]byte, 1<<20)}, nil
}

type engineSnapshot struct {
	ship.Snapshot
	engine  *engine
	records int
	buf     []byte
	n       int
}

var errDamaged = errors.New("the state cannot be read")

func (s *engineSnapshot) Next() ([]byte, bool, error) {
	if s.records == 0 {
		return s.Snapshot.Next()
	}
	if s.n++; s.n == s.records && s.engine.damaged.Load() {
		return nil, false, errDamaged
	}
	return s.buf, s.n <= s.records, nil
}

func (s *engineSnapshot) Close() {
	s.Snapshot.Close()
	s.engine.closed.Add(1)
}

func (e *engine) use(l ship.Log) ship.Log {
	e.Log = l
	return e
}

// isOpen reports whether a snapshot is open.
func (e *engine) isOpen() bool { return e.opened.Load() > e.closed.Load() }

// partsOf are the names of the parts in a destination.
func partsOf(t *testing.T, store object.Store) (names []string) {
	t.Helper()
	if err := object.All(t.Context(), store, "ledger/", func(o object.Info) error {
		if isPart(o.Name) {
			names = append(names, o.Name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// withoutStart makes a log in dir that begins after its first record.
func withoutStart(t *testing.T, dir string) {
	t.Helper()
	l := startLedger(t, dir, nil, nil)
	for l.log.First() == 1 {
		l.append(100)
		l.snapshot()
	}
	l.crash()
}

// TestTailDoesNotWaitForASnapshot: the first snapshot of a destination takes long. Meanwhile the tail is shipped, so the log keeps no
// more than without a snapshot. All of it counts as not shipped until the snapshot is complete, also after a crash.
func TestTailDoesNotWaitForASnapshot(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	store, open := partless(dest)
	dir := t.TempDir()
	withoutStart(t, dir)
	for range 2 { // the second one continues after a crash
		e := new(engine)
		l := startEngine(t, dir, store, nil, e.use)
		for range 10 {
			last := l.append(100)
			eventually(t, "the tail is written", func() bool { return l.shipper.Keep() == last+1 })
			l.snapshot()
		}
		if n := len(l.log.Segments()); n > 2 {
			t.Errorf("the log has %d segments", n)
		}
		if n := l.shipper.Shipped(); n > 0 {
			t.Errorf("%d records count as shipped", n)
		}
		eventually(t, "records have waited", func() bool { return l.shipper.State().Age > 0 })
		if _, _, err := restore(t, dest, time.Time{}); !errors.Is(err, ship.ErrNothing) {
			t.Errorf("without a snapshot: %v", err)
		}
		if n := e.opened.Load(); n != 1 {
			t.Errorf("%d snapshots were opened", n)
		}
		l.crash()
		if e.isOpen() {
			t.Error("the snapshot is open after the end")
		}
	}
	l := startLedger(t, dir, store, nil)
	open.Store(true)
	last := l.append(10)
	l.shipped()
	if l.journal.has("cannot be restored to") {
		t.Error("there is a gap")
	}
	mustRestore(t, dest, "", last)
}

// A gap that a crash left without its snapshot is bridged by the next start, though few records followed the last snapshot.
func TestGapIsBridgedAfterACrash(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	away := &objecttest.Gate{Store: dest}
	store, open := partless(away)
	open.Store(true)
	dir := t.TempDir()
	e := &engine{records: 2}
	none := func(o *ship.Options) { o.BacklogBytes = -1 }
	l := startEngine(t, dir, store, none, e.use)
	l.append(100)
	l.snapshot()
	eventually(t, "a snapshot is shipped", func() bool { return len(partsOf(t, dest)) == 1 })
	l.shipped()

	away.Close()
	open.Store(false)
	begin := l.log.Durable()
	for l.log.First() <= begin+2000 { // a run may be in memory
		l.append(100)
		l.snapshot()
	}
	away.Open()
	eventually(t, "it goes on after the gap", func() bool { return l.journal.has("cannot be restored to") })
	begin = l.shipper.Shipped()
	after := l.append(1)
	eventually(t, "the tail is written", func() bool { return l.shipper.Keep() == after+1 })
	l.crash()
	l = startEngine(t, dir, store, none, e.use)
	last := l.append(1)
	eventually(t, "the tail is written", func() bool { return l.shipper.Keep() == last+1 })
	if r, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest}); err != nil || r.Sequence != begin {
		t.Errorf("before the snapshot: %+v, %v", r, err)
	}
	open.Store(true)
	l.shipped()
	if r, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest}); err != nil || r.Sequence != last {
		t.Errorf("with the snapshot: %+v, %v", r, err)
	}
	if st, err := ship.ReadStatus(t.Context(), dest); err != nil || st.Histories != 1 {
		t.Errorf("the history did not continue: %+v, %v", st, err)
	}
}

// failing is a store that fails to write each part of a snapshot twice, and counts those that it wrote.
type failing struct {
	object.Store
	mu      sync.Mutex
	tries   map[string]int
	written int
}

func (f *failing) Create(ctx context.Context, name string, b []byte) (object.Version, error) {
	if !isPart(name) {
		return f.Store.Create(ctx, name, b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tries[name]++; f.tries[name] <= 2 {
		return "", errRefused
	}
	f.written++
	return f.Store.Create(ctx, name, b)
}

// A part that fails does not make the parts before it worthless.
func TestFailedPartIsWrittenAgain(t *testing.T) {
	t.Parallel()
	f := &failing{Store: &memory{objects: make(map[string]stored)}, tries: make(map[string]int)}
	store := &refusing{f, func(string) bool { return false }}
	e := &engine{records: 20}
	dir := t.TempDir()
	withoutStart(t, dir)
	l := startEngine(t, dir, store, nil, e.use)
	l.shipped()
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := e.opened.Load(); n != 1 || f.written != 3 || len(f.tries) != 3 {
		t.Errorf("%d snapshots were opened, %d parts of %d names were written", n, f.written, len(f.tries))
	}
	if r, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: f.Store}); err != nil || r.Bytes < 20<<20 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestEndedUpload: whatever ends an upload closes the snapshot, and what it wrote is deleted.
func TestEndedUpload(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, l *ledger, dest object.Store, lease *atomic.Bool){
		"a stop": func(t *testing.T, l *ledger, dest object.Store, _ *atomic.Bool) {
			l.stop()
			if st, err := ship.ReadStatus(t.Context(), dest); err != nil || !st.Lease.Released {
				t.Errorf("the lease is not released: %+v, %v", st, err)
			}
		},
		"a lost lease": func(t *testing.T, l *ledger, dest object.Store, lease *atomic.Bool) {
			lease.Store(true)
			other := startLedger(t, t.TempDir(), dest, nil)
			other.append(1)
			other.shipped()
			lease.Store(false)
			eventually(t, "the lease is lost", func() bool { return l.journal.has("lost the shipping lease") })
			other.stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dest := newDest(t)
			lease, all := new(atomic.Bool), new(atomic.Bool)
			store := &refusing{dest, func(name string) bool {
				return isPart(name) && !all.Load() && strings.HasSuffix(name, "1") || name == "lease" && lease.Load()
			}}
			e := &engine{records: 20}
			dir := t.TempDir()
			l := startEngine(t, dir, store, func(o *ship.Options) { o.LeaseTTL = 200 * time.Millisecond }, e.use)
			l.append(100)
			l.shipped()
			l.snapshot()
			eventually(t, "a part is shipped", func() bool { return len(partsOf(t, dest)) == 1 })
			old := partsOf(t, dest)[0]
			if !e.isOpen() {
				t.Error("the snapshot is not open")
			}
			end(t, l, dest, lease)
			eventually(t, "the snapshot is closed", func() bool { return !e.isOpen() })
			all.Store(true)
			if l.shipper == nil {
				l = startEngine(t, dir, store, nil, e.use)
			}
			eventually(t, "the snapshot is shipped, and no other", func() bool {
				parts := partsOf(t, dest)
				return len(parts) == 3 && parts[0] != old
			})
			l.append(1)
			l.shipped()
			if r, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest}); err != nil || r.Sequence != 101 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// A stop does not wait for a snapshot that is not needed to restore what was shipped.
func TestStopDoesNotWaitForASnapshot(t *testing.T) {
	t.Parallel()
	dest := forgetful{&memory{objects: make(map[string]stored)}}
	e := &engine{records: 1 << 30}
	l := startEngine(t, t.TempDir(), dest, nil, e.use)
	l.append(100)
	l.shipped()
	l.snapshot()
	eventually(t, "the snapshot is open", e.isOpen)
	last := l.append(100)
	l.stop()
	if st, err := ship.ReadStatus(t.Context(), dest); err != nil || !st.Lease.Released || st.Sequence != last || e.isOpen() {
		t.Errorf("%+v, %v", st, err)
	}
}

// A snapshot is not open for as long as the store is away.
func TestUploadHasPatience(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	store, open := partless(dest)
	e := new(engine)
	l := startEngine(t, t.TempDir(), store, (*ship.Options).Impatient, e.use)
	l.append(100)
	l.snapshot()
	eventually(t, "it is closed and opened again", func() bool { return e.opened.Load() > 2 })
	if n := e.opened.Load() - e.closed.Load(); n > 1 {
		t.Errorf("%d snapshots are open", n)
	}
	open.Store(true)
	eventually(t, "it is shipped", func() bool { return len(partsOf(t, dest)) == 1 && !e.isOpen() })
}

// A snapshot that cannot be read is not shipped again and again, and the tail continues.
func TestUnreadableSnapshot(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	e := &engine{records: 12}
	e.damaged.Store(true)
	l := startEngine(t, t.TempDir(), dest, nil, e.use)
	l.append(100)
	l.shipped()
	l.snapshot()
	eventually(t, "it says so", func() bool { return l.journal.has(errDamaged.Error()) })
	var last uint64
	for range 20 {
		last = l.append(5)
		l.shipped()
	}
	if n := e.opened.Load(); n != 1 || e.isOpen() {
		t.Errorf("%d snapshots were opened, %d closed", n, e.closed.Load())
	}
	mustRestore(t, dest, "", last)
}

// interfering is a store that calls do before each read of a part.
type interfering struct {
	object.Store
	do func()
}

func (s *interfering) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	if isPart(name) {
		s.do()
	}
	return s.Store.Get(ctx, name)
}

// A restore from a manager that ships outlasts that runs are merged while it reads the snapshot.
func TestRestoreWhileRunsAreMerged(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(20)
	l.shipped()
	l.snapshot()
	eventually(t, "a snapshot is shipped", func() bool { return len(partsOf(t, dest)) == 1 })
	for range 5 {
		l.append(5)
		l.shipped()
	}
	last := l.log.Durable()
	merges := 0
	store := &interfering{dest, func() {
		merges++
		for before := l.log.Durable(); l.log.Durable() < before+80; {
			l.append(1)
			l.shipped()
		}
	}}
	dir, r, err := restore(t, store, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if merges != 1 || r.Sequence < last {
		t.Errorf("restored to %d, want %d, with %d reads of the snapshot", r.Sequence, last, merges)
	}
	mustHold(t, dir, "", r.Sequence)
}

// TestLargeSnapshotTakesLittleMemory ships and reads a state that is much larger than the memory that this takes. It must not run
// in parallel with other tests.
func TestLargeSnapshotTakesLittleMemory(t *testing.T) {
	const records = 300 // of 1 MiB
	const most = 100 << 20
	dir, dest := t.TempDir(), object.OpenDir(filepath.Join(t.TempDir(), "dest"))
	withoutStart(t, dir)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l := startEngine(t, dir, dest, nil, (&engine{records: records}).use)
	l.shipped()
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > most {
		t.Errorf("%d MiB of memory were made to ship %d", made>>20, records)
	}
	l.stop()
	n := 0
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest, Check: func(wal.Entry) error {
		if n++; n%60 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&after)
			if after.HeapAlloc > before.HeapAlloc+most {
				t.Errorf("%d MiB of memory after %d records", (after.HeapAlloc-before.HeapAlloc)>>20, n)
			}
		}
		return nil
	}}); err != nil || n < records {
		t.Errorf("%d records, %v", n, err)
	}
}
