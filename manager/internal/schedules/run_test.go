package schedules_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// Rounds follow one another every second while schedules have errors. The schedules are read in any order, but the error of a
// round is that of the first by name.
func TestAnErrorIsReportedOnceAMinuteWhileItStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, memoryOpener())
		bad := []string{"s", "s1", "s2", "s3"}
		for _, name := range bad {
			e.put(name, schedules.Spec{Cron: "* * * * *", Overlap: schedules.OverlapSkip})
		}
		e.put("other", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		e.due()
		for _, name := range bad {
			e.damage(e.get(name).LastJob)
		}
		e.clock.advance(time.Minute)
		var reports atomic.Int64
		go e.schedules.Run(t.Context(), func(error) { reports.Add(1) })
		time.Sleep(time.Second / 2) // rounds begin with each second, and the clock moves between two
		for want := range int64(3) {
			for range 60 {
				synctest.Wait()
				if n := reports.Load(); n != want+1 {
					t.Fatalf("%d reports in minute %d", n, want+1)
				}
				time.Sleep(time.Second)
			}
			e.clock.advance(time.Minute)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		e.wantInstants("other", "2026-03-28T12:01:00Z", "2026-03-28T12:02:00Z", "2026-03-28T12:03:00Z", "2026-03-28T12:04:00Z", "2026-03-28T12:05:00Z")
	})
}
