package downtime_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		dir := t.TempDir()
		return func(t *testing.T) store.Store {
			st, err := mem.Open(t.Context(), dir, mem.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := downtime.New(st, downtime.Options{Leases: []store.Leases{leasesOf("one")}})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}

// A test's lease is a record with the times of its beginning and its end, in
// milliseconds, under the latter in index "end".

func leaseRecord(begun, end time.Time) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(begun.UnixMilli()))
	return binary.BigEndian.AppendUint64(b, uint64(end.UnixMilli()))
}

func leaseTimes(value []byte) (begun, end time.Time) {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(value))), time.UnixMilli(int64(binary.BigEndian.Uint64(value[8:])))
}

func putLease(tx store.Tx, c store.Collection, key string, begun, end time.Time) error {
	value := leaseRecord(begun, end)
	return tx.Put(c, key, value, store.Entry{Index: "end", SortKey: string(value[8:])})
}

func leasesOf(c store.Collection) store.Leases {
	return store.Leases{Name: string(c), Collection: c, Index: "end", Extend: func(tx store.Tx, key string, value []byte, away store.Away) (bool, error) {
		begun, end := leaseTimes(value)
		end, later := away.Extend(begun, end, end.Sub(begun))
		if !later {
			return false, nil
		}
		return true, putLease(tx, c, key, begun, end)
	}}
}

// world is one store's data with the managers that come and go.
type world struct {
	*testing.T
	engine  store.Store
	now     atomic.Int64 // Unix milliseconds
	bubble  bool         // the time is that of a bubble of synctest instead
	reports []downtime.Report
	// allowed is how many transactions of the engine continue before it fails as
	// one does whose process is killed.
	allowed atomic.Int64
	refusal error // of every Update, if not nil
}

var errKilled = errors.New("killed")

// mortal is the engine as a manager sees it that may be killed.
type mortal struct {
	store.Store
	w      *world
	shared bool
}

func (m mortal) Update(ctx context.Context, fn func(store.Tx) error) error {
	if m.w.allowed.Add(-1) < 0 {
		return errKilled
	}
	if m.w.refusal != nil {
		return m.w.refusal
	}
	return m.Store.Update(ctx, fn)
}

func (m mortal) Capabilities() store.Capabilities {
	caps := m.Store.Capabilities()
	caps.Shared = m.shared
	return caps
}

func newWorld(t *testing.T) *world {
	w := &world{T: t}
	w.now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	w.allowed.Store(1 << 60)
	w.engine = mem.New(mem.Options{Clock: w.time})
	t.Cleanup(func() { _ = w.engine.Close() })
	return w
}

func (w *world) time() time.Time {
	if w.bubble {
		return time.Now()
	}
	return time.UnixMilli(w.now.Load())
}

func (w *world) advance(d time.Duration) {
	if w.bubble {
		time.Sleep(d)
	} else {
		w.now.Add(d.Milliseconds())
	}
}

// wait lets d pass. A manager that is to be killed is killed then.
func (w *world) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if w.allowed.Load() == 0 {
		return errKilled
	}
	w.advance(d)
	return nil
}

// manager makes a manager that has not started, and waits for the given time.
func (w *world) manager(shared bool, wait func(context.Context, time.Duration) error) *downtime.Store {
	return downtime.New(mortal{w.engine, w, shared}, downtime.Options{
		Leases: []store.Leases{leasesOf("one"), leasesOf("two")}, Clock: w.time, Wait: wait,
		OnExtended: func(r downtime.Report) { w.reports = append(w.reports, r) },
	})
}

func (w *world) started(shared bool) *downtime.Store {
	w.Helper()
	s := w.manager(shared, w.wait)
	if err := s.Start(w.Context()); err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) lease(s store.Store, key string, d time.Duration) {
	w.Helper()
	for _, c := range []store.Collection{"one", "two"} {
		if err := s.Update(w.Context(), func(tx store.Tx) error {
			return putLease(tx, c, key, tx.Now(), tx.Now().Add(d))
		}); err != nil {
			w.Fatal(err)
		}
	}
}

// left is the time that a lease has left, as a transaction of s sees it.
func (w *world) left(s store.Store, c store.Collection, key string) time.Duration {
	w.Helper()
	var left time.Duration
	if err := s.View(w.Context(), func(tx store.Tx) error {
		value, err := tx.Get(c, key)
		if err != nil {
			return err
		}
		_, end := leaseTimes(value)
		left = end.Sub(tx.Now())
		return nil
	}); err != nil {
		w.Fatal(err)
	}
	return left
}

// wantLeft allows for some more than was left.
func (w *world) wantLeft(s store.Store, key string, want time.Duration) {
	w.Helper()
	for _, c := range []store.Collection{"one", "two"} {
		if got := w.left(s, c, key); got < want || got > want+5*time.Second {
			w.Errorf("lease %s of %s has %v left, want %v", key, c, got, want)
		}
	}
}

// A manager was away for an hour.
func TestStartGivesBackTheDowntime(t *testing.T) {
	w := newWorld(t)
	s := w.started(false)
	w.lease(s, "over", 5*time.Second)
	w.lease(s, "alive", 20*time.Second)
	w.lease(s, "long", 10*time.Hour)
	for range 10 { // as long as it runs time counts
		w.advance(time.Second)
		if err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.advance(time.Hour)
	s = w.started(false)
	w.wantLeft(s, "over", -time.Hour-6*time.Second) // and the extension took time
	w.wantLeft(s, "alive", 10*time.Second)
	w.wantLeft(s, "long", 10*time.Hour-10*time.Second)
	if r := w.reports; len(r) != 1 || r[0].Extended["one"] != 2 || r[0].Extended["two"] != 2 {
		t.Errorf("reports: %+v", r)
	}
}

// A manager that starts and ends all the time gives no more than
// one that does it once.
func TestManyStartsGiveNoMoreThanOne(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w := newWorld(t)
		w.lease(w.started(shared), "a", 10*time.Second)
		for i := range 1000 {
			w.advance(20 * time.Millisecond)
			s := w.started(shared)
			if i%3 == 0 && !shared {
				if err := s.Beat(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := 9 * time.Second
		if shared {
			want -= downtime.SharedGap // of which the last part was shorter than that
		}
		if got := w.left(w.started(shared), "two", "a"); got < want || got > 12*time.Second {
			t.Errorf("shared %v: %v left", shared, got)
		}
	}
}

// A lease that was given out after a downtime does not end in the next one, however soon that follows.
func TestDowntimeSoonAfterADowntime(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, kill := range []bool{false, true} {
			w := newWorld(t)
			w.lease(w.started(shared), "old", time.Hour)
			w.advance(time.Minute)
			s := w.started(shared)
			w.advance(50 * time.Millisecond)
			w.lease(s, "young", 200*time.Millisecond)
			w.advance(time.Minute)
			if kill {
				s = w.started(shared)
			}
			w.wantLeft(s, "young", 200*time.Millisecond)
			w.wantLeft(s, "old", time.Hour-50*time.Millisecond)
		}
	}
}

// A caller may leave while leases are extended. The next one waits for the rest of the time.
func TestCallersThatLeaveDuringAnExtension(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w := newWorld(t)
		leaves := true
		s := w.manager(shared, func(ctx context.Context, d time.Duration) error {
			if d > 0 && leaves {
				leaves = false
				return context.Canceled
			}
			return w.wait(ctx, d)
		})
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.lease(s, "old", time.Hour)
		w.advance(time.Minute)
		if err := s.View(t.Context(), func(store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Fatalf("the call during which its caller left: %v", err)
		}
		w.lease(s, "young", 100*time.Millisecond)
		w.advance(time.Minute)
		w.wantLeft(s, "young", 100*time.Millisecond)
		w.wantLeft(s, "old", time.Hour)
	}
}

// TestIdleWritesNothing: while nothing is leased out there is no beat, and so
// the last one is old when there is something again.
func TestIdleWritesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.started(false)
	w.lease(s, "a", time.Minute)
	if err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []store.Collection{"one", "two"} {
		if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.Delete(c, "a") }); err != nil {
			t.Fatal(err)
		}
	}
	before, err := w.engine.Len(t.Context(), "downtime", "")
	if err != nil {
		t.Fatal(err)
	}
	for range 3600 {
		w.advance(time.Second)
		if err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.lease(s, "b", time.Minute)
	w.advance(30 * time.Second)
	s = w.started(false)
	w.wantLeft(s, "b", time.Minute)
	if after, _ := w.engine.Len(t.Context(), "downtime", ""); before != 1 || after != 1 {
		t.Errorf("%d and %d records, want the beat alone", before, after)
	}
}

// Without a beat, leases get their whole time.
func TestLeasesWithoutABeat(t *testing.T) {
	w := newWorld(t)
	w.lease(w.engine, "a", time.Minute)
	w.advance(time.Hour)
	w.wantLeft(w.started(false), "a", time.Minute)
	w.advance(time.Hour)
	w.lease(w.engine, "b", time.Minute) // long after the last beat
	w.advance(time.Hour)
	s := w.started(false)
	w.wantLeft(s, "b", time.Minute)
}

// TestCrashAtAnyPoint kills the manager in each transaction of an extension, and
// again in what it does after that. However often, every lease has at least the
// time that it had left, and little more.
func TestCrashAtAnyPoint(t *testing.T) {
	const leases, every = 2500, time.Second // 7 pieces of each of two kinds
	for _, shared := range []bool{false, true} {
		for kill := range int64(20) {
			w := newWorld(t)
			s := w.started(shared)
			left := make(map[string]time.Duration)
			for _, c := range []store.Collection{"one", "two"} {
				if err := s.Update(t.Context(), func(tx store.Tx) error {
					for i := range leases {
						key := fmt.Sprint(i)
						left[key] = time.Duration(i-20)*every + time.Duration(rand.IntN(1000))*time.Millisecond
						if err := putLease(tx, c, key, tx.Now().Add(-time.Minute), tx.Now().Add(left[key])); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			killed := 0
			for try := int64(0); ; try++ {
				w.advance(time.Duration(20+rand.IntN(3000)) * time.Second)
				w.allowed.Store(kill + try%7)
				err := w.manager(shared, w.wait).Start(t.Context())
				if err == nil {
					break
				}
				if !errors.Is(err, errKilled) {
					t.Fatal(err)
				}
				if killed++; killed > 12 {
					break
				}
			}
			w.allowed.Store(1 << 60)
			s = w.started(shared)
			if kill == 0 && killed < 2 {
				t.Fatalf("killed %d times", killed)
			}
			for i := 21; i < leases; i++ {
				key := fmt.Sprint(i)
				if got := w.left(s, "two", key); got < left[key] || got > left[key]+5*time.Second {
					t.Fatalf("shared %v, killed in transaction %d: lease %s has %v left, had %v", shared, kill, key, got, left[key])
				}
			}
			for i := range 20 {
				if got := w.left(s, "one", fmt.Sprint(i)); got > 0 {
					t.Fatalf("shared %v, killed in transaction %d: lease %d, over before, has %v left", shared, kill, i, got)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// A manager that stood still finds out with the first transaction, and
// no caller sees anything run out.
func TestStandstillRunsNothingOut(t *testing.T) {
	w := newWorld(t)
	s := w.started(false)
	w.lease(s, "a", 10*time.Second)
	for range 20 {
		w.advance(250 * time.Millisecond)
		w.left(s, "one", "a")
	}
	if len(w.reports) != 0 {
		t.Fatalf("there was no gap: %+v", w.reports)
	}
	w.advance(time.Hour)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() { w.wantLeft(s, "a", 5*time.Second) })
	}
	callers.Wait()
	if len(w.reports) != 1 {
		t.Errorf("reports: %+v", w.reports)
	}
	// It is not killed by a caller who leaves in the middle.
	w.advance(time.Hour)
	w.allowed.Store(1)
	if err := s.View(t.Context(), func(store.Tx) error { return nil }); !errors.Is(err, errKilled) {
		t.Error(err)
	}
	w.allowed.Store(1 << 60)
	w.wantLeft(s, "a", 5*time.Second)
}

// TestClocksSetBack make nothing run out, and the next gap is one again.
func TestClocksSetBack(t *testing.T) {
	w := newWorld(t)
	s := w.started(false)
	w.lease(s, "a", 10*time.Second)
	w.advance(-time.Hour)
	w.wantLeft(s, "a", time.Hour+10*time.Second)
	w.lease(s, "b", 10*time.Second)
	w.advance(time.Hour)
	w.wantLeft(s, "b", 10*time.Second)
	w.advance(-time.Hour)
	s = w.started(false)
	w.wantLeft(s, "b", time.Hour+9*time.Second) // the start took time
}
