package clienttest

import (
	"errors"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
)

// TestStartBatch: a batch whose answers are lost is submitted once, and its callback learns how its jobs ended.
func TestStartBatch(t *testing.T) {
	m := startManager(t)
	f := &faults{before: map[string]int{"/v1/batches": 1}, after: map[string]int{"/v1/batches": 2}}
	c := m.client(f)
	b, err := c.StartBatch(t.Context(), client.Batch{
		Jobs:     []client.Submission{{Function: "resize", Payload: 1}, {Function: "resize", ID: "two"}},
		Callback: &client.Submission{Function: "publish", Payload: "album"},
	})
	if err != nil || !b.Replayed || b.Total != 2 || len(b.Jobs) != 2 || b.Jobs[1] != "two" || b.Callback == "" || len(m.all()) != 3 {
		t.Fatalf("%+v, %v, %d jobs", b, err, len(m.all()))
	}
	for range 2 {
		got, err := c.Claim(t.Context(), client.ClaimRequest{Worker: "w"})
		if err != nil || len(got) != 1 || got[0].Batch != b.ID {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := c.Finish(t.Context(), client.FinishRequest{ID: got[0].ID, LeaseToken: got[0].Lease.Token, Status: client.StateComplete}); err != nil {
			t.Fatal(err)
		}
	}
	done, err := c.WaitBatch(t.Context(), b.ID)
	if err != nil || done.Complete != 2 || done.Pending != 0 || done.FinishedAt.IsZero() || len(done.Jobs) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	got, err := c.Claim(t.Context(), client.ClaimRequest{Worker: "w"})
	if err != nil || len(got) != 1 || got[0].ID != b.Callback || got[0].After != b.ID {
		t.Fatalf("the callback: %+v, %v", got, err)
	}
	var refused *client.Error
	if _, err := c.StartBatch(t.Context(), client.Batch{}); !errors.As(err, &refused) || refused.Status != 400 {
		t.Errorf("an empty batch: %v", err)
	}
	if _, err := c.GetBatch(t.Context(), "none"); !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("a batch that is not there: %v", err)
	}
}
