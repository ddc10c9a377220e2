package ledger

import (
	"context"
	"errors"
	"fmt"
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

func TestStatsNamesAreComplete(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	seen := make(map[string]bool)
	s := stats(t, l)
	s.Each(func(op, outcome string, _ uint64) {
		if op == "" || outcome == "" {
			t.Errorf("%q %q", op, outcome)
		}
		seen[op+" "+outcome] = true
	})
	if want := int(opCount) * int(outcomeCount); len(seen) != want {
		t.Errorf("%d series, want %d: %s", len(seen), want, fmt.Sprint(seen))
	}
}
