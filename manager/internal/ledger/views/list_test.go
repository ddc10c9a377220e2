package views_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
)

func fill(t *testing.T, l *ledger.Ledger, c *clock) {
	t.Helper()
	for i := range 7 {
		k := fmt.Sprint("c", i)
		reserve(t, l, k)
		commit(t, l, k)
		c.advance(time.Millisecond)
	}
	for i := range 5 {
		reserve(t, l, fmt.Sprint("p", i))
		c.advance(time.Millisecond)
	}
	for i := range 3 {
		k := fmt.Sprint("r", i)
		reserve(t, l, k)
		if err := l.Reject(t.Context(), finish(k)); err != nil {
			t.Fatal(err)
		}
		c.advance(time.Millisecond)
	}
}

func list(t *testing.T, l *ledger.Ledger, state api.State, limit int) []string {
	t.Helper()
	var keys []string
	for cursor := ""; ; {
		page, next, err := views.List(t.Context(), l, state, limit, cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		for _, e := range page {
			keys = append(keys, e.Key)
		}
		if next == "" {
			return keys
		}
		cursor = next
	}
}

func TestPagesShowEachEntryOnce(t *testing.T) {
	l, c := newLedger(t, ledger.Options{})
	if got := list(t, l, api.StateNone, 10); got != nil {
		t.Errorf("an empty ledger lists %v", got)
	}
	fill(t, l, c)
	pending := []string{"p0", "p1", "p2", "p3", "p4"}
	committed := []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6"}
	rejected := []string{"r0", "r1", "r2"}
	for _, limit := range []int{1, 2, 3, 5, 7, 15, views.MaxLimit} {
		for state, want := range map[api.State][]string{
			api.StatePending: pending, api.StateCommitted: committed, api.StateRejected: rejected,
			api.StateNone: slices.Concat(pending, committed, rejected),
		} {
			if got := list(t, l, state, limit); !slices.Equal(got, want) {
				t.Errorf("%v by %d: %v, want %v", state, limit, got, want)
			}
		}
	}
	c.advance(61 * time.Second) // pending and rejected ones are over, unswept
	for _, stored := range []bool{false, true} {
		if got, want := list(t, l, api.StateNone, 4), slices.Concat(committed, pending); !slices.Equal(got, want) {
			t.Errorf("stored %v: listed %v, want %v", stored, got, want)
		}
		for state, want := range map[api.State][]string{api.StatePending: nil, api.StateUnknown: pending} {
			if got := list(t, l, state, 2); !slices.Equal(got, want) {
				t.Errorf("stored %v: %v: %v, want %v", stored, state, got, want)
			}
		}
		if _, err := l.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListRefusesNonsense(t *testing.T) {
	l, c := newLedger(t, ledger.Options{})
	fill(t, l, c)
	_, cursor, err := views.List(t.Context(), l, api.StatePending, 2, "")
	if err != nil || cursor == "" {
		t.Fatal(err)
	}
	for _, bad := range []string{"!", "AA", "cGE", "eHh4Lw", cursor[:4] + "!"} {
		if _, _, err := views.List(t.Context(), l, api.StateNone, 2, bad); !errors.Is(err, ledger.ErrCursor) {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
	if _, _, err := views.List(t.Context(), l, api.StateCommitted, 2, cursor); !errors.Is(err, ledger.ErrCursor) {
		t.Errorf("a cursor of another state: %v", err)
	}
	var field *api.FieldError
	for _, limit := range []int{0, -1, views.MaxLimit + 1} {
		if _, _, err := views.List(t.Context(), l, api.StateNone, limit, ""); !errors.As(err, &field) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, _, err := views.List(t.Context(), l, api.StateReleased, 1, ""); !errors.As(err, &field) {
		t.Errorf("state released: %v", err)
	}
}

// find returns the scopes of a key, and on how many pages they were.
func find(t *testing.T, l *ledger.Ledger, key string, state api.State, limit int) (scopes []string, pages int) {
	t.Helper()
	for cursor := ""; ; {
		page, next, err := views.Find(t.Context(), l, key, state, limit, cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		for _, e := range page {
			if e.Key != key {
				t.Fatalf("found %q", e.Key)
			}
			scopes = append(scopes, e.Scope)
		}
		if pages++; next == "" {
			slices.Sort(scopes)
			return scopes, pages
		}
		cursor = next
	}
}

func TestFindNamesAllScopesOfAKey(t *testing.T) {
	l, c := newLedger(t, ledger.Options{})
	reserve := func(scope, key string) {
		t.Helper()
		if _, err := l.Reserve(t.Context(), &api.ReserveRequest{Scope: scope, Key: key, Token: "t"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, scope := range []string{"", "a", "b", "c", "sk"} {
		reserve(scope, "k")
	}
	reserve("a", "sk") // ends with the key, as does the scope "sk"
	reserve("a", "kk")
	if err := l.Commit(t.Context(), ledger.NewFinish(&api.FinishRequest{Scope: "b", Key: "k", Token: "t", Result: api.Result{Status: 200}})); err != nil {
		t.Fatal(err)
	}
	all := []string{"", "a", "b", "c", "sk"}
	for _, limit := range []int{1, 2, 5, views.MaxLimit} {
		if got, _ := find(t, l, "k", api.StateNone, limit); !slices.Equal(got, all) {
			t.Errorf("by %d: %q, want %q", limit, got, all)
		}
	}
	if got, _ := find(t, l, "k", api.StateCommitted, 2); !slices.Equal(got, []string{"b"}) {
		t.Errorf("committed: %q", got)
	}
	if got, pages := find(t, l, "none", api.StateNone, 2); got != nil || pages != 1 {
		t.Errorf("a key of no scope: %q on %d pages", got, pages)
	}
	c.advance(400 * 24 * time.Hour) // all have expired, and the sweeper has removed none
	if got, _ := find(t, l, "k", api.StateNone, 2); got != nil {
		t.Errorf("expired: %q", got)
	}
	var field *api.FieldError
	if _, _, err := views.Find(t.Context(), l, "a b ", api.StateNone, 1, ""); !errors.As(err, &field) {
		t.Errorf("a bad key: %v", err)
	}
}

// A page of a rare key examines MaxExamined index entries, and returns a cursor for the next page.
func TestFindIsBounded(t *testing.T) {
	l, c := newLedger(t, ledger.Options{})
	for i := range views.MaxExamined {
		reserve(t, l, fmt.Sprintf("k%d", i))
	}
	c.advance(time.Millisecond)
	reserve(t, l, "last")
	page, next, err := views.Find(t.Context(), l, "last", api.StateNone, 10, "")
	if err != nil || len(page) != 0 || next == "" {
		t.Errorf("the first page: %v, cursor %q, %v", page, next, err)
	}
	if got, pages := find(t, l, "last", api.StateNone, 10); !slices.Equal(got, []string{"s"}) || pages != 2 {
		t.Errorf("%q on %d pages", got, pages)
	}
	commit(t, l, "last") // now the first page ends together with the pending entries
	if got, pages := find(t, l, "last", api.StateNone, 10); !slices.Equal(got, []string{"s"}) || pages != 2 {
		t.Errorf("committed: %q on %d pages", got, pages)
	}
}

func FuzzCursor(f *testing.F) {
	f.Add("")
	_, first := ledger.ByExpiry(api.StatePending, time.UnixMilli(0))
	f.Add(store.Cursor{Part: 3, Hit: store.Hit{SortKey: first, Key: "1:sk"}}.String())
	l, _ := newLedger(f, ledger.Options{})
	f.Fuzz(func(t *testing.T, cursor string) {
		for _, s := range []api.State{api.StateNone, api.StatePending, api.StateCommitted, api.StateRejected, api.StateUnknown} {
			if _, _, err := views.List(t.Context(), l, s, 1, cursor); err != nil && !errors.Is(err, ledger.ErrCursor) {
				t.Fatal(err)
			}
		}
	})
}
