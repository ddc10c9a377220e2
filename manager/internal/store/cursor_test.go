package store

import "testing"

func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", Cursor{Part: 2}.String(), Cursor{Hit: Hit{SortKey: "s", Key: "k"}}.String(), "AA", "AAAA", "AAFh"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := ParseCursor(text)
		if !ok {
			return
		}
		if again, ok := ParseCursor(c.String()); !ok || again != c {
			t.Fatalf("%q: %+v became %+v, %v", text, c, again, ok)
		}
		if after := c.After(); (after == nil) != (c.Hit.Key == "") || after != nil && *after != c.Hit {
			t.Fatalf("%q continues after %+v", text, after)
		}
	})
}
