package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// oddTexts have the bytes that a position has to escape, and some begin with others.
var oddTexts = []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\xfe", "\xff", "\xff\xff", "a", "a\x00", "a\x00\x01", "a\x00\xff", "a\x01", "a\xff", "b"}

// comparePositions compares the positions of two entries as AppendPosition promises, and splits them again.
func comparePositions(t *testing.T, sort1, key1, sort2, key2 string) {
	t.Helper()
	p1, p2 := AppendPosition([]byte("p"), sort1, key1), AppendPosition([]byte("p"), sort2, key2)
	want := cmp.Or(strings.Compare(sort1, sort2), strings.Compare(key1, key2))
	if got := bytes.Compare(p1, p2); got != want {
		t.Fatalf("(%q, %q) and (%q, %q) compare as %d, and their positions as %d", sort1, key1, sort2, key2, want, got)
	}
	if sortKey, key, err := SplitPosition(p1[1:]); sortKey != sort1 || key != key1 || err != nil {
		t.Fatalf("the position of (%q, %q) is split into (%q, %q), %v", sort1, key1, sortKey, key, err)
	}
}

func TestPositionsAreOrderedLikeHits(t *testing.T) {
	var entries [][2]string
	for _, sortKey := range oddTexts {
		for _, key := range oddTexts {
			entries = append(entries, [2]string{sortKey, key})
		}
	}
	for _, a := range entries {
		for _, b := range entries {
			comparePositions(t, a[0], a[1], b[0], b[1])
		}
	}
}

func FuzzAppendPosition(f *testing.F) {
	for i, s := range oddTexts {
		f.Add(s, "key", oddTexts[(i+1)%len(oddTexts)], s)
	}
	f.Fuzz(comparePositions)
}

// What SplitPosition takes is the position of what it returns.
func FuzzSplitPosition(f *testing.F) {
	for _, s := range oddTexts {
		f.Add([]byte(s))
		f.Add(AppendPosition(nil, s, s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		given := slices.Clone(p)
		sortKey, key, err := SplitPosition(p)
		if !bytes.Equal(p, given) {
			t.Fatalf("%q became %q", given, p)
		}
		if err == nil && !bytes.Equal(AppendPosition(nil, sortKey, key), p) {
			t.Fatalf("%q is split into (%q, %q)", p, sortKey, key)
		}
	})
}

// What decodeRecord takes has the same meaning when it is encoded again, and is not longer than what it was given.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(appendRecord(nil, nil, make([]store.Entry, maxEntries+1)))
	f.Add(appendRecord(nil, []byte("value"), []store.Entry{{Index: "i", SortKey: "\x00"}, {Index: "", SortKey: ""}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		value, entries, err := decodeRecord(b)
		if err != nil {
			return
		}
		if len(entries) > maxEntries || !bytes.HasSuffix(b, value) {
			t.Fatalf("%q has %d entries and the value %q", b, len(entries), value)
		}
		again := appendRecord(nil, value, entries)
		value2, entries2, err := decodeRecord(again)
		if len(again) > len(b) || err != nil || !bytes.Equal(value, value2) || !slices.Equal(entries, entries2) {
			t.Fatalf("%q and %q become %q and %q, %v", value, entries, value2, entries2, err)
		}
	})
}

// A record that is cut off before its value is refused.
func TestDecodeRecordRefusesCuts(t *testing.T) {
	b := appendRecord(nil, nil, []store.Entry{{Index: "one", SortKey: "sort"}, {Index: "two", SortKey: ""}})
	for n := range b {
		if value, entries, err := decodeRecord(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are %q and %q", n, len(b), value, entries)
		}
	}
}

func FuzzDecodeCounts(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 0xff})
	f.Add([]byte{1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{1, 2, 3, 'a', 'b', 'c'})
	f.Add(Counts{Records: 1, Bytes: 1 << 40, Entries: map[string]int{"a": 3, "": 1 << 30}}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCounts(b)
		if err != nil {
			return
		}
		again, err := decodeCounts(c.append(nil))
		if err != nil || again.Records != c.Records || again.Bytes != c.Bytes || !maps.Equal(again.Entries, c.Entries) {
			t.Fatalf("%+v becomes %+v, %v", c, again, err)
		}
	})
}

// Counts that are cut off within a number or a name are refused.
func TestDecodeCountsRefusesCuts(t *testing.T) {
	b := Counts{Records: 300, Bytes: 300, Entries: map[string]int{"index": 300}}.append(nil)
	for n := range b {
		if c, err := decodeCounts(b[:n]); (err == nil) != (n == 4) { // which have no index
			t.Errorf("%d of %d bytes are %+v, %v", n, len(b), c, err)
		}
	}
}

// What loader.list takes is the same list when it is written again.
func FuzzLoaderList(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 1, 2, 3, 4})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4})
	f.Add(appendList(nil, []fingerprint{1, 1, 0xffffffff}, []fingerprint{1, 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l loader
		if !l.list(b) {
			if l.items != 0 {
				t.Fatalf("%d fingerprints of a malformed list", l.items)
			}
			return
		}
		var set fingerprints
		l.finish(&set)
		added := int(binary.LittleEndian.Uint32(b))
		if l.items != len(b)/4-1 || set.len() > added || set.len() < 2*added-l.items {
			t.Fatalf("%q has %d fingerprints, of which %d stay", b, l.items, set.len())
		}
	})
}
