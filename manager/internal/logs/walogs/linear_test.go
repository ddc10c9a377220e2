package walogs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// linearOp is a call: an append of an id, or a read of the whole log.
type linearOp struct{ id string }

// linearModel is a log that takes each id once. Its state is the ids in order, with a space behind
// each. A call that was cut off may take effect at any time later, also when nobody looks any more.
var linearModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		s, op, out := state.(string), input.(linearOp), output.(string)
		if op.id == "" {
			return out == "?" || out == s, s
		}
		ids := strings.Fields(s)
		for i, id := range ids {
			if id == op.id {
				return out == "?" || out == fmt.Sprint(i+1, " again"), s
			}
		}
		return out == "?" || out == fmt.Sprint(len(ids)+1), s + op.id + " "
	},
}

// TestHistoriesWithRestartsAreLinearizable: callers append and read at once, and the power goes again
// and again. What they were told is what one caller after the other would have been.
func TestHistoriesWithRestartsAreLinearizable(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r := newRig(t, logs.Change{})
		var now atomic.Int64
		var mu sync.Mutex
		var history []porcupine.Operation
		client := 0
		for round := range 3 {
			var after *faultfs.FS
			var down atomic.Bool
			var wg sync.WaitGroup
			cutAt := int64(5 + rnd.IntN(20))
			var syncs atomic.Int64
			fs := r.fs
			fs.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.Sync && syncs.Add(1) == cutAt { // one goroutine is the one
					after = fs.CutPower(rand.New(rand.NewPCG(seed, uint64(round))))
					down.Store(true)
				}
				return nil
			})
			for range 3 {
				client++
				wg.Add(1)
				go func(client int, rnd *rand.Rand) {
					defer wg.Done()
					for n := 0; n < 15 && !down.Load(); n++ {
						op := linearOp{}
						if rnd.IntN(4) > 0 {
							op.id = fmt.Sprint("id", rnd.IntN(60))
						}
						began := now.Add(1)
						var out string
						if op.id == "" {
							page, err := r.Read(t.Context(), "log", logs.Query{Beginning: true, Limit: logs.MaxLimit})
							for _, e := range page.Entries {
								out += e.ID + " "
							}
							if err != nil {
								out = "?"
							}
						} else {
							out = r.putWith(t.Context(), false, entry(op.id, ""))
						}
						o := porcupine.Operation{ClientId: client, Input: op, Call: began, Output: out, Return: now.Add(1)}
						if out == "unavailable" || out == "?" {
							o.Output, o.Return = "?", math.MaxInt64
						}
						mu.Lock()
						history = append(history, o)
						mu.Unlock()
						if o.Output == "?" {
							return
						}
					}
				}(client, rand.New(rand.NewPCG(seed, rnd.Uint64())))
			}
			wg.Wait()
			fs.SetHook(nil)
			if after == nil { // all was over before the power went
				after = fs.Crash()
			}
			r.crashTo(after)
			if rnd.IntN(2) == 0 {
				r.snapshot()
			}
		}
		began := now.Add(1)
		var ids string
		for _, e := range r.all() {
			ids += e.ID + " "
		}
		history = append(history, porcupine.Operation{ClientId: client + 1, Input: linearOp{}, Call: began, Output: ids, Return: now.Add(1)})
		if !porcupine.CheckOperations(linearModel, history) {
			t.Fatalf("seed %d: no order of the calls explains the answers: %+v", seed, history)
		}
		r.close()
	}
}
