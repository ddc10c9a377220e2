package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Unreadable tests an engine that stores something of its own with each record: what store.Tx promises about a record
// in which an edit from outside damaged that. The store is empty; damage does the edit.
func Unreadable(t *testing.T, s store.Store, damage func(c store.Collection, key string)) {
	e := &env{T: t, ctx: t.Context()}
	update := func(fn func(store.Tx) error) error { return s.Update(e.ctx, fn) }
	put := func(tx store.Tx, key, value string) error {
		return tx.Put(things, key, []byte(value), store.Entry{Index: byName, SortKey: key})
	}
	for _, key := range []string{"a", "bad", "c"} {
		e.update(s, func(tx store.Tx) error { return put(tx, key, "1") })
	}
	damage(things, "bad")
	isBad := func(err error) bool {
		var u *store.UnreadableError
		return errors.As(err, &u) && errors.Is(err, store.ErrUnreadable) && u.Collection == things && u.Key == "bad" && u.Reason != ""
	}
	look := func(tx store.Tx) error {
		if _, err := tx.Get(things, "bad"); !isBad(err) {
			return fmt.Errorf("get: %w", err)
		}
		if v, err := tx.Get(things, "a"); err != nil || string(v) == "undone" {
			return fmt.Errorf("get of another record after it: %q, %w", v, err)
		}
		return nil
	}
	if err := s.View(t.Context(), look); err != nil {
		t.Errorf("View: %v", err)
	}
	scan := func(r store.Range) func(store.Tx) error {
		return func(tx store.Tx) error {
			hits, err := tx.Scan(things, byName, r)
			if err == nil && len(hits) != 3 {
				t.Errorf("scanned %v", hits)
			}
			return err
		}
	}
	// The rest of the transaction takes effect.
	for name, before := range map[string]func(store.Tx) error{
		"plain":      func(store.Tx) error { return nil },
		"prefetched": func(tx store.Tx) error { return tx.Prefetch(idsOf("bad", "a")) },
		"scanned":    scan(store.Range{Limit: 10}),
		"claimed":    scan(store.Range{Limit: 10, Claim: true}),
	} {
		err := update(func(tx store.Tx) error {
			if err := before(tx); err != nil {
				return err
			}
			if err := look(tx); err != nil {
				return err
			}
			return put(tx, "a", name)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		e.want(s, "a", name)
	}
	// The record is not replaced, whether or not the function has read it before.
	for name, fn := range map[string]func(store.Tx) error{
		"unseen": func(tx store.Tx) error { _ = put(tx, "bad", "new"); return put(tx, "a", "undone") },
		"seen": func(tx store.Tx) error {
			_, _ = tx.Get(things, "bad")
			_ = put(tx, "bad", "new")
			return put(tx, "a", "undone")
		},
		"claimed": func(tx store.Tx) error {
			_ = put(tx, "bad", "new")
			if _, err := tx.Scan(things, byName, store.Range{Limit: 10, Claim: true}); err != nil {
				return err
			}
			return put(tx, "a", "undone")
		},
	} {
		if err := update(fn); !isBad(err) {
			t.Errorf("a Put over it, %s: %v", name, err)
		}
		if err := s.View(t.Context(), look); err != nil {
			t.Errorf("after a Put over it, %s: %v", name, err)
		}
	}
	// Once deleted, it can be replaced.
	if err := update(func(tx store.Tx) error { return errors.Join(tx.Delete(things, "bad"), put(tx, "bad", "2")) }); err != nil {
		t.Errorf("Delete and Put: %v", err)
	}
	damage(things, "bad")
	e.delete(s, "bad")
	e.update(s, func(tx store.Tx) error {
		if _, err := tx.Get(things, "bad"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("deleted: %v", err)
		}
		return nil
	})
	if n, err := s.Len(t.Context(), things, ""); err != nil || n != 2 {
		t.Errorf("%d records, %v", n, err)
	}
	if err := update(func(tx store.Tx) error { return put(tx, "bad", "again") }); err != nil {
		t.Errorf("a new record of the key: %v", err)
	}
}
