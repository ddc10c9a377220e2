package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestGuessReadsNothing: records that are new, and those that this manager inserted, are not read before they are written.
// After a guess that was wrong the next transactions read, and later ones guess again.
func TestGuessReadsNothing(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	var reads atomic.Int64
	send := s.reads.send
	s.reads.send = func(ctx context.Context, calls []*call) error {
		reads.Add(1)
		return send(ctx, calls)
	}
	write := func(key, want, value string) (read bool) {
		t.Helper()
		before := reads.Load()
		err := s.Update(t.Context(), func(tx store.Tx) error {
			if err := tx.PrefetchNew([]store.ID{{Collection: "things", Key: key}}); err != nil {
				return err
			}
			got, err := tx.Get("things", key)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if string(got) != want && reads.Load() > before {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
			return tx.Put("things", key, []byte(value), store.Entry{Index: "by", SortKey: value})
		})
		if err != nil {
			t.Fatal(err)
		}
		return reads.Load() > before
	}
	if write("a", "", "1") || write("a", "1", "2") {
		t.Error("a new record was read, or one that was inserted here")
	}
	if !write("a", "2", "3") {
		t.Error("a record that is there was written without having been read")
	}
	for i := range cautious {
		if !write(fmt.Sprint("b", i), "", "1") {
			t.Errorf("transaction %d after a wrong guess did not read", i)
		}
	}
	if write("c", "", "1") {
		t.Error("no transaction guesses any more after a wrong guess")
	}
}

// TestRecentIsBounded: what is remembered has a bound, and the oldest goes first.
func TestRecentIsBounded(t *testing.T) {
	var r recent
	for i := range 3 * maxRecent {
		r.add([]wrote{{key: fmt.Sprint(i), kv: &mvccpb.KeyValue{Key: []byte(fmt.Sprint(i))}}}, int64(i))
		if i%3 == 0 {
			r.take(fmt.Sprint(i))
		}
	}
	if len(r.records) > maxRecent {
		t.Errorf("%d records are remembered, at most %d", len(r.records), maxRecent)
	}
	if kv := r.take(fmt.Sprint(3*maxRecent - 1)); kv == nil || kv.ModRevision != 3*maxRecent-1 {
		t.Errorf("the newest is %v", kv)
	}
	if kv := r.take("1"); kv != nil {
		t.Errorf("the oldest is still there: %v", kv)
	}
}
