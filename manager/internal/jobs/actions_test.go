package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// slowStore takes a second for each change once it is slow.
type slowStore struct {
	store.Store
	slow bool
}

func (s *slowStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.slow {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Store.Update(ctx, fn)
}

// A bulk action on a slow store ends after a part of the jobs, and the cursor leads to the rest.
func TestBulkActionsAreBoundedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{Store: mem.New(mem.Options{})}
		q, err := jobs.New(s, jobs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			q.Close()
			_ = s.Close()
		}()
		const n = 300
		for i := range n {
			if _, err := q.Enqueue(t.Context(), jobs.Submission{Function: "f", ID: fmt.Sprintf("j%03d", i)}); err != nil {
				t.Fatal(err)
			}
		}
		s.slow = true
		b := jobs.Bulk{Action: jobs.ActionCancel, ListQuery: jobs.ListQuery{State: jobs.Queued}}
		done := 0
		for calls := 1; ; calls++ {
			began := time.Now()
			res, err := q.Bulk(t.Context(), b)
			if took := time.Since(began); err != nil || took > 20*time.Second || res.Done == 0 || len(res.Refused) > 0 {
				t.Fatalf("%+v, %v, in %v", res, err, took)
			}
			done += res.Done
			if b.Cursor = res.Cursor; b.Cursor == "" {
				if calls < 2 || done != n {
					t.Errorf("%d jobs in %d calls", done, calls)
				}
				break
			}
		}

		// What a caller that leaves has not reached is counted apart.
		ids := []string{"j000", "j001", "j002"}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i, err := range q.DoAll(ctx, jobs.ActionRetry, ids, time.Time{}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", ids[i], err)
			}
		}
	})
}

// The group of an error leaves out what differs between errors of one kind, and is its own group.
func TestErrorsOfOneKindAreOneGroup(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "order 100417 is unknown\nstack": "order # is unknown", "HTTP 503": "HTTP 503",
		"dial tcp 10.0.3.7:44321: refused":            "dial tcp 10.0.3.7:#: refused",
		"job 01m8c5-3zra0 of host-7f9c: é 2026-11-26": "job # of #: é #",
	} {
		got := jobs.ErrorGroup(in)
		if got != want || jobs.ErrorGroup(got) != got {
			t.Errorf("%q: %q, and of that %q; want %q", in, got, jobs.ErrorGroup(got), want)
		}
	}
	for _, long := range []string{"é", "ab ", "12345 "} {
		s := ""
		for len(s) < 10_000 {
			s += long
		}
		if got := jobs.ErrorGroup("x" + s); len(got) > jobs.MaxErrorGroupBytes || jobs.ErrorGroup(got) != got {
			t.Errorf("%q: %d bytes, %q", long, len(got), got)
		}
	}
}
