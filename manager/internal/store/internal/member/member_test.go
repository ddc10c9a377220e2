package member

import (
	"cmp"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func FuzzJoinKeepsOrder(f *testing.F) {
	f.Add("a", "b", "a\x00", "b")
	f.Add("", "\x00\x01", "\x00", "\xff")
	f.Add("a\x00\xff", "k", "a\x00\x01", "k")
	f.Fuzz(func(t *testing.T, s1, k1, s2, k2 string) {
		a, b := Join(s1, k1), Join(s2, k2)
		want := cmp.Or(cmp.Compare(s1, s2), cmp.Compare(k1, k2))
		if got := cmp.Compare(a, b); got != want {
			t.Fatalf("(%q,%q) and (%q,%q) compare %d, their members %d", s1, k1, s2, k2, want, got)
		}
		if h, err := Split(a); err != nil || h != (store.Hit{SortKey: s1, Key: k1}) {
			t.Fatalf("(%q,%q) came back as %q, %v", s1, k1, h, err)
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add("a\x00\x01b")
	f.Add("\x00")
	f.Fuzz(func(t *testing.T, m string) { _, _ = Split(m) })
}
