package simulated_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

func TestCrashedManagerKnowsWhatItCommitted(t *testing.T) {
	open := func(disk *simulated.Disk) *simulated.Manager {
		t.Helper()
		m, err := simulated.Open(t.Context(), disk, simulated.Options{Version: "test", Clock: time.Now, CommittedTTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	raw := []api.Header{{Name: "content-type", Value: api.ContentTypeRaw}}
	disk := new(simulated.Disk)
	m := open(disk)
	f := api.FinishRequest{Key: "k", Scope: "s", Token: "t", Result: api.Result{Status: 201, Body: []byte("done")}}
	if a := m.Do(t.Context(), api.PathCommit, raw, f.AppendRaw(nil)); a.Status != 200 {
		t.Fatalf("commit: %+v", a)
	}
	m = open(disk.Crash())
	if n, err := m.Entries(t.Context()); err != nil || n != 1 {
		t.Errorf("%d entries, %v; want 1", n, err)
	}
	r := api.ReserveRequest{Key: "k", Scope: "s", Token: "u"}
	var reply api.ReserveReply
	if a := m.Do(t.Context(), api.PathReserve, raw, r.AppendRaw(nil)); a.Status != 200 || reply.ParseRaw(a.Body) != nil || string(reply.Result.Body) != "done" {
		t.Errorf("reserve: %+v, %+v", a, reply)
	}
}
