package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func publish(t *testing.T, l *site) {
	t.Helper()
	if err := l.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// recordKeys reserves keys and commits them.
func recordKeys(t *testing.T, l *site, keys ...string) {
	t.Helper()
	if err := reserveAndCommit(t.Context(), l, keys...); err != nil {
		t.Fatal(err)
	}
}

func reserveAndCommit(ctx context.Context, l *site, keys ...string) error {
	for _, key := range keys {
		if reply, err := l.Reserve(ctx, reserveReq(key, "t"+key), nil); err != nil || reply.State != api.StateReserved {
			return fmt.Errorf("reserve %s: %v, %w", key, reply.State, err)
		}
		if err := l.Commit(ctx, finishReq(key, "t"+key, key)); err != nil {
			return fmt.Errorf("commit %s: %w", key, err)
		}
	}
	return nil
}

// recordTogether is recordKeys in one transaction for all reserves and one for all commits.
func recordTogether(t *testing.T, l *site, keys ...string) {
	t.Helper()
	for _, op := range []ledger.Op{ledger.OpReserve, ledger.OpCommit} {
		items := make([]ledger.Item, len(keys))
		for i, key := range keys {
			items[i] = ledger.Item{Op: op, Reserve: *reserveReq(key, "t"+key), Finish: *finishReq(key, "t"+key, key)}
		}
		l.Batch(t.Context(), items)
		for _, it := range items {
			if it.Err != nil {
				t.Fatal(it.Err)
			}
		}
	}
}

func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("k%04d", i))
	}
	return keys
}

// read returns the keys of the feed after a cursor, and checks their numbers.
func read(t *testing.T, l *site, cursor string, limit int) (keys []string, last string) {
	t.Helper()
	for {
		f, err := l.Changes(t.Context(), "dc1", cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Changes) > limit {
			t.Fatalf("%d changes, the limit is %d", len(f.Changes), limit)
		}
		for i, c := range f.Changes {
			if want := f.Sequence - uint64(len(f.Changes)-1-i); !f.Copying && c.Sequence != want {
				t.Errorf("%s has the number %d, want %d", c.Key, c.Sequence, want)
			}
			keys = append(keys, c.Key)
		}
		if cursor == f.Cursor || !f.Copying && f.Sequence == f.Head {
			return keys, f.Cursor
		}
		cursor = f.Cursor
	}
}

func wantKeys(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d keys %.200q, want %d", what, len(got), got, len(want))
	}
}

// stored returns the records of a collection that an index has.
func stored(t *testing.T, st store.Store, c store.Collection, index string) (hits []store.Hit) {
	t.Helper()
	err := st.View(t.Context(), func(tx store.Tx) (err error) {
		hits, err = tx.Scan(c, index, store.Range{Limit: 10000})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hits
}

// TestFeedPages: a page of the feed has many changes, and readers may begin and end anywhere in it.
func TestFeedPages(t *testing.T) {
	keys := numbered(700)
	for name, wrap := range map[string]func(store.Store) store.Store{
		"alone":  func(st store.Store) store.Store { return st },
		"shared": func(st store.Store) store.Store { return sharedStore{st} },
	} {
		t.Run(name, func(t *testing.T) {
			st := wrap(mem.New(mem.Options{}))
			defer st.Close()
			l := feedOn(t, st, ledger.Options{})
			recordKeys(t, l, keys[:300]...)
			for i := 300; i < len(keys); i += 50 {
				recordTogether(t, l, keys[i:i+50]...)
			}
			publish(t, l)
			if n := len(stored(t, st, changes, indexOrder)); n > 6 {
				t.Errorf("%d records for %d changes", n, len(keys))
			}
			if left := len(stored(t, st, ledger.Outbox, indexOrder)); left != 0 {
				t.Errorf("the outbox keeps %d records", left)
			}
			for _, limit := range []int{1, 7, 256, 257, 500} {
				got, _ := read(t, l, "", limit)
				wantKeys(t, fmt.Sprint("pages of ", limit), got, keys)
			}
			h := headOf(t, st)
			for at := range len(keys) {
				got, _ := read(t, l, fmt.Sprintf("dc1:%s:%d", h.Epoch, at), 500)
				wantKeys(t, fmt.Sprint("after ", at), got, keys[at:])
			}
			if n := l.Published(); n != uint64(len(keys)) {
				t.Errorf("%d are published", n)
			}
			publish(t, l) // nothing
			if now := headOf(t, st); *now != *h {
				t.Errorf("the head became %+v from %+v", now, h)
			}
		})
	}
}

func headOf(t *testing.T, st store.Store) (h *head) {
	t.Helper()
	err := st.View(t.Context(), func(tx store.Tx) (err error) {
		h, err = getHead(tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestCopyThatTakesLong: while a copy is read, more is published than the feed keeps. The copy ends nevertheless.
func TestCopyThatTakesLong(t *testing.T) {
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	defer st.Close()
	l := feedOn(t, st, ledger.Options{CommittedTTL: 24 * time.Hour})
	l.kept = 20
	keys := numbered(400)
	put := func(n int) {
		recordKeys(t, l, keys[:n]...)
		keys = keys[n:]
		publish(t, l)
		c.advance(10 * time.Second)
	}
	put(100)
	c.advance(time.Hour)
	put(1)
	seen, cursor := make(map[string]bool), ""
	for range 150 {
		f, err := l.Changes(t.Context(), "dc1", cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range f.Changes {
			seen[change.Key] = true
		}
		if cursor = f.Cursor; !f.Copying && f.Sequence == f.Head {
			break
		}
		put(1)
	}
	if want := 400 - len(keys); len(seen) != want || len(keys) < 150 {
		t.Errorf("the copy has %d of %d outcomes", len(seen), want)
	}
}

// TestFirstInTheMiddleOfAPage: what is to be kept ends in the middle of a page, which stays until all of it is old.
func TestFirstInTheMiddleOfAPage(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	l.kept = 5
	keys := numbered(24)
	for i := 0; i < len(keys); i += 8 {
		recordKeys(t, l, keys[i:i+8]...)
		publish(t, l)
	}
	h := headOf(t, st)
	if h.First != 20 || h.Whole {
		t.Errorf("%+v", h)
	}
	for range 2 {
		got, _ := read(t, l, fmt.Sprintf("dc1:%s:19", h.Epoch), 3)
		wantKeys(t, "what is kept", got, keys[19:])
		if _, err := l.Changes(t.Context(), "dc1", fmt.Sprintf("dc1:%s:18", h.Epoch), 3); !errors.Is(err, ErrCursorGone) {
			t.Errorf("before it: %v", err)
		}
		if err := l.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if hits := stored(t, st, changes, indexOrder); len(hits) != 1 {
			t.Errorf("after a sweep: %v", hits)
		}
	}
}

// TestUnpublishedOutcomesOfACrash: outcomes that were not published before a crash are published after it, and so are later
// ones, although the wall clock went back.
func TestUnpublishedOutcomesOfACrash(t *testing.T) {
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	defer st.Close()
	o := ledger.Options{CommittedTTL: 24 * time.Hour, PendingTTL: time.Hour}
	l := feedOn(t, st, o)
	recordKeys(t, l, "a")
	publish(t, l)
	// Another data centre is hours ahead, and so is this ledger's clock from then on.
	ahead := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: "other", Token: "t", State: api.StateCommitted, HLC: uint64(c.Now().Add(5*time.Hour).UnixMilli()) << 16,
		ExpiresIn: time.Minute, Result: answer(200, "other")}
	if _, err := l.Import(t.Context(), []ledger.FeedChange{ahead}, nil); err != nil {
		t.Fatal(err)
	}
	recordKeys(t, l, "b", "c")

	c.advance(-time.Hour)
	l = feedOn(t, st, o)
	l.batch.Store(1)
	recordKeys(t, l, "d")
	publish(t, l)
	recordKeys(t, l, "e")
	publish(t, l)
	got, _ := read(t, l, "", 2)
	wantKeys(t, "the feed", got, []string{"a", "b", "c", "d", "e"})
}

// TestOldOutcomesOfAConflict: an outcome of before there was an origin is published when it becomes one of a conflict, and
// hides no later one, although the wall clock went back.
func TestOldOutcomesOfAConflict(t *testing.T) {
	for _, back := range []time.Duration{0, time.Hour} {
		c := newClock()
		st := mem.New(mem.Options{Clock: c.Now})
		defer st.Close()
		o := ledger.Options{CommittedTTL: 24 * time.Hour}
		recordKeys(t, ledgerOn(t, st, o), "old", "older")
		c.advance(-back)
		l := feedOn(t, st, o)
		recordKeys(t, l, "a")
		publish(t, l)
		wins, loses := uint64(1), uint64(c.Now().Add(24*time.Hour).UnixMilli())<<16
		for i, key := range []string{"old", "older"} {
			at := [...]uint64{wins, loses}[i]
			change := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: key, Token: "theirs", State: api.StateCommitted, HLC: at, ExpiresIn: time.Hour, Result: answer(200, "other")}
			if _, err := l.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
				t.Fatal(err)
			}
			publish(t, l)
			h := headOf(t, st)
			if publish(t, l); *headOf(t, st) != *h {
				t.Errorf("clock back by %v: %s is published again", back, key)
			}
			recordKeys(t, l, "after-"+key)
			publish(t, l)
		}
		got, _ := read(t, l, "", 10)
		slices.Sort(got)
		wantKeys(t, fmt.Sprint("clock back by ", back), slices.Compact(got), []string{"a", "after-old", "after-older", "old", "older"})
	}
}

// TestDamagedFeed: a list and a page that cannot be read stop nothing else.
func TestDamagedFeed(t *testing.T) {
	st := sharedStore{mem.New(mem.Options{})}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	damage := func(c store.Collection, index string) {
		for _, h := range stored(t, st, c, index) {
			err := st.Update(t.Context(), func(tx store.Tx) error {
				return tx.Put(c, h.Key, []byte("\x01\x7fgarbage"), store.Entry{Index: index, SortKey: h.SortKey})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	recordTogether(t, l, "a", "b")
	damage(ledger.Outbox, indexOrder)
	recordTogether(t, l, "c", "d")
	publish(t, l)
	got, _ := read(t, l, "", 10)
	wantKeys(t, "after a damaged list", got, []string{"c", "d"})
	damage(changes, indexOrder)
	recordTogether(t, l, "e", "f")
	publish(t, l)
	got, _ = read(t, l, "", 10)
	wantKeys(t, "after a damaged page", got, []string{"e", "f"})
	if known := l.Options().Unreadable.Known(); len(known) != 2 {
		t.Errorf("reported: %v", known)
	}
}
