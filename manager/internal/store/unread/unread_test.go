package unread

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func bad(key string) error {
	return fmt.Errorf("wrapped: %w", &store.UnreadableError{Collection: "things", Key: key, Reason: "it is damaged"})
}

func TestTrackerKeepsUnreadableKeys(t *testing.T) {
	tr := New()
	if tr.Met(nil) || tr.Met(errors.New("other")) || tr.Met(store.ErrNotFound) {
		t.Error("another error is taken for an unreadable record")
	}
	for range 3 {
		if !tr.Met(bad("a")) {
			t.Error("not met")
		}
	}
	if u := <-tr.News(); u.Key != "a" || len(tr.News()) != 0 {
		t.Errorf("reported %v, and %d more", u, len(tr.News()))
	}
	// Nobody listens: nothing blocks, and what could not be reported is reported later.
	for i := range 2 * MaxKnown {
		tr.Met(bad(fmt.Sprint(i)))
	}
	seen := map[string]bool{"a": true}
	for round := 0; len(seen) < MaxKnown; round++ {
		for len(tr.News()) > 0 {
			u := <-tr.News()
			if seen[u.Key] {
				t.Fatalf("reported %s twice", u.Key)
			}
			seen[u.Key] = true
		}
		for i := range 2 * MaxKnown {
			tr.Met(bad(fmt.Sprint(i)))
		}
		if round > 100 {
			t.Fatalf("reported %d", len(seen))
		}
	}
	if c := tr.Counts()["things"]; c.Known != MaxKnown || c.Met < 4*MaxKnown || len(tr.Known()) != MaxKnown || len(tr.News()) != 0 {
		t.Errorf("%+v, %d known", c, len(tr.Known()))
	}
	tr.Forget("things", "a")
	if c := tr.Counts()["things"]; c.Known != MaxKnown-1 {
		t.Errorf("%+v after one was forgotten", c)
	}
	var none *Tracker
	if !none.Met(bad("a")) || none.Met(nil) || len(none.Known()) != 0 || len(none.Counts()) != 0 {
		t.Error("a tracker that is nil")
	}
	none.Forget("things", "a")
}

func TestFrontPassesUnreadableRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Front
		hit := func(key string) store.Hit { return store.Hit{SortKey: "s", Key: key} }
		if f.After("i") != nil {
			t.Error("an empty front")
		}
		var l Lead
		for i, used := range []bool{false, false, true, false} {
			l.See(hit(fmt.Sprint(i)), used)
		}
		if l.Leads() {
			t.Error("leads although a hit was used")
		}
		l.Pass(&f, "i")
		if at := f.After("i"); at == nil || at.Key != "1" || f.After("j") != nil {
			t.Errorf("after %v", at)
		}
		time.Sleep(frontTTL / 2)
		f.Pass("i", hit("9"))
		if at := f.After("i"); at == nil || at.Key != "9" {
			t.Errorf("after %v", at)
		}
		// It is looked at again after the same time, however often it grew.
		time.Sleep(frontTTL/2 + 1)
		if at := f.After("i"); at != nil {
			t.Errorf("still believed: %v", at)
		}
		for i := range 3 * maxFronts {
			f.Pass(fmt.Sprint(i), hit("1"))
		}
		if len(f.at) > maxFronts {
			t.Errorf("%d fronts", len(f.at))
		}
	})
}

// newFinder looks at n records of which every third cannot be read, in two indexes,
// and at one that no index leads to.
func newFinder(t testing.TB, n int) (*Finder, []string) {
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	var want []string
	err := st.Update(context.Background(), func(tx store.Tx) error {
		for i := range n {
			key, value := fmt.Sprintf("k%04d", i), "good"
			if i%3 == 0 {
				value, want = "bad", append(want, key)
			}
			if err := tx.Put("things", key, []byte(value), store.Entry{Index: []string{"even", "odd"}[i%2], SortKey: key}); err != nil {
				return err
			}
		}
		return tx.Put("others", "alone", []byte("bad"))
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &Finder{Store: st, Tracker: New(), Places: []Place{{"things", "even"}, {"things", "odd"}},
		Check: func(tx store.Tx, c store.Collection, key string) error {
			v, err := tx.Get(c, key)
			if err == nil && string(v) == "bad" {
				err = &store.UnreadableError{Collection: c, Key: key, Reason: "it is bad"}
			}
			return err
		}}
	f.Tracker.Met(&store.UnreadableError{Collection: "others", Key: "alone", Reason: "it was bad"})
	f.Tracker.Met(&store.UnreadableError{Collection: "others", Key: "gone", Reason: "it was bad"})
	f.Tracker.Met(&store.UnreadableError{Collection: "things", Key: "k0000", Reason: "it was bad"})
	return f, append(want, "alone")
}

func TestFindListsEachUnreadableRecordOnce(t *testing.T) {
	f, want := newFinder(t, 1000)
	slices.Sort(want)
	for _, limit := range []int{1, 7, 1000} {
		var got []string
		cursor := ""
		for more := true; more; more = cursor != "" {
			page, next, err := f.Find(t.Context(), limit, cursor)
			if err != nil || len(page) > limit+findChunk+1 {
				t.Fatalf("%d found, %v", len(page), err)
			}
			for _, u := range page {
				got = append(got, u.Key)
			}
			cursor = next
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d found, want %d", limit, len(got), len(want))
		}
	}
	if c := f.Tracker.Counts()["others"]; c.Known != 1 {
		t.Errorf("one that is gone is still known: %+v", c)
	}
}

func FuzzFindCursor(f *testing.F) {
	finder, _ := newFinder(f, 10)
	f.Add("")
	f.Add(store.Cursor{Part: 1}.String())
	f.Add(store.Cursor{Hit: store.Hit{SortKey: "k0002", Key: "k0002"}}.String())
	f.Fuzz(func(t *testing.T, cursor string) {
		_, next, err := finder.Find(t.Context(), 1, cursor)
		if err != nil && !errors.Is(err, ErrCursor) {
			t.Fatal(err)
		}
		if _, ok := store.ParseCursor(next); !ok {
			t.Fatalf("%q leads to %q", cursor, next)
		}
	})
}
