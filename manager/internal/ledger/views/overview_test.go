package views_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

// TestCapacityAndPendingByAge: what is there, and the oldest reservation first although it was renewed.
func TestCapacityAndPendingByAge(t *testing.T) {
	l, c := newLedger(t, ledger.Options{MaxEntries: 3000, CommittedTTL: 30 * time.Second, ScopeShare: 0.5})
	if got, err := views.CapacityOf(t.Context(), l); err != nil || got.Total() != 0 || got.Oldest != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	reserve(t, l, "old")
	c.advance(10 * time.Second)
	reserve(t, l, "new")
	reply, err := l.Renew(t.Context(), &api.ReserveRequest{Key: "old", Scope: "s", Token: "t", PendingTTL: 5 * time.Minute})
	if err != nil || reply.State != api.StateReserved {
		t.Fatalf("renew: %v, %v", reply.State, err)
	}
	entries, more, err := views.PendingByAge(t.Context(), l, 1)
	if err != nil || !more || len(entries) != 1 || entries[0].Key != "old" {
		t.Errorf("%+v, %v, %v", entries, more, err)
	}
	commit(t, l, "old")
	c.advance(time.Second)
	got, err := views.CapacityOf(t.Context(), l)
	if err != nil || got.Total() != 2 || got.Oldest != 11*time.Second || got.KeysPerSecond != 100 || got.ScopeKeysPerSecond != 50 || got.Bytes <= 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
