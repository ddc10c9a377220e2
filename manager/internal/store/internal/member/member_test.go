package member

import (
	"bytes"
	"cmp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// oddTexts have the bytes that a member has to escape, and some begin with others.
var oddTexts = []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\xfe", "\xff", "\xff\xff", "a", "a\x00", "a\x00\x01", "a\x00\xff", "a\x01", "a\xff", "b"}

// compareMembers compares the members of two entries, and splits them again.
func compareMembers(t *testing.T, sort1, key1, sort2, key2 string) {
	t.Helper()
	p1, p2 := Append([]byte("p"), sort1, key1), Append([]byte("p"), sort2, key2)
	want := cmp.Or(strings.Compare(sort1, sort2), strings.Compare(key1, key2))
	if got := bytes.Compare(p1, p2); got != want {
		t.Fatalf("(%q, %q) and (%q, %q) compare as %d, and their members as %d", sort1, key1, sort2, key2, want, got)
	}
	if h, err := Split(string(p1[1:])); h != (store.Hit{SortKey: sort1, Key: key1}) || err != nil {
		t.Fatalf("the member of (%q, %q) is split into %q, %v", sort1, key1, h, err)
	}
	if joined := Join(sort1, key1); joined != string(p1[1:]) {
		t.Fatalf("the member %q is joined as %q", p1[1:], joined)
	}
}

func TestMembersAreOrderedLikeHits(t *testing.T) {
	var entries [][2]string
	for _, sortKey := range oddTexts {
		for _, key := range oddTexts {
			entries = append(entries, [2]string{sortKey, key})
		}
	}
	for _, a := range entries {
		for _, b := range entries {
			compareMembers(t, a[0], a[1], b[0], b[1])
		}
	}
}

func FuzzAppend(f *testing.F) {
	for i, s := range oddTexts {
		f.Add(s, "key", oddTexts[(i+1)%len(oddTexts)], s)
	}
	f.Fuzz(compareMembers)
}

// What Split takes is the member of what it returns.
func FuzzSplit(f *testing.F) {
	f.Add("a\x00\x01b")
	for _, s := range oddTexts {
		f.Add(s)
		f.Add(Join(s, s))
	}
	f.Fuzz(func(t *testing.T, m string) {
		if h, err := Split(m); err == nil && Join(h.SortKey, h.Key) != m {
			t.Fatalf("%q is split into %q", m, h)
		}
	})
}
