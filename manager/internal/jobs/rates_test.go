package jobs_test

import (
	"errors"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestRatesOfTheLastMinute(t *testing.T) {
	q, err := jobs.New(mem.New(mem.Options{}), jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, key := range []string{"a", "b", "c"} {
		if _, err := q.Enqueue(t.Context(), jobs.Submission{Function: "f", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	if j, err := q.Holder(t.Context(), "b"); err != nil || j.Key != "b" {
		t.Errorf("holder of b: %+v, %v", j, err)
	}
	got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Limit: 2})
	if err != nil || len(got) != 2 {
		t.Fatal(len(got), err)
	}
	for i, state := range []jobs.State{jobs.Complete, jobs.Failed} {
		if _, err := q.Finish(t.Context(), jobs.Finish{ID: got[i].ID, Token: got[i].Lease.Token, State: state}); err != nil {
			t.Fatal(err)
		}
	}
	if r := q.LastMinute("f"); r != (jobs.Rates{Enqueued: 3, Claimed: 2, Completed: 1, Failed: 1}) {
		t.Errorf("%+v", r)
	}
	if r := q.LastMinute("g"); r != (jobs.Rates{}) {
		t.Errorf("of a function without jobs: %+v", r)
	}
	if _, err := q.Holder(t.Context(), got[0].Key); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("holder of a finished job's key: %v", err)
	}
}
