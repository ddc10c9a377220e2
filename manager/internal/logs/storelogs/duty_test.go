package storelogs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// lagging is a store whose index of entries still leads to those that were deleted, as that of a shared engine may.
type lagging struct {
	store.Store
	seen []store.Hit
}

type behindTx struct {
	store.Tx
	*lagging
}

func (b *lagging) Update(ctx context.Context, fn func(store.Tx) error) error {
	return b.Store.Update(ctx, func(tx store.Tx) error { return fn(&behindTx{tx, b}) })
}

func (b *lagging) View(ctx context.Context, fn func(store.Tx) error) error {
	return b.Store.View(ctx, func(tx store.Tx) error { return fn(&behindTx{tx, b}) })
}

func (t *behindTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	hits, err := t.Tx.Scan(c, index, r)
	if c == entries && err == nil && r.After == nil {
		for _, h := range t.seen {
			if len(hits) == 0 || h.SortKey < hits[0].SortKey {
				hits = append([]store.Hit{h}, hits...)
			}
		}
		hits = hits[:min(len(hits), max(r.Limit, 1))]
	}
	return hits, err
}

func openIdle(t *testing.T, st store.Store, elapsed func() time.Duration) *Engine {
	t.Helper()
	e, err := Open(t.Context(), st, Options{DutyEvery: time.Hour, Elapsed: elapsed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// Retention counts no entry that is gone already, even if the index still leads to it.
func TestRetentionLooksBehindItsIndex(t *testing.T) {
	st := &lagging{Store: mem.New(mem.Options{})}
	var now time.Duration
	e := openIdle(t, st, func() time.Duration { return now })
	if _, _, err := e.Put(t.Context(), "l", logs.Change{Retain: new(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	write := func() {
		t.Helper()
		if _, err := e.Append(t.Context(), "l", []logs.Item{{Payload: make([]byte, 1000)}}, false); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if err := st.View(t.Context(), func(tx store.Tx) (err error) {
		st.seen, err = tx.Scan(entries, order, store.Range{Limit: 1})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for range 20 { // a longer gap would count as downtime
		now += 5 * time.Second
		if err := e.tick(); err != nil {
			t.Fatal(err)
		}
	}
	write()
	for range 3 {
		e.duty("l")
	}
	if info, err := e.Get(t.Context(), "l"); err != nil || info.First != 2 || info.DiskBytes < 1000 || info.DiskBytes > 2000 {
		t.Errorf("the log begins with %d and has %d bytes, %v; want entry 2, which has some more than 1000", info.First, info.DiskBytes, err)
	}
}

// What a manager knows of a log goes with the log, also when another manager deletes it.
func TestDeletedLogIsForgotten(t *testing.T) {
	st := mem.New(mem.Options{})
	began := time.Now()
	elapsed := func() time.Duration { return time.Since(began) }
	e, other := openIdle(t, st, elapsed), openIdle(t, st, elapsed)
	known := func(e *Engine) int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.lines)
	}
	for _, name := range []string{"a", "b"} {
		if _, _, err := e.Put(t.Context(), name, logs.Change{}); err != nil {
			t.Fatal(err)
		}
		for _, e := range []*Engine{e, other} {
			if _, err := e.Append(t.Context(), name, []logs.Item{{Payload: []byte("x")}}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); known(e) != 1 || known(other) != 1; time.Sleep(time.Millisecond) {
		e.duties()
		other.duties()
		if time.Now().After(end) {
			t.Fatalf("of 1 log that is left, the managers know %d and %d", known(e), known(other))
		}
	}
}

// A writer too many is refused, and one that is removed makes room.
func TestWritersAreBounded(t *testing.T) {
	e := openIdle(t, mem.New(mem.Options{}), nil)
	if _, _, err := e.Put(t.Context(), "l", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	for i := range logs.MaxWriters {
		if _, err := e.OpenWriter(t.Context(), "l", fmt.Sprint("pod", i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := e.OpenWriter(t.Context(), "l", "one more"); codeOf(err) != "too-many-writers" {
		t.Errorf("a writer too many: %v", err)
	}
	if err := e.RemoveWriter(t.Context(), "l", "pod1"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.OpenWriter(t.Context(), "l", "one more"); err != nil {
		t.Error(err)
	}
}

// unreadable is a store that cannot read the heads of logs.
type unreadable struct{ store.Store }

type unreadableTx struct{ store.Tx }

func (u unreadable) View(ctx context.Context, fn func(store.Tx) error) error {
	return u.Store.View(ctx, func(tx store.Tx) error { return fn(unreadableTx{tx}) })
}

func (t unreadableTx) Get(c store.Collection, key string) ([]byte, error) {
	if c == heads {
		return nil, &store.UnreadableError{Collection: c, Key: key, Reason: "test"}
	}
	return t.Tx.Get(c, key)
}

// A log whose head cannot be read does not keep the others from being opened.
func TestOpenWithAnUnreadableHead(t *testing.T) {
	st := mem.New(mem.Options{})
	e := openIdle(t, st, nil)
	if _, _, err := e.Put(t.Context(), "l", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	openIdle(t, unreadable{st}, nil)
}

// stubborn is a store in which no window's record can be read, and index entries stay when their records are deleted.
type stubborn struct{ store.Store }

type stubbornTx struct{ store.Tx }

func (s stubborn) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(stubbornTx{tx}) })
}

func (t stubbornTx) Get(c store.Collection, key string) ([]byte, error) {
	if c == windows {
		return nil, &store.UnreadableError{Collection: c, Key: key, Reason: "test"}
	}
	return t.Tx.Get(c, key)
}

func (t stubbornTx) Delete(c store.Collection, key string) error {
	if c == windows || c == entries {
		return nil
	}
	return t.Tx.Delete(c, key)
}

// What cannot be read of a deleted log keeps neither the rest of it nor another deleted log.
func TestDamagedLogsAreBuried(t *testing.T) {
	st := mem.New(mem.Options{})
	e := openIdle(t, st, nil)
	for _, name := range []string{"a", "b"} {
		if _, _, err := e.Put(t.Context(), name, logs.Change{}); err != nil {
			t.Fatal(err)
		}
		for i := range 2 * maxDelete {
			if _, err := e.Append(t.Context(), name, []logs.Item{{ID: fmt.Sprint(i), Payload: []byte("x")}}, false); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	e.st = stubborn{st}
	e.duties()
	if n, err := st.Len(t.Context(), graves, ""); err != nil || n != 0 {
		t.Errorf("%d deleted logs are left, %v", n, err)
	}
}
