package reccodec

import (
	"bytes"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func TestEntriesSurviveTheirEncoding(t *testing.T) {
	for _, entries := range [][]store.Entry{
		nil,
		{{Index: "expiry", SortKey: "\x00\x01\xff"}},
		{{Index: "a", SortKey: ""}, {Index: "b", SortKey: string(bytes.Repeat([]byte{7}, 300))}},
	} {
		b := append(Append(nil, entries), "value"...)
		got, rest, err := Split(b)
		if err != nil || !slices.Equal(got, entries) || string(rest) != "value" {
			t.Errorf("%v: got %v, rest %q, error %v", entries, got, rest, err)
		}
		for n := range len(b) - len("value") {
			if _, _, err := Split(b[:n]); err == nil {
				t.Errorf("%v: cut to %d octets was accepted", entries, n)
			}
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(Append(nil, []store.Entry{{Index: "expiry", SortKey: "1"}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, rest, err := Split(b)
		if err != nil {
			return
		}
		again, rest2, err := Split(append(Append(nil, entries), rest...))
		if err != nil || !slices.Equal(again, entries) || !bytes.Equal(rest, rest2) {
			t.Fatalf("%v %q does not survive a round trip: %v", entries, rest, err)
		}
	})
}
