package mem

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

const (
	things = store.Collection("things")
	byName = "by_name"
	at     = "data"
)

// options are those of a store on fs with segments that a few transactions fill.
func options(fs *faultfs.FS) Options {
	return Options{
		State: fs.Pebble(),
		Log:   wal.Options{FS: fs, SegmentBytes: 16 << 10, SpaceRetry: time.Millisecond, FillAhead: -1},
	}
}

func mustOpen(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), at, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func put(key, value string, entries ...store.Entry) func(store.Tx) error {
	return func(tx store.Tx) error { return tx.Put(things, key, []byte(value), entries...) }
}

func mustUpdate(t testing.TB, s *Store, fn func(store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

const absent = "<absent>"

func get(tx store.Tx, key string) (string, error) {
	v, err := tx.Get(things, key)
	if errors.Is(err, store.ErrNotFound) {
		return absent, nil
	}
	return string(v), err
}

func mustGet(t testing.TB, s *Store, key string) (v string) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.Tx) (err error) {
		v, err = get(tx, key)
		return err
	})
	if err != nil {
		t.Fatalf("View: %v", err)
	}
	return v
}

// dumped is everything that is visible in a store, in order. It checks that indexes and counts agree with the records.
func dumped(t testing.TB, s *Store) []string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.collections {
		var bytes int64
		n, entries := 0, make(map[string][]store.Hit)
		add := func(rec *record) {
			n++
			bytes += rec.size()
			line := fmt.Sprintf("%s %q=%q", c.name, rec.key(), rec.value())
			for _, name := range slices.Sorted(maps.Keys(c.byName)) {
				if ix := c.byName[name]; rec.find(ix) >= 0 {
					line += fmt.Sprintf(" %s:%q", ix.name, rec.sortKey(ix))
					entries[ix.name] = append(entries[ix.name], store.Hit{SortKey: rec.sortKey(ix), Key: rec.key()})
				}
			}
			out = append(out, line)
		}
		for rec := range c.hot.records.all() {
			if !rec.gone {
				add(rec)
			}
		}
		if c.frozen != nil {
			for rec := range c.frozen.records.all() {
				if !rec.gone && c.hot.get(rec.key()) == nil {
					add(rec)
				}
			}
		}
		eachOnDisk(t, s, c, add)
		if c.count != n || c.bytes != bytes {
			t.Errorf("%s: %d records and %d bytes are counted, there are %d and %d", c.name, c.count, c.bytes, n, bytes)
		}
		for _, ix := range c.indexes {
			s.tx.reset(false, &loads{})
			hits, err := (&handle{&s.tx}).Scan(c.name, ix.name, store.Range{Limit: store.MaxScan})
			want := entries[ix.name]
			slices.SortFunc(want, compareHits)
			if err != nil || !slices.Equal(hits, want) || ix.count != len(want) {
				t.Errorf("%s.%s has %v, %v, counted as %d, want %v", c.name, ix.name, hits, err, ix.count, want)
			}
		}
	}
	slices.Sort(out)
	return out
}

// eachOnDisk calls fn with what the state has and no layer hides.
func eachOnDisk(t testing.TB, s *Store, c *collection, fn func(*record)) {
	if s.state == nil {
		return
	}
	snap, err := s.state.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	for {
		name, key, r, ok, err := snap.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		if name != c.name || c.hides(key) {
			continue
		}
		rec, err := c.newRecord(key, r.Value, r.Entries)
		if err != nil {
			t.Fatal(err)
		}
		fn(rec)
	}
}

// gate holds up operations of a file system from the moment it is closed.
type gate struct {
	mu      sync.Mutex
	open    chan struct{}
	entered chan faultfs.Op
}

func newGate(fs *faultfs.FS, match func(faultfs.Op) bool) *gate {
	g := &gate{open: make(chan struct{}), entered: make(chan faultfs.Op, 100)}
	fs.SetHook(func(op faultfs.Op) error {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open != nil && match(op) {
			g.entered <- op
			<-open
		}
		return nil
	})
	return g
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
	g.open = nil
}

func isSync(op faultfs.Op) bool { return op.Kind == faultfs.Sync }

// randomWrites is a transaction of a few random changes.
func randomWrites(rnd *rand.Rand, keys int) func(store.Tx) error {
	type change struct {
		key, value string
		entries    []store.Entry
	}
	changes := make([]change, 1+rnd.IntN(4))
	for i := range changes {
		changes[i].key = fmt.Sprintf("k%03d", rnd.IntN(keys))
		if rnd.IntN(4) == 0 {
			continue
		}
		changes[i].value = fmt.Sprintf("v%d", rnd.Uint32())
		for j := range rnd.IntN(4) {
			changes[i].entries = append(changes[i].entries, store.Entry{Index: fmt.Sprintf("i%d", j), SortKey: fmt.Sprint(rnd.IntN(50))})
		}
	}
	return func(tx store.Tx) error {
		for _, c := range changes {
			var err error
			if c.value == "" {
				err = tx.Delete(things, c.key)
			} else {
				err = tx.Put(things, c.key, []byte(c.value), c.entries...)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// leftByPebble are what runs on or waits forever in a state that has failed: it is not closed, since it may hold its locks.
var leftByPebble = []string{
	"github.com/cockroachdb/pebble/v2/record.(*LogWriter).flushLoop",
	"github.com/cockroachdb/pebble/v2.(*cleanupManager).mainLoop",
	"github.com/cockroachdb/pebble/v2.(*DB).compact",
	"github.com/cockroachdb/pebble/v2.(*DB).flush",
	"github.com/cockroachdb/pebble/v2.(*DB).collectTableStats",
	"github.com/cockroachdb/pebble/v2.(*DB).validateSSTables",
	"github.com/cockroachdb/pebble/v2/internal/genericcache.(*shard[...]).releaseLoop",
	"github.com/oncegate/oncegate/manager/internal/store/state.(*State).guard.func1",
}

func TestMain(m *testing.M) {
	var ignored []goleak.Option
	for _, function := range leftByPebble {
		ignored = append(ignored, goleak.IgnoreAnyFunction(function))
	}
	goleak.VerifyTestMain(m, ignored...)
}
