package ledger

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestWindowBound: whatever happens in whatever order, the bound that a
// transaction gets is no less than the entries that there can be with it.
func TestWindowBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		entries, inFlight := int64(0), int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				w.inFlight.Add(1)
				inFlight++
				if bound, ok := w.begin(); ok && bound < entries+inFlight {
					t.Fatalf("bound %d, there can be %d", bound, entries+inFlight)
				}
			},
			"insert": func(t *rapid.T) {
				if inFlight == 0 {
					t.Skip("nothing is under way")
				}
				entries++
				inFlight--
				w.inFlight.Add(-1)
			},
			"insert nothing": func(t *rapid.T) {
				if inFlight == 0 {
					t.Skip("nothing is under way")
				}
				inFlight--
				w.inFlight.Add(-1)
			},
			"remove": func(t *rapid.T) {
				if entries == 0 {
					t.Skip("nothing is there")
				}
				entries--
			},
			"recount": func(t *rapid.T) {
				// Between its steps others begin and end.
				during := rapid.Int64Range(0, 2).Draw(t, "begin meanwhile")
				n, err := w.recount(func() (int, error) {
					for range during {
						w.inFlight.Add(1)
						inFlight++
						w.begin()
					}
					if inFlight > 0 && rapid.Bool().Draw(t, "one ends before the count") {
						entries++
						inFlight--
						w.inFlight.Add(-1)
					}
					return int(entries), nil
				})
				if err != nil || int64(n) != entries {
					t.Fatal(n, err)
				}
				if bound := w.last.Load(); bound.entries+w.begun.Load()-bound.begun < entries+inFlight {
					t.Fatalf("counted %+v, there can be %d", *bound, entries+inFlight)
				}
			},
			"recount in vain": func(t *rapid.T) {
				failed := errors.New("failed")
				before := w.last.Load()
				if _, err := w.recount(func() (int, error) { return 0, failed }); err != failed || w.last.Load() != before {
					t.Fatal("a count that failed was taken over", err)
				}
			},
		})
	})
}
