package jobs_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestDowntimeDoesNotCountForTimeouts: an attempt has as much time after a downtime as it had left before.
func TestDowntimeDoesNotCountForTimeouts(t *testing.T) {
	const away = 10 * time.Hour
	var off time.Duration
	s := mem.New(mem.Options{Clock: func() time.Time { return time.Now().Add(off) }})
	defer s.Close()
	q, err := jobs.New(s, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, lease := range []time.Duration{time.Hour, 5 * time.Hour} {
		if _, err := q.Enqueue(t.Context(), jobs.Submission{Function: "f", Timeout: 3 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Lease: lease})
		if err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		j := got[0]
		from := time.Now().Add(off + 30*time.Minute)
		off += away + 30*time.Minute
		leases := jobs.Leases()
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			b, err := tx.Get(leases.Collection, j.ID)
			if err != nil {
				return err
			}
			_, err = leases.Extend(tx, j.ID, b, store.Away{From: from, To: tx.Now()})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		near := func(what string, got, want time.Duration) {
			t.Helper()
			if (got - want).Abs() > 10*time.Minute {
				t.Errorf("lease of %s: %s lasts %s, want %s", lease, what, got, want)
			}
		}
		if j, err = q.Get(t.Context(), j.ID); err != nil || j.State != jobs.Active {
			t.Fatalf("%+v, %v", j, err)
		}
		near("the lease", j.Lease.ExpiresIn, min(lease, 3*time.Hour)-30*time.Minute)
		beat, err := q.Heartbeat(t.Context(), j.ID, got[0].Lease.Token, 20*time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		near("the attempt", beat.ExpiresIn, 150*time.Minute)
		if _, err := q.Finish(t.Context(), jobs.Finish{ID: j.ID, Token: got[0].Lease.Token, State: jobs.Complete}); err != nil {
			t.Error(err)
		}
	}
}
