package jobs

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// counted counts what takes a round trip, and bytes that come back, where the
// store is on another machine.
type counted struct {
	store.Store
	trips, bytes atomic.Int64
}

func (c *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	return c.Store.Update(ctx, func(tx store.Tx) error { return fn(countedTx{tx, c}) })
}

type countedTx struct {
	store.Tx
	c *counted
}

func (t countedTx) Get(c store.Collection, key string) ([]byte, error) {
	b, err := t.Tx.Get(c, key)
	t.c.trips.Add(1)
	t.c.bytes.Add(int64(len(b)))
	return b, err
}

func (t countedTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	hits, err := t.Tx.Scan(c, index, r)
	t.c.trips.Add(1)
	for _, h := range hits {
		t.c.bytes.Add(int64(len(h.SortKey) + len(h.Key)))
	}
	return hits, err
}

// TestClaimsFollowOtherManagersPauses: a claim searches where the paused functions that were read last allow it, but
// takes nothing that is not allowed now.
func TestClaimsFollowOtherManagersPauses(t *testing.T) {
	t.Parallel()
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	var queues []*Queue
	for range 2 {
		q, err := New(st, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		queues = append(queues, q)
	}
	q, other := queues[0], queues[1]
	for range 8 {
		enqueue(t, q, "a")
		enqueue(t, q, "b")
	}
	claim := func(want string, functions ...string) {
		t.Helper()
		jobs, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: functions})
		got := ""
		for _, j := range jobs {
			got += j.Function
		}
		if err != nil || got != want {
			t.Fatalf("claimed %q, %v, want %q", got, err, want)
		}
	}
	for range 2 {
		claim("a")
		claim("a", "a")
		if err := other.Pause(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		claim("", "a")
		claim("", "a")
		claim("b")
		claim("b", "b")
		if err := other.Pause(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		claim("")
		claim("", "b")
		for _, f := range []string{"a", "b"} {
			if err := other.Resume(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestClaimsKnowSettingsApart: a submitter proposes the id of a job that was deleted again. The settings changed with both
// submissions, and in between.
func TestClaimsKnowSettingsApart(t *testing.T) {
	t.Parallel()
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	var queues []*Queue
	for range 2 {
		q, err := New(st, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		queues = append(queues, q)
	}
	q, other := queues[0], queues[1]
	pause := func(function string) {
		t.Helper()
		if err := other.Pause(t.Context(), function); err != nil {
			t.Fatal(err)
		}
	}
	propose := func(function string) {
		t.Helper()
		if _, err := other.Enqueue(t.Context(), Submission{ID: "x", Function: function, ConcurrencyKey: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range manySettings {
		pause(fmt.Sprint("p", i))
	}
	propose("a")
	for range 3 { // the settings are cached
		if _, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"none"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Delete(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	enqueue(t, other, "b")
	pause("b")
	propose("c")
	got, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"b"}})
	if err != nil || len(got) > 0 {
		t.Errorf("claimed %d jobs of a paused function, %v", len(got), err)
	}
}

// TestPausedFunctionsDoNotSlowClaims: thousands of functions are paused, each with
// a few jobs that wait.
func TestPausedFunctionsDoNotSlowClaims(t *testing.T) {
	t.Parallel()
	const paused = 5000
	st := &counted{Store: mem.New(mem.Options{})}
	t.Cleanup(func() { _ = st.Close() })
	q, err := New(st, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	names := make([]string, paused)
	for i := range names {
		names[i] = fmt.Sprintf("mail.customer-%04d", i)
		for range 3 {
			enqueue(t, q, names[i])
		}
	}
	if err := st.Update(t.Context(), func(tx store.Tx) error {
		all := make(settings, len(names))
		for i, name := range names {
			all[i] = setting{name: name, paused: time.UnixMicro(1).UTC()}
		}
		return all.save(tx)
	}); err != nil {
		t.Fatal(err)
	}
	claim := func(want int, functions ...string) (trips, bytes int64) {
		t.Helper()
		trips, bytes = st.trips.Load(), st.bytes.Load()
		jobs, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: functions})
		if err != nil || len(jobs) != want {
			t.Fatalf("%d jobs, %v", len(jobs), err)
		}
		return st.trips.Load() - trips, st.bytes.Load() - bytes
	}
	for range 2 { // what is kept about paused functions is complete
		claim(0)
	}
	for range 3 {
		enqueue(t, q, "open")
	}
	if trips, bytes := claim(1, "open"); trips > 8 || bytes > 4<<10 {
		t.Errorf("a claim of one function: %d round trips for %d bytes", trips, bytes)
	}
	if trips, bytes := claim(1); trips > 30 || bytes > 2<<20 {
		t.Errorf("a claim of any function: %d round trips for %d bytes", trips, bytes)
	}
	// What is kept is never acted on when it is not true any more.
	if err := q.Pause(t.Context(), "open"); err == nil {
		t.Error("more than MaxSettings functions are paused")
	}
	if err := q.Resume(t.Context(), "mail.customer-4000"); err != nil {
		t.Fatal(err)
	}
	claim(1, "mail.customer-4000")
	if err := q.Pause(t.Context(), "mail.customer-4000"); err != nil {
		t.Fatal(err)
	}
	claim(0, "mail.customer-4000")
	other, err := New(st, Options{}) // another manager
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	for range 2 {
		if err := other.Resume(t.Context(), "mail.customer-4001"); err != nil {
			t.Fatal(err)
		}
		claim(1, "mail.customer-4001")
		if err := other.Pause(t.Context(), "mail.customer-4001"); err != nil {
			t.Fatal(err)
		}
		claim(0, "mail.customer-4001")
	}
}
