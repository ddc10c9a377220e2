package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// refusingStore fails its next changes with the errors listed, nil lets one through.
type refusingStore struct {
	store.Store
	errs []error
}

func (s *refusingStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if len(s.errs) > 0 {
		err := s.errs[0]
		if s.errs = s.errs[1:]; err != nil {
			return err
		}
	}
	return s.Store.Update(ctx, fn)
}

// TestFinishesThatAreSplit: when they are too large for one transaction, each has its own outcome. One that fails does
// not hide that others were done.
func TestFinishesThatAreSplit(t *testing.T) {
	s := &refusingStore{Store: mem.New(mem.Options{})}
	q, err := jobs.New(s, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.Close()
		_ = s.Close()
	})
	for i := range 4 {
		if _, err := q.Enqueue(t.Context(), jobs.Submission{Function: "f", ID: fmt.Sprint("j", i)}); err != nil {
			t.Fatal(err)
		}
	}
	claimed, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{"f"}, Limit: 4, Lease: time.Hour})
	if err != nil || len(claimed) != 4 {
		t.Fatalf("claimed %d jobs, %v", len(claimed), err)
	}
	var calls []jobs.Finish
	for _, j := range claimed {
		calls = append(calls, jobs.Finish{ID: j.ID, Token: j.Lease.Token, State: jobs.Complete})
	}
	want := []error{nil, store.ErrTooLarge, store.ErrConflict, nil}
	// All, the first half and each call of it, the second half and each call of it.
	s.errs = []error{store.ErrTooLarge, store.ErrTooLarge, want[0], want[1], store.ErrTooLarge, want[2], want[3]}
	got, err := q.FinishMany(t.Context(), calls)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	for i, want := range want {
		state := jobs.Complete
		if want != nil {
			state = jobs.Active
		}
		if !errors.Is(got[i].Err, want) || want == nil && (got[i].Err != nil || got[i].Job.ID != calls[i].ID) {
			t.Errorf("call %d: %+v, want %v", i, got[i], want)
		}
		if j, err := q.Get(t.Context(), calls[i].ID); err != nil || j.State != state {
			t.Errorf("job %d: %v, %v; want %v", i, j.State, err, state)
		}
	}
	if c := q.Counters(); c.Completed != 2 {
		t.Errorf("%d jobs are counted as completed, want 2", c.Completed)
	}
}
