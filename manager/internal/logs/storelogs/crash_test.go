package storelogs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// crashRig is a rig on the engine wal, whose disk fails on demand.
type crashRig struct {
	*rig
	caller
	fs *faultfs.FS
}

// newCrashRig makes an engine with one log on a store with small segments, and layers of so many bytes; 0: large ones.
func newCrashRig(t *testing.T, layerBytes int64) *crashRig {
	t.Helper()
	r := &crashRig{fs: &faultfs.FS{}}
	r.rig = newRig(t, func(t *testing.T) store.Store {
		s, err := mem.Open(t.Context(), "data", mem.Options{
			State: r.fs.Pebble(), LayerBytes: layerBytes, Log: wal.Options{FS: r.fs, SegmentBytes: 16 << 10, FillAhead: -1},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	r.caller = caller{T: t, engine: func() *Engine { return r.rig.Engine }}
	if _, _, err := r.rig.Engine.Put(t.Context(), logName, logs.Change{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// crashTo ends the process, and starts again on what the disk has.
func (r *crashRig) crashTo(fs *faultfs.FS) {
	r.t.Helper()
	_ = r.rig.Engine.Close()
	_ = r.st.Close() // its disk is gone
	r.fs = fs
	r.rig.Engine, r.clock = r.start(r.open(r.t), 0)
}

// TestHistoriesWithCrashesAreLinearizable: callers append and read at once, and the power goes again
// and again. Their answers are those that one caller after the other would have got.
func TestHistoriesWithCrashesAreLinearizable(t *testing.T) {
	for seed := range uint64(deep.Rounds(6, 40)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 5))
			r := newCrashRig(t, []int64{0, 2 << 10}[seed%2])
			var h history
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
				h.run(t, r.rig.Engine, 3, 15, rnd, down.Load)
				fs.SetHook(nil)
				mu.Lock()
				disk := after
				mu.Unlock()
				if disk == nil { // all was over before the power went
					disk = fs.Crash()
				}
				r.crashTo(disk)
			}
			h.check(&r.caller)
		})
	}
}

// TestAppendErrorWithTheRecordOnDisk: the sync fails, and nobody knows whether the record is there.
// Nothing is answered but that, whatever is asked, until a restart has looked.
func TestAppendErrorWithTheRecordOnDisk(t *testing.T) {
	for _, onDisk := range []bool{true, false} {
		r := newCrashRig(t, 0)
		r.expect("1", entry("a", ""))
		var mu sync.Mutex // the next segment may be prepared meanwhile
		var after *faultfs.FS
		r.fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind != faultfs.Sync || after != nil {
				return nil
			}
			if after = r.fs.Crash(); onDisk {
				after = r.fs.Clone() // all that was written reached the disk
			}
			return errors.New("input/output error")
		})
		for range 3 {
			r.expect("unavailable", entry("b", ""))
		}
		r.fs.SetHook(nil)
		r.expect("unavailable", entry("b", ""))
		if _, err := r.ByID(t.Context(), logName, "b"); codeOf(err) != "unavailable" {
			t.Errorf("by-id of what is not known: %v", err)
		}
		r.crashTo(after)
		if onDisk {
			r.expect("2 again, 3", entry("b", ""), entry("c", ""))
		} else {
			r.expect("2, 3", entry("b", ""), entry("c", ""))
		}
	}
}

// TestLongestWindow: the engine knows the longest window that a log had since it was opened, also of one that it found or that
// was deleted.
func TestLongestWindow(t *testing.T) {
	r := newRig(t, func(*testing.T) store.Store { return mem.New(mem.Options{}) })
	must := func(want time.Duration) {
		t.Helper()
		if got := r.Engine.LongestWindow(); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	must(0)
	set := func(name string, window time.Duration) {
		t.Helper()
		if _, _, err := r.Put(t.Context(), name, logs.Change{Window: &window}); err != nil {
			t.Fatal(err)
		}
	}
	set("a", time.Hour)
	set("b", time.Minute)
	must(time.Hour)
	set("b", 2*time.Hour)
	must(2 * time.Hour)
	set("b", time.Second)
	must(2 * time.Hour)
	e, _ := r.start(r.st, 0)
	if got := e.LongestWindow(); got != time.Hour {
		t.Errorf("after a start: %v", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
