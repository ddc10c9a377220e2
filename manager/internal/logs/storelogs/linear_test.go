package storelogs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// linearOp is a call: an append of an id, or a read of the whole log.
type linearOp struct{ id string }

// linearModel is a log that takes each id once. Its state is the ids in order, with a space after
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

// history records calls, to be checked for linearizability. The zero value is empty.
type history struct {
	now     atomic.Int64
	clients atomic.Int64
	mu      sync.Mutex
	calls   []porcupine.Operation
}

// run appends and reads with some callers of one engine until each made n calls, or stop says so, or a call's outcome
// is unknown.
func (h *history) run(t *testing.T, engine *Engine, callers, n int, rnd *rand.Rand, stop func() bool) {
	var wg sync.WaitGroup
	c := &caller{T: t, engine: func() *Engine { return engine }}
	for range callers {
		seed := rnd.Uint64()
		wg.Go(func() {
			client, rnd := int(h.clients.Add(1)), rand.New(rand.NewPCG(seed, 1))
			for i := 0; i < n && !stop(); i++ {
				op := linearOp{}
				if rnd.IntN(4) > 0 {
					op.id = fmt.Sprint("id", rnd.IntN(60))
				}
				if !h.call(c, client, op) {
					return
				}
			}
		})
	}
	wg.Wait()
}

func (h *history) call(c *caller, client int, op linearOp) (known bool) {
	began := h.now.Add(1)
	var out string
	if op.id == "" {
		page, err := c.engine().Read(c.T.Context(), logName, logs.Query{Beginning: true, Limit: logs.MaxLimit})
		for _, e := range page.Entries {
			out += e.ID + " "
		}
		if err != nil {
			out = "?"
		}
	} else {
		out = c.say(entry(op.id, ""))
	}
	o := porcupine.Operation{ClientId: client, Input: op, Call: began, Output: out, Return: h.now.Add(1)}
	if out == "unavailable" || out == "?" {
		o.Output, o.Return = "?", math.MaxInt64
	}
	h.mu.Lock()
	h.calls = append(h.calls, o)
	h.mu.Unlock()
	return o.Output != "?"
}

// check reads the log a last time, and fails unless some order of the calls explains what they returned.
func (h *history) check(c *caller) {
	c.T.Helper()
	if !h.call(c, int(h.clients.Add(1)), linearOp{}) {
		c.T.Fatal("the log cannot be read at the end")
	}
	calls := h.thatMatter()
	switch result := porcupine.CheckOperationsTimeout(linearModel, calls, time.Minute); result {
	case porcupine.Illegal:
		c.T.Fatalf("no order of the calls explains the answers: %+v", calls)
	case porcupine.Unknown:
		c.T.Logf("%d calls are too many to check", len(calls))
	}
}

// thatMatter leaves out calls with an unknown outcome that can be ordered after all others: they explain nothing, and
// the time of the check grows exponentially with them. Those are reads, and appends of ids that are not in the log at
// the end, or that another call appended.
func (h *history) thatMatter() (calls []porcupine.Operation) {
	last := h.calls[len(h.calls)-1].Output.(string)
	open := make(map[string]bool) // ids that a call of which nobody knows must have appended
	for _, id := range strings.Fields(last) {
		open[id] = true
	}
	for _, o := range h.calls {
		if out := o.Output.(string); out != "?" && !strings.HasSuffix(out, " again") {
			delete(open, o.Input.(linearOp).id)
		}
	}
	for _, o := range h.calls {
		if o.Output != "?" || open[o.Input.(linearOp).id] {
			calls = append(calls, o)
		}
	}
	return calls
}
