package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// bag is what a set of fingerprints should have: how often it has each.
type bag map[fingerprint]int

func (b bag) sorted() (all []fingerprint) {
	for _, p := range slices.Sorted(maps.Keys(b)) {
		all = append(all, slices.Repeat([]fingerprint{p}, b[p])...)
	}
	return all
}

// check compares a set with the bag.
func (b bag) check(t *testing.T, f *fingerprints, universe []fingerprint, size int) {
	t.Helper()
	for _, p := range universe {
		if f.has(p) != (b[p] > 0) {
			t.Fatalf("has(%x) is %v, and there are %d", p, f.has(p), b[p])
		}
	}
	want := b.sorted()
	if f.len() != len(want) {
		t.Fatalf("there are %d fingerprints, want %d", f.len(), len(want))
	}
	var got []fingerprint
	full := true
	f.all(size, func(part []fingerprint) {
		if !full || len(part) == 0 || len(part) > size {
			t.Fatalf("a part of %d fingerprints, of at most %d", len(part), size)
		}
		full = len(part) == size
		got = append(got, part...)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("all has %d fingerprints, want %d, or they differ", len(got), len(want))
	}
}

// The set is a multiset, and a set that is loaded from stored lists is the same, whichever list says that one was removed.
func TestFingerprintsAreAMultiset(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 21))
		universe := []fingerprint{0, 1, 0xffff, 0x10000, 0x1ffff, 0x00ffffff, 0x01000000, 0xffff0000, 0xffffffff}
		for range 200 { // many in one list
			universe = append(universe, 0x12340000|fingerprint(rnd.IntN(1<<16)))
		}
		for range 200 {
			universe = append(universe, fingerprint(rnd.Uint32()))
		}
		var f fingerprints
		var stored loader
		want := make(bag)
		for range 12 {
			var added, removed []fingerprint
			for _, p := range want.sorted() {
				if rnd.IntN(3) == 0 {
					removed = append(removed, p)
				}
			}
			for range rnd.IntN(3 * changeStep) {
				added = append(added, universe[rnd.IntN(len(universe))])
			}
			for _, p := range added {
				want[p]++
			}
			for _, p := range removed {
				want[p]--
			}
			f.add(added)
			f.remove(removed)
			if !stored.list(appendList(nil, added, removed)) {
				t.Fatal("a list is not well formed")
			}
			want.check(t, &f, universe, 1+rnd.IntN(50))
		}
		absent := slices.DeleteFunc(slices.Clone(universe), func(p fingerprint) bool { return want[p] > 0 })
		f.remove(absent)
		want.check(t, &f, universe, 100)
		var loaded fingerprints
		stored.finish(&loaded)
		want.check(t, &loaded, universe, 100)
		if rest := want.sorted(); len(rest) > 0 { // a loaded set can be changed
			loaded.remove(rest)
			loaded.add(universe[:1])
			bag{universe[0]: 1}.check(t, &loaded, universe, 1)
		}
	}
}

// alike returns keys of two records that have the same fingerprint.
func alike(t *testing.T) (one, two string) {
	t.Helper()
	seen := make(map[fingerprint]string)
	for i := range 1 << 20 {
		key := fmt.Sprintf("alike%d", i)
		p := fingerprintOf(things, key)
		if other, ok := seen[p]; ok {
			return other, key
		}
		seen[p] = key
	}
	t.Fatal("no two fingerprints are the same")
	return "", ""
}

// When one of two records with the same fingerprint is deleted, the other one stays known, also after Open.
func TestRecordsWithTheSameFingerprint(t *testing.T) {
	one, two := alike(t)
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	var m model
	m.write(t, s, map[string]*Record{one: {Value: []byte("1")}, two: {Value: []byte("2")}})
	m.write(t, s, map[string]*Record{one: nil})
	for range 2 {
		m.check(t, s)
		mustClose(t, s)
		s = mustOpen(t, fs)
	}
	m.check(t, s)
	m.write(t, s, map[string]*Record{two: nil})
	for range 2 {
		if s.MayHave(things, one) {
			t.Error("the fingerprint of two deleted records is still there")
		}
		mustClose(t, s)
		s = mustOpen(t, fs)
	}
	mustClose(t, s)
}

// The stored lists are written again when most of what they have is over, and Open reads the same set from them.
func TestListsAreWrittenAnew(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	const stay, come = 1000, 12000
	fill := func(seq uint64, prefix string, n int, deleted bool) {
		t.Helper()
		b := Batch{Sequence: seq, Size: n, Counts: map[store.Collection]Counts{things: {}}, Changes: func(yield func(Change) bool) {
			for i := range n {
				if !yield(Change{Collection: things, Key: fmt.Sprint(prefix, i), Deleted: deleted, Existed: deleted}) {
					return
				}
			}
		}}
		if err := s.Write(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	fill(1, "stay", stay, false)
	anew := 0
	for seq := uint64(2); seq < 22; seq++ {
		before := s.lists
		fill(seq, "come", come, seq%2 == 1)
		if s.lists.first != before.first {
			if anew++; s.lists.first != before.next {
				t.Errorf("the lists begin with %d after those up to %d were written anew", s.lists.first, before.next)
			}
		}
		if limit := 2*s.absent.len() + spareItems + 3*come; s.lists.items > limit {
			t.Fatalf("the lists have %d fingerprints, want at most %d", s.lists.items, limit)
		}
	}
	if anew != 3 {
		t.Errorf("the lists were written anew %d times, want 3", anew)
	}
	want := s.lists
	for range 2 {
		if s.lists != want {
			t.Errorf("the lists are %+v, want %+v", s.lists, want)
		}
		for i := range stay {
			if !s.MayHave(things, fmt.Sprint("stay", i)) {
				t.Fatalf("stay%d seems to be absent", i)
			}
		}
		if n := s.absent.len(); n != stay {
			t.Errorf("there are %d fingerprints, want %d", n, stay)
		}
		mustClose(t, s)
		s = mustOpen(t, fs)
	}
	mustClose(t, s)
}
