package jobs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

func bookedQueue(t *testing.T, o Options) *Queue {
	t.Helper()
	st := mem.New(mem.Options{})
	q, err := New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.Close()
		_ = st.Close()
	})
	return q
}

// end submits a job and ends it.
func end(t *testing.T, q *Queue, function string, s State) {
	t.Helper()
	if _, err := q.Enqueue(t.Context(), Submission{Function: function, Owner: "o", Payload: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	claimed, err := q.Claim(t.Context(), ClaimRequest{Worker: "w"})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%d jobs, %v", len(claimed), err)
	}
	if _, err := q.Finish(t.Context(), Finish{ID: claimed[0].ID, Token: claimed[0].Lease.Token, State: s}); err != nil {
		t.Fatal(err)
	}
}

// TestDeadLettersOfManyFunctions: each function that has too many loses its oldest ones, and no other.
func TestDeadLettersOfManyFunctions(t *testing.T) {
	q := bookedQueue(t, Options{DeadCount: 2})
	const functions = 150
	for i := range functions {
		for range 1 + i%4 {
			end(t, q, fmt.Sprint("f", i), Failed)
		}
	}
	want := 0
	for i := range functions {
		want += max(1+i%4-2, 0)
	}
	if did, err := q.RunDuties(t.Context()); err != nil || did.Purged != want {
		t.Errorf("%d removed, want %d; %v", did.Purged, want, err)
	}
	for i := range functions {
		f, err := q.Function(t.Context(), fmt.Sprint("f", i))
		if err != nil || f.Dead != min(1+i%4, 2) {
			t.Errorf("f%d has %d dead letters (%v), want %d", i, f.Dead, err, min(1+i%4, 2))
		}
	}
	if err := CheckSums(t.Context(), q); err != nil {
		t.Error(err)
	}
}

// TestUnreadableSums: sums that cannot be read refuse nothing and remove nothing. They stay until an operator deletes them,
// and are counted again then.
func TestUnreadableSums(t *testing.T) {
	tracker := unread.New()
	q := bookedQueue(t, Options{DeadCount: 1, MaxBytes: MinMaxBytes, OwnerShare: 1e-9, Unreadable: tracker})
	keys := []string{retainedKey, ownerKey("o"), deadKey("f")}
	if err := q.store.Update(t.Context(), func(tx store.Tx) error {
		var errs []error
		for _, key := range keys {
			errs = append(errs, tx.Put(colUsage, key, []byte{0}, usageEntries(key, 9)...))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // with a share of nothing
		end(t, q, "f", Failed)
	}
	if did, err := q.RunDuties(t.Context()); err != nil || did.Purged != 0 {
		t.Errorf("%+v, %v", did, err)
	}
	if _, err := q.Enqueue(t.Context(), Submission{Function: "f", Owner: "o", Payload: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if u, err := q.DeleteUnreadable(t.Context(), colUsage, key); err != nil || u.Collection != colUsage {
			t.Errorf("%.8q: %v, %v", key, u, err)
		}
	}
	if err := CheckSums(t.Context(), q); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := q.Enqueue(t.Context(), Submission{Function: "f", Owner: "o", Payload: []byte(`1`)}); !errors.Is(err, ErrFull) {
			t.Errorf("a submitter without a share: %v", err)
		}
	}
}
