package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

// TestWhatSharesARequest: etcd evaluates all comparisons of a request before its changes, so two calls of which one
// changes what the other compares must not share one.
func TestWhatSharesARequest(t *testing.T) {
	const reads, changes = false, true
	one := func(key string, how bool) *call { return &call{keys: map[string]bool{key: how}, size: 1} }
	large := &call{keys: map[string]bool{"large": reads}, size: 1, beside: maxLarge}
	for name, c := range map[string]struct {
		limit int
		queue []*call
		want  []int // requests, by how many calls they have
	}{
		"different keys":     {9, []*call{one("a", changes), one("b", changes)}, []int{2}},
		"both read":          {9, []*call{one("a", reads), one("a", reads)}, []int{2}},
		"both change":        {9, []*call{one("a", changes), one("a", changes)}, []int{1, 1}},
		"change, then read":  {9, []*call{one("a", changes), one("a", reads)}, []int{1, 1}},
		"read, then change":  {9, []*call{one("a", reads), one("a", changes)}, []int{1, 1}},
		"others do not wait": {9, []*call{one("a", changes), one("a", changes), one("b", changes)}, []int{2, 1}},
		"too much":           {2, []*call{one("a", reads), one("b", reads), one("c", reads)}, []int{2, 1}},
		"one is too much":    {1, []*call{{size: 2}, {size: 2}}, []int{1, 1}},
		"too many":           {1000, slices.Repeat([]*call{one("a", reads)}, maxGrouped+1), []int{maxGrouped, 1}},
		"large ones":         {1000, slices.Repeat([]*call{large}, maxLarge+1), []int{maxLarge, 1}},
		"large first":        {1000, append([]*call{large}, slices.Repeat([]*call{one("a", reads)}, maxLarge)...), []int{maxLarge, 1}},
		"large after many":   {1000, append(slices.Repeat([]*call{one("a", reads)}, maxLarge), large), []int{maxLarge, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			life := batch.NewLife(t.Context())
			defer life.End()
			b := new(batcher)
			var got []int
			b.begin(life, testPatience, c.limit, func(_ context.Context, calls []*call) error {
				got = append(got, len(calls))
				return nil
			})
			b.Lanes = 1
			goOn := occupy(t, b)
			var wg sync.WaitGroup
			for i, next := range c.queue {
				wg.Go(func() {
					if err := b.do(t.Context(), next); err != nil {
						t.Error(err)
					}
				})
				eventually(t, "the call waits", func() bool { return b.Waiting() == i+1 })
			}
			goOn()
			wg.Wait()
			if !slices.Equal(got, c.want) {
				t.Errorf("requests of %v calls, want %v", got, c.want)
			}
		})
	}
}

// occupy lets no lane send anything until the function returned is called.
func occupy(t *testing.T, b *batcher) (goOn func()) {
	t.Helper()
	send, gate, entered := b.send, make(chan struct{}), make(chan struct{})
	blocker := new(call)
	b.Overdue = 0
	b.send = func(ctx context.Context, calls []*call) error {
		if calls[0] == blocker {
			entered <- struct{}{}
			<-gate
			return nil
		}
		return send(ctx, calls)
	}
	var wg sync.WaitGroup
	for range b.Lanes {
		wg.Go(func() {
			if err := b.do(context.Background(), blocker); err != nil {
				t.Errorf("the call that occupies a lane: %v", err)
			}
		})
		<-entered
	}
	return sync.OnceFunc(func() { close(gate); wg.Wait() })
}

// TestHangingRequest: requests at a member that hangs do not hold up the calls after them.
func TestHangingRequest(t *testing.T) {
	hang := make(chan struct{})
	sent := make(chan *call, 10)
	life := batch.NewLife(t.Context())
	b := new(batcher)
	b.begin(life, testPatience, 9, func(_ context.Context, calls []*call) error {
		for _, c := range calls {
			sent <- c
		}
		if calls[0].size == 0 {
			<-hang
		}
		return nil
	})
	hanging := make(chan error, maxFlights)
	for range maxFlights {
		go func() {
			hanging <- b.do(t.Context(), &call{})
		}()
		<-sent
	}
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if err := b.do(ctx, &call{size: 1}); err != nil {
		t.Error(err)
	}
	close(hang)
	for range maxFlights {
		if err := <-hanging; err != nil {
			t.Error(err)
		}
	}
	life.End()
}

// TestCallEndsWhileItWaits: it is never sent.
func TestCallEndsWhileItWaits(t *testing.T) {
	life := batch.NewLife(t.Context())
	b := new(batcher)
	b.begin(life, testPatience, 9, func(context.Context, []*call) error {
		t.Error("sent")
		return nil
	})
	goOn := occupy(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.do(ctx, &call{}) }()
	eventually(t, "the call waits", func() bool { return b.Waiting() == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || b.Waiting() > 0 {
		t.Errorf("error %v, %d wait", err, b.Waiting())
	}
	goOn()
	life.End()
}

// together runs updates whose commits wait for each other, unless they go alone, and then go as the batcher decides. It returns how many
// requests that took, without those of updates that ran again.
func together(t *testing.T, s *Store, fns ...func(store.Tx) error) (requests int) {
	t.Helper()
	requests, errs := atOnce(t, s, fns...)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	return requests
}

// atOnce is together for updates that may fail.
func atOnce(t *testing.T, s *Store, fns ...func(store.Tx) error) (requests int, errs []error) {
	t.Helper()
	b := &s.writes
	send := b.send
	var alone, waited, sent, requested atomic.Int64
	b.send = func(ctx context.Context, calls []*call) error {
		if n := int64(len(calls)); sent.Add(n)-n < waited.Load() {
			requested.Add(1)
		}
		return send(ctx, calls)
	}
	goOn := occupy(t, b)
	var wg sync.WaitGroup
	errs = make([]error, len(fns))
	for i, fn := range fns {
		wg.Go(func() {
			errs[i] = s.Update(t.Context(), fn)
			alone.Add(1)
		})
	}
	eventually(t, "all commits wait that do not go alone", func() bool { return b.Waiting()+int(alone.Load()) == len(fns) })
	waited.Store(int64(b.Waiting()))
	goOn()
	wg.Wait()
	return int(requested.Load()), errs
}

// TestCommitsInOneRequest: each is judged by itself. The first runs of all even ones meet a change that they had not
// seen.
func TestCommitsInOneRequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	const n = 40
	var fns []func(store.Tx) error
	var runs [n]atomic.Int64
	for i := range n {
		key := fmt.Sprint("k", i)
		fns = append(fns, func(tx store.Tx) error {
			_, err := tx.Get("c", key)
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if runs[i].Add(1) == 1 && i%2 == 0 {
				if _, err := s.c.Put(t.Context(), s.recordKey("c", key), string(encode(now(t, s), &overlay.Record{Value: []byte("other")}, ""))); err != nil {
					return err
				}
			}
			return tx.Put("c", key, []byte("mine"))
		})
	}
	if requests := together(t, s, fns...); requests != 1 {
		t.Errorf("%d requests", requests)
	}
	for i := range n {
		if got, want := runs[i].Load(), int64(2-i%2); got != want {
			t.Errorf("update %d ran %d times, want %d", i, got, want)
		}
	}
	if err := s.View(t.Context(), func(tx store.Tx) error {
		for i := range n {
			if v, err := tx.Get("c", fmt.Sprint("k", i)); err != nil || string(v) != "mine" {
				t.Errorf("record %d: %q, %v", i, v, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLargeCommitsInOneRequest: batches of records with index entries share a request, as large as the engine lets them be.
// A comparison that fails undoes nothing but its own commit.
func TestLargeCommitsInOneRequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	for _, records := range []int{64, maxOps - maxLarge - leastWithin - 1} {
		var fns []func(store.Tx) error
		var runs [maxLarge]atomic.Int64
		for i := range maxLarge {
			fns = append(fns, func(tx store.Tx) error {
				run := runs[i].Add(1)
				for k := range records {
					key := fmt.Sprint(records, "-", i, "-", k)
					if i == 0 && k == records-1 && run == 1 { // absent so far
						if _, err := s.c.Put(t.Context(), s.recordKey("c", key), string(encode(now(t, s), &overlay.Record{Value: []byte("other")}, ""))); err != nil {
							return err
						}
					}
					var entries []store.Entry
					for e := range 3 {
						entries = append(entries, store.Entry{Index: fmt.Sprint("i", e), SortKey: key})
					}
					if err := tx.Put("c", key, []byte("mine"), entries...); err != nil {
						return err
					}
				}
				return nil
			})
		}
		before, err := s.Len(t.Context(), "c", "i2")
		if err != nil {
			t.Fatal(err)
		}
		if requests := together(t, s, fns...); requests != 1 {
			t.Errorf("%d records each: %d requests", records, requests)
		}
		for i := range maxLarge {
			want := int64(1)
			if i == 0 {
				want = 2
			}
			if got := runs[i].Load(); got != want {
				t.Errorf("%d records each: update %d ran %d times, want %d", records, i, got, want)
			}
		}
		eventually(t, "all entries are there", func() bool {
			n, err := s.Len(t.Context(), "c", "i2")
			return err == nil && n == before+maxLarge*records
		})
	}
}

// TestSkewInOneRequest: two commits that each read what the other changes.
func TestSkewInOneRequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	take := func(own, other string) func(store.Tx) error {
		return func(tx store.Tx) error {
			if _, err := tx.Get("c", own); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if _, err := tx.Get("c", other); !errors.Is(err, store.ErrNotFound) {
				return err
			}
			return tx.Put("c", own, nil)
		}
	}
	together(t, s, take("a", "b"), take("b", "a"))
	if n, err := s.Len(t.Context(), "c", ""); err != nil || n != 1 {
		t.Errorf("%d records, %v; want 1", n, err)
	}
}

// TestManyChangesBesideOthers: with a call that has transactions inside, etcd would refuse those of all others.
func TestManyChangesBesideOthers(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	const many, others = 450, maxGrouped - 1
	fns := []func(store.Tx) error{func(tx store.Tx) error {
		var errs []error
		for i := range many {
			errs = append(errs, tx.Put("many", fmt.Sprint(i), nil))
		}
		return errors.Join(errs...)
	}}
	for i := range others {
		fns = append(fns, func(tx store.Tx) error { return tx.Put("one", fmt.Sprint(i), nil) })
	}
	together(t, s, fns...)
	for c, want := range map[store.Collection]int{"many": many, "one": others} {
		if n, err := s.Len(t.Context(), c, ""); err != nil || n != want {
			t.Errorf("%d records in %s, %v; want %d", n, c, err, want)
		}
	}
}

// TestCallerLeavesDuringACommit: the note of the commit is used again, else etcd would get a key for each.
func TestCallerLeavesDuringACommit(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	b := &s.writes
	send := b.send
	leave := make(chan context.CancelFunc, 1)
	b.send = func(ctx context.Context, calls []*call) error {
		(<-leave)()
		return send(ctx, calls)
	}
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		leave <- cancel
		if err := storetest.Put(ctx, s, "k", "v"); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		eventually(t, "the request has ended", b.Idle)
	}
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	if made := s.notes.session.notes; made > 5 {
		t.Errorf("%d notes", made)
	}
}
