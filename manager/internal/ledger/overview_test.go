package ledger

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestFunnelCountsByMinute: each minute has its own reserves, and only the last hour is kept.
func TestFunnelCountsByMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{})
		defer st.Close()
		l := ledgerOn(t, st, Options{MaxEntries: 3, ScopeShare: -1, CommittedTTL: 3 * time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.Run(ctx, nil) })
		synctest.Wait()
		mustReserve(t, l, "a", "t", api.StateReserved)
		mustCommit(t, l, "a", "t", "x")
		time.Sleep(61 * time.Second)
		mustReserve(t, l, "a", "u", api.StateCommitted)
		omitted := api.Result{Status: 200, BodyOmitted: true}
		if err := l.Commit(ctx, &FinishRequest{Key: "o", Scope: "s", Token: "t", Result: omitted.AppendRaw(nil)}); err != nil {
			t.Fatal(err)
		}
		mustReserve(t, l, "o", "u", api.StateCommitted)
		mustReserve(t, l, "p", "t", api.StateReserved)
		mustReserve(t, l, "p", "u", api.StatePending)
		if _, err := l.Reserve(ctx, reserveReq("q", "t"), nil); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		minutes := l.Funnel()
		n := len(minutes)
		now, before := minutes[n-1], minutes[n-2]
		if before.New != 1 || before.Hit != 0 || now.New != 1 || now.Hit != 1 || now.Omitted != 1 || now.Wait != 1 || now.Refused != 1 {
			t.Errorf("before %+v, now %+v", before, now)
		}
		if now.Start.Truncate(time.Minute) != now.Start {
			t.Errorf("a minute begins at %v", now.Start)
		}
		time.Sleep(2 * time.Hour)
		if n := len(l.Funnel()); n != FunnelMinutes+1 {
			t.Errorf("%d minutes", n)
		}
		cancel()
		wg.Wait()
	})
}

// TestCapacityAndPendingByAge: what is there, and the oldest reservation first although it was renewed.
func TestCapacityAndPendingByAge(t *testing.T) {
	l, c := newTestLedger(t, Options{MaxEntries: 3000, CommittedTTL: 30 * time.Second, ScopeShare: 0.5})
	if got, err := l.Capacity(t.Context()); err != nil || got.Total() != 0 || got.Oldest != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	mustReserve(t, l, "old", "t", api.StateReserved)
	c.advance(10 * time.Second)
	mustReserve(t, l, "new", "t", api.StateReserved)
	mustRenew(t, l, "old", "t", 5*time.Minute)
	entries, more, err := l.PendingByAge(t.Context(), 1)
	if err != nil || !more || len(entries) != 1 || entries[0].Key != "old" {
		t.Errorf("%+v, %v, %v", entries, more, err)
	}
	mustCommit(t, l, "old", "t", "x")
	c.advance(time.Second)
	got, err := l.Capacity(t.Context())
	if err != nil || got.Total() != 2 || got.Oldest != 11*time.Second || got.KeysPerSecond != 100 || got.ScopeKeysPerSecond != 50 || got.Bytes <= 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
