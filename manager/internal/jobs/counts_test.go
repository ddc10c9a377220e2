package jobs

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// enter puts queued jobs into a store, as their index entries alone show them.
func enter(t *testing.T, st store.Store, function string, n int, change func(i int, r *record)) {
	t.Helper()
	for from := 0; from < n; from += 5000 {
		if err := st.Update(t.Context(), func(tx store.Tx) error {
			for i := from; i < min(from+5000, n); i++ {
				r := &record{Job: Job{ID: fmt.Sprintf("%s-%d", function, i), Function: function, State: Queued, RunAt: tx.Now(), FinishedAt: tx.Now()}}
				change(i, r)
				if err := tx.Put(colJobs, r.ID, []byte{1}, r.entries()...); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLongQueuesAreCounted: the counts of a long queue are exact up to MaxCounted and say so beyond it. The oldest job is
// found in each priority.
func TestLongQueuesAreCounted(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	q, err := New(st, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	enter(t, st, "a", 99_901, func(i int, r *record) {
		if i == 77 {
			r.Priority, r.RunAt = MinPriority, r.RunAt.Add(-time.Hour)
		}
	})
	enter(t, st, "b", MaxCounted+2000, func(i int, r *record) {
		switch {
		case i < MaxCounted:
		case i < MaxCounted+1000:
			r.Priority = -i + MaxCounted - 1
		default:
			r.Priority, r.RunAt = MinPriority, r.RunAt.Add(-time.Hour)
		}
	})
	dead := time.Now().Truncate(time.Microsecond).UTC()
	enter(t, st, "c", 20_000, func(i int, r *record) {
		r.State = Complete
		if i%2 == 0 {
			r.State, r.FinishedAt = Failed, dead.Add(-time.Duration(i)*time.Second)
		}
	})
	page, err := q.Functions(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range page.Functions {
		if hour := f.Oldest.Round(time.Hour) == time.Hour; hour != (i < 2) {
			t.Errorf("the oldest job of %s waits for %s", f.Name, f.Oldest)
		}
		page.Functions[i].Oldest, page.Functions[i].DeadAt = 0, f.DeadAt.UTC()
	}
	want := []Function{{Name: "a", Queued: 99_901}, {Name: "b", Queued: MaxCounted, AtLeast: true}, {Name: "c", Dead: 10_000, DeadAt: dead}}
	if !slices.Equal(page.Functions, want) {
		t.Errorf("got  %+v\nwant %+v", page.Functions, want)
	}
	// A dear count is used for a while.
	for range 2 {
		if _, err := q.Series(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if q.known.until.IsZero() {
		t.Error("each question counts all jobs")
	}
}

// TestSeriesAreBounded: functions that come late share a series, until others are idle.
func TestSeriesAreBounded(t *testing.T) {
	var r rates
	var all []Function
	for i := range MaxSeries + 5 {
		all = append(all, Function{Name: fmt.Sprint("f", i), Queued: 1 + i, Oldest: time.Duration(i)})
	}
	names := func(s []Series) (n []string) {
		for _, x := range s {
			n = append(n, x.Name)
		}
		return n
	}
	r.addAt("f0", rateEnqueued, 1000) // busy, with the shortest queue
	got := r.seriesAt(all, 1000)
	other := got[len(got)-1]
	if len(got) != MaxSeries+1 || other.Name != OtherFunctions || other.Queued != 2+3+4+5+6 || other.Oldest != 5 || !slices.Contains(names(got), "f0") || slices.Contains(names(got), "f1") {
		t.Fatalf("%d series, others %+v", len(got), other)
	}
	r.addAt("f1", rateFailed, 1000)
	r.addAt("f0", rateFailed, 1000)
	got = r.seriesAt(all, 1000)
	if other = got[len(got)-1]; other.Failed != 1 {
		t.Errorf("others %+v", other)
	}
	// An hour later f0 has nothing to do. It keeps its series, and the next time it loses them to f5, the longest queue without.
	all = all[1:]
	if got = r.seriesAt(all, 1000+idleSteps-1); !slices.Contains(names(got), "f0") {
		t.Error("f0 lost its series within an hour")
	}
	if got = r.seriesAt(all, 1000+idleSteps); slices.Contains(names(got), "f0") || !slices.Contains(names(got), "f5") {
		t.Errorf("an hour later: %v", names(got))
	}
}

// TestDamagedEntriesAreCountedAsNothing: the count continues after sort keys that no job has.
func TestDamagedEntriesAreCountedAsNothing(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	q, err := New(st, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := st.Update(t.Context(), func(tx store.Tx) error {
		for i := range 2 * leastPage {
			for _, key := range []string{"f\x00\xff", "f\x00q", "f\x00d1", "f\x00", "f"} {
				id := fmt.Sprintf("%q%d", key, i)
				if err := tx.Put(colJobs, id, []byte{1}, store.Entry{Index: idxFunction, SortKey: key}); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if f, err := q.Function(t.Context(), "f"); err != nil || f.Queued != 2*leastPage || f.Dead != 2*leastPage || f.Oldest < 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if page, err := q.Functions(t.Context(), 0, ""); err != nil || len(page.Functions) != 1 {
		t.Errorf("%+v, %v", page, err)
	}
}
