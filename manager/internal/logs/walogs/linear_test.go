package walogs

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// TestHistoriesWithRestartsAreLinearizable: callers append and read at once, and the power goes again
// and again. Their answers are those that one caller after the other would have got.
func TestHistoriesWithRestartsAreLinearizable(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r := newRig(t, logs.Change{})
		var h logstest.History
		for round := range 3 {
			var mu sync.Mutex
			var after *faultfs.FS // mu guards it
			var down atomic.Bool
			cutAt := int64(5 + rnd.IntN(20))
			var syncs atomic.Int64
			fs := r.fs
			fs.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.Sync && syncs.Add(1) == cutAt { // one goroutine is the one
					mu.Lock()
					after = fs.CutPower(rand.New(rand.NewPCG(seed, uint64(round))))
					mu.Unlock()
					down.Store(true)
				}
				return nil
			})
			h.Run(t, r.Engine, 3, 15, rnd, down.Load)
			fs.SetHook(nil)
			mu.Lock()
			disk := after
			mu.Unlock()
			if disk == nil { // all was over before the power went
				disk = fs.Crash()
			}
			r.crashTo(disk)
			if rnd.IntN(2) == 0 {
				r.snapshot()
			}
		}
		h.Check(&r.Caller)
		r.close()
	}
}

// TestConformance runs the suite on real files, with and without a snapshot before each restart.
func TestConformance(t *testing.T) {
	for name, end := range map[string]func(*rig){"replay": func(*rig) {}, "snapshot": (*rig).snapshots} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logstest.Run(t, func(t *testing.T) *logstest.Rig {
				r := &rig{t: t, dir: t.TempDir(), clock: new(clock)}
				r.opts = Options{MaxLogs: 2, SegmentBytes: 256 << 10, DutyEvery: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler)}
				r.open()
				t.Cleanup(r.close)
				return &logstest.Rig{
					Engine:  func() logs.Engine { return r.Engine },
					Advance: func(d time.Duration) { r.clock.advance(d) },
					Duty: func() {
						for _, l := range r.Engine.all("") {
							l.duty(t.Context())
						}
					},
					Restart: func(jump time.Duration) {
						end(r)
						r.close()
						r.clock = new(clock)
						r.clock.advance(jump)
						r.open()
					},
					Restored: func(floor uint64, left func(string) time.Duration) {
						end(r)
						r.opts.EpochFloor, r.opts.Quarantine = func() uint64 { return floor }, left
						r.restart()
					},
				}
			})
		})
	}
}
