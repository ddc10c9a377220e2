package jobs_test

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/metered"
)

// TestStartReadsLittle: what a start and its first duties read does not grow with the jobs, whether they wait, are finished
// or are dead letters.
func TestStartReadsLittle(t *testing.T) {
	const each, functions, most = 1500, 10, 1000
	st := metered.New(mem.New(mem.Options{}))
	t.Cleanup(func() { _ = st.Close() })
	start := func() *jobs.Queue {
		q, err := jobs.New(st, jobs.Options{DeadCount: each})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		return q
	}
	q := start()
	add := func(function string) {
		t.Helper()
		if _, err := q.Enqueue(t.Context(), jobs.Submission{Function: function, Payload: []byte(`1`), Owner: "o"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * each {
		add(fmt.Sprint("over", i%functions))
		claimed, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w"})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("%d jobs, %v", len(claimed), err)
		}
		f := jobs.Finish{ID: claimed[0].ID, Token: claimed[0].Lease.Token, State: jobs.Complete}
		if i%functions != 0 {
			f.State = jobs.Failed
		}
		if _, err := q.Finish(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	for i := range each {
		add(fmt.Sprint("waiting", i%functions))
	}
	st.Reads()
	q = start()
	if did, err := q.RunDuties(t.Context()); err != nil || did.Purged > 0 {
		t.Fatalf("%+v, %v", did, err)
	}
	if removed, err := q.CountBytes(t.Context()); err != nil || removed > 0 {
		t.Fatalf("%d, %v", removed, err)
	}
	n := st.Reads()
	t.Logf("read %d", n)
	if n > most {
		t.Errorf("a start with %d jobs read %d records and hits, want at most %d", 3*each, n, most)
	}
	if err := jobs.CheckSums(t.Context(), q); err != nil {
		t.Error(err)
	}
}
