package gate

import (
	"strconv"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// A call that finds no room within manager.timeout_ms is refused, and was never sent.
func TestCallWithoutASlotIsGivenUp(t *testing.T) {
	h := newFakeHost(t)
	h.batches = true
	p := started(t, h, "")
	var f *fakeStream
	for i := range uint32(maxPatience*maxInFlight + 1) {
		var s *Stream
		s, f = h.open(p, i+1, "k"+strconv.Itoa(int(i)))
		s.OnRequestHeaders(true)
		h.ready(p)
	}
	expect(t, "calls", len(h.calls), maxInFlight)
	h.ticks(p, 4*time.Second)
	expect(t, "refused", len(f.replies), 0)
	h.ticks(p, 2*time.Second)
	expect(t, "refused", len(f.replies), 1)
	expect(t, "status", f.replies[0].status, 503)
	expect(t, "calls", len(h.calls), maxInFlight)
}

// Calls wait for the answer to the callout before them and then go together. They do not wait long, and they do not
// wait at all if nothing is under way.
func TestCallsWaitForTheCalloutBeforeThem(t *testing.T) {
	h := newFakeHost(t)
	h.batches = true
	p := started(t, h, "")
	id := uint32(0)
	ask := func(calls int, last string) {
		t.Helper()
		id++
		s, _ := h.open(p, id, "k"+strconv.Itoa(int(id)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.ready(p) // a queue callback without new calls counts for nothing
		expect(t, "calls", len(h.calls), calls)
		expect(t, "last", h.calls[calls-1].path, last)
	}
	ask(1, api.PathReserve)
	ask(1, api.PathReserve)
	ask(1, api.PathReserve)
	h.respond(p, 0, "201", granted)
	expect(t, "calls", len(h.calls), 2)
	expect(t, "path", h.calls[1].path, api.PathBatch)
	for range maxPatience - 1 {
		ask(2, api.PathBatch)
	}
	ask(3, api.PathBatch)
	ask(3, api.PathBatch)
	h.tick(p)
	expect(t, "calls after a tick", len(h.calls), 4)
	expect(t, "path", h.calls[3].path, api.PathReserve)
}

// Calls that fill a batch do not wait, even if the call before them hangs.
func TestAFullBatchDoesNotWait(t *testing.T) {
	h := newFakeHost(t)
	h.batches = true
	p := started(t, h, "")
	id := uint32(0)
	open := func(calls int) {
		for range calls {
			id++
			s, _ := h.open(p, id, "k"+strconv.Itoa(int(id)))
			s.OnRequestHeaders(true)
		}
		h.ready(p)
	}
	open(1)
	expect(t, "the first call", len(h.calls), 1)
	open(4*maxTogether + maxTogether/2)
	expect(t, "with the full batches", len(h.calls), 5)
	h.tick(p)
	expect(t, "with the rest", len(h.calls), 6)
}

// A batch stays within a manager's limits, and two calls about one key keep their order.
func TestGatherKeepsLimitsAndOrder(t *testing.T) {
	h := newFakeHost(t)
	h.batches = true
	p := started(t, h, "")
	l := &p.calls
	calls := func(sizes ...int) (out []*call) {
		for i, n := range sizes {
			c := &call{kind: callCommit, message: make([]byte, n)}
			c.hash[0] = byte(i)
			out = append(out, c)
		}
		return out
	}
	sizes := func(first *call) (out []int) {
		for c := first; c != nil; c = c.nextInBatch {
			out = append(out, len(c.message))
		}
		return out
	}
	k := 1 << 10
	cs := calls(60*k, 60*k, 60*k, 60*k, 60*k, 8*k, 100*k, 1)
	l.gather(cs[0], cs[1:])
	expect(t, "calls", len(sizes(cs[0])), 6) // the fifth is too much, the small one after it is not
	cs = calls(1, 100*k, 1, 1)
	cs[2].hash = cs[1].hash
	l.gather(cs[0], cs[1:])
	expect(t, "calls", len(sizes(cs[0])), 2)
	expect(t, "stays", cs[2] != nil && cs[3] == nil, true)
	cs = calls(make([]int, 200)...)
	l.gather(cs[0], cs[1:])
	expect(t, "calls", cs[0].batched, maxTogether)
	if maxTogetherBytes+maxTogether*(4<<10) > api.MaxBatchBytes || maxTogether > api.MaxBatchItems {
		t.Error("a batch may be more than a manager takes")
	}
}
