package state

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

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
