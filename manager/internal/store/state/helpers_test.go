package state

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

const (
	dir    = "state"
	things = store.Collection("things")
	log    = "the log"
)

// TestMain ignores what Pebble leaves behind when its disk fails.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2/record.(*LogWriter).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.(*cleanupManager).mainLoop"),
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2/internal/genericcache.(*shard[...]).releaseLoop"))
}

func mustOpen(t testing.TB, fs *faultfs.FS) *State {
	t.Helper()
	s, err := Open(dir, log, Options{FS: fs.Pebble()})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *State) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// model is what a state should have.
type model struct {
	records map[string]Record
	seq     uint64
}

// write changes records of the model and of the state in one batch: an absent value deletes.
func (m *model) write(t testing.TB, s *State, changes map[string]*Record) {
	t.Helper()
	if m.records == nil {
		m.records = make(map[string]Record)
	}
	next := maps.Clone(m.records)
	var list []Change
	for key, r := range changes {
		before, existed := next[key]
		c := Change{Collection: things, Key: key, Deleted: r == nil, Existed: existed, Before: before.Entries}
		if r == nil {
			delete(next, key)
		} else {
			next[key] = *r
			c.Value, c.Entries = r.Value, r.Entries
		}
		list = append(list, c)
	}
	m.seq++
	counts := Counts{Records: len(next), Entries: make(map[string]int)}
	for key, r := range next {
		counts.Bytes += int64(len(key) + len(r.Value))
		for _, e := range r.Entries {
			counts.Entries[e.Index]++
		}
	}
	b := Batch{Sequence: m.seq, Changes: slices.Values(list), Counts: map[store.Collection]Counts{things: counts}}
	if err := s.Write(t.Context(), b); err != nil {
		t.Fatalf("Write: %v", err)
	}
	m.records = next
}

// add writes n new records of size bytes.
func (m *model) add(t testing.TB, s *State, n, size int) {
	t.Helper()
	changes := make(map[string]*Record)
	for i := range n {
		key := fmt.Sprintf("k%05d", len(m.records)+i)
		changes[key] = &Record{Value: []byte(strings.Repeat(key, size/len(key))), Entries: []store.Entry{{Index: "order", SortKey: key[1:]}}}
	}
	m.write(t, s, changes)
}

// hits are those of an index.
func (m *model) hits(index string) (hits []store.Hit) {
	for key, r := range m.records {
		for _, e := range r.Entries {
			if e.Index == index {
				hits = append(hits, store.Hit{SortKey: e.SortKey, Key: key})
			}
		}
	}
	slices.SortFunc(hits, func(a, b store.Hit) int {
		if c := strings.Compare(a.SortKey, b.SortKey); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	return hits
}

func scan(s *State, index string) (hits []store.Hit, err error) {
	x, err := s.OpenIndex(things, index)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	for ok := x.Seek(nil); ok; ok = x.Next() {
		hits = append(hits, x.Hit())
	}
	return hits, x.Err()
}

// check compares the state with the model.
func (m *model) check(t testing.TB, s *State, indexes ...string) {
	t.Helper()
	for key, want := range m.records {
		r, err := s.Get(things, key)
		if err != nil || string(r.Value) != string(want.Value) || !slices.Equal(r.Entries, want.Entries) {
			t.Fatalf("%q is %q, %v, want %q", key, r, err, want)
		}
		if !s.MayHave(things, key) {
			t.Fatalf("%q seems to be absent", key)
		}
	}
	if s.Sequence() != m.seq || s.Counts()[things].Records != len(m.records) {
		t.Fatalf("sequence %d with %v, want %d with %d records", s.Sequence(), s.Counts(), m.seq, len(m.records))
	}
	for _, index := range indexes {
		hits, err := scan(s, index)
		if want := m.hits(index); err != nil || !slices.Equal(hits, want) {
			t.Fatalf("index %s has %q, %v, want %q", index, hits, err, want)
		}
	}
}

// tables are the table files.
func tables(fs *faultfs.FS) (names []string) {
	for _, name := range fs.Names() {
		if strings.HasSuffix(name, ".sst") {
			names = append(names, name)
		}
	}
	return names
}

var (
	_ = errors.Is
	_ iter.Seq[int]
	_ = rand.IntN
)
