package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// What is not durable yet is not shown either when a frozen layer has it, or hides with it what is on disk.
func TestUndurableVersionsInAFrozenLayerAreNotShown(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	ctx := t.Context()
	mustUpdate(t, s, put("old", "1"))
	mustUpdate(t, s, put("gone", "1", store.Entry{Index: "other", SortKey: "g"}))
	mustUpdate(t, s, put("moved", "1", store.Entry{Index: "third", SortKey: "m"}))
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	g := newGate(fs, func(op faultfs.Op) bool { return isSync(op) && !ofState(op) })
	writer := start("the writer", func() error {
		return s.Update(ctx, func(tx store.Tx) error {
			return errors.Join(
				tx.Put(things, "new", []byte("2"), store.Entry{Index: byName, SortKey: "n"}),
				tx.Put(things, "moved", []byte("2"), store.Entry{Index: byName, SortKey: "m"}),
				tx.Delete(things, "gone"))
		})
	})
	<-g.entered
	flush := start("Flush", func() error { return s.Flush(ctx) })
	waitUntil(s, func() bool { return s.freeze.active })
	runs := make(chan struct{}, 10)
	look := func(what string, fn func(store.Tx) (string, error), want string) pending {
		return start(what, func() error {
			return s.View(ctx, func(tx store.Tx) error {
				defer func() { runs <- struct{}{} }()
				got, err := fn(tx)
				if err == nil && got != want {
					err = fmt.Errorf("got %s, want %s", got, want)
				}
				return err
			})
		})
	}
	record := func(key string) func(store.Tx) (string, error) {
		return func(tx store.Tx) (string, error) { return get(tx, key) }
	}
	hits := func(index string) func(store.Tx) (string, error) {
		return func(tx store.Tx) (string, error) {
			hits, err := tx.Scan(things, index, store.Range{Limit: 10})
			return fmt.Sprint(hits), err
		}
	}
	waiting := []pending{
		look("View of a new record", record("new"), "2"),
		look("View of a changed record", record("moved"), "2"),
		look("View of a deleted record", record("gone"), absent),
		look("Scan that finds new entries", hits(byName), "[{m moved} {n new}]"),
		look("Scan that misses a deleted entry", hits("other"), "[]"),
		look("Scan that misses a moved entry", hits("third"), "[]"),
	}
	for range waiting {
		<-runs
	}
	if v := mustGet(t, s, "old"); v != "1" {
		t.Errorf("a durable record is %q", v)
	}
	for _, p := range append(waiting, writer, flush) {
		select {
		case err := <-p.done:
			t.Errorf("%s returned %v before the sync", p.name, err)
			p.done <- err
		default:
		}
	}
	if n := s.StateSequence(); n != 3 {
		t.Errorf("the state has record %d, which is not durable", n)
	}
	g.release()
	for _, p := range append(waiting, writer, flush) {
		if err := <-p.done; err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	mustClose(t, s)
}

// A flush between the change of a secret and the end of Scrub does not keep the segment that has the secret.
func TestScrubWithAFlushInBetween(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, options(fs))
	mustUpdate(t, s, put("a", "a secret"))
	flush := func() {
		t.Helper()
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	err := s.Scrub(t.Context(), func(ctx context.Context) error {
		flush()
		err := s.Update(ctx, put("a", "sealed"))
		flush()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name string) bool { return bytes.Contains(fs.Content(name), []byte("a secret")) }
	for _, name := range fs.Names() {
		if !strings.HasPrefix(name, at+"/"+StateDir+"/") && secret(name) {
			t.Errorf("%s has the secret", name)
		}
	}
	mustClose(t, s) // which waits until Pebble has deleted old tables
	for _, name := range fs.Names() {
		if secret(name) {
			t.Errorf("after Close %s has the secret", name)
		}
	}
}
