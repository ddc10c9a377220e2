package mem

import (
	"errors"
	"fmt"
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

// options are those of a store on fs with segments that a few transactions
// fill, and no snapshots but those that a test takes.
func options(fs *faultfs.FS) Options {
	return Options{
		SnapshotBytes: -1,
		Log:           wal.Options{FS: fs, SegmentBytes: 16 << 10, SpaceRetry: time.Millisecond, FillAhead: -1},
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

// dumped is everything that is visible in a store, in order.
func dumped(t testing.TB, s *Store) []string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.collections {
		indexed := 0
		c.records.each(func(r *record) bool {
			line := fmt.Sprintf("%s %q=%q", c.name, r.key(), r.value())
			for _, ix := range c.indexes {
				if r.find(ix) >= 0 {
					line += fmt.Sprintf(" %s:%q", ix.name, r.sortKey(ix))
					indexed++
				}
			}
			out = append(out, line)
			return true
		})
		for _, ix := range c.indexes {
			ix.tree.Scan(func(it item) bool {
				indexed--
				if c.records.get(it.rec.key()) != it.rec {
					t.Errorf("%s.%s has an entry of %q that is not the record's", c.name, ix.name, it.rec.key())
				}
				return true
			})
		}
		if indexed != 0 {
			t.Errorf("%s: the indexes have %d entries too few", c.name, indexed)
		}
	}
	slices.Sort(out)
	return out
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
