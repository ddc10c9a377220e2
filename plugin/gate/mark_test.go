package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

func markText(id string, epoch, position uint64) string {
	return api.Mark{ID: strings.Repeat(id, api.MarkIDBytes), Epoch: epoch, Position: position}.String()
}

// The gate sends each ledger what it remembers of it. Another ledger than before is counted and logged, with a limit to
// the log lines. Answers without a mark say nothing.
func TestGateRemembersTheLedger(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{}`)
	remembered := ""
	for i, c := range []struct {
		answers string // "" without a mark
		changes int64
	}{
		{markText("a", 1, 1), 0}, {markText("a", 1, 5), 0}, {"", 0}, {markText("a", 2, 1), 0}, {markText("b", 1, 1), 1}, {markText("b", 1, 2), 1},
		{markText("a", 3, 1), 2}, {"x", 2}, {markText("b", 1, 3), 3}, {markText("c", 1, 1), 4},
	} {
		if c.changes == 4 {
			h.now += int64(logPeriod)
		}
		h.ledger = c.answers
		expect(t, "calls", h.ask(p, uint32(i+1), fmt.Sprint("k", i)), 1)
		expect(t, fmt.Sprint(i, ": remembers"), h.mark(), remembered)
		h.respond(p, h.last(), "201", granted)
		h.end(p, h.last(), grpcUnavailable)
		expect(t, fmt.Sprint(i, ": changes"), h.values["oncegate_gate_ledger_changed_total"], c.changes)
		if len(c.answers) > 1 {
			remembered = c.answers
		}
	}
	want := `oncegate: ALARM: the ledger of cluster "oncegate_manager" is ` + markText("c", 1, 1) + `, and was ` + markText("b", 1, 3)
	if got := h.logs[len(h.logs)-1]; len(h.logs) != 2 || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "; 2 more since the last such line") {
		t.Errorf("log %q, want 2 lines, the last with %q", h.logs, want)
	}
	// A new VM of the proxy knows which ledger it was.
	p = started(t, h, `{}`)
	expect(t, "calls", h.ask(p, 100, "new-VM"), 1)
	expect(t, "a new VM remembers", h.mark(), remembered)
	h.respond(p, h.last(), "201", granted)
	h.end(p, h.last(), grpcUnavailable)
	// After the longest time for which a key is remembered, another ledger may replace it.
	h.now += int64(48 * time.Hour)
	expect(t, "calls", h.ask(p, 101, "much-later"), 1)
	expect(t, "much later", h.mark(), "")
}

// A VM that called before its proxy had met a ledger learns from the other VMs which one it was.
func TestGateLearnsTheLedgerOfOtherVMs(t *testing.T) {
	h := newFakeHost(t)
	early, other := started(t, h, `{}`), started(t, h, `{}`)
	h.ledger = markText("a", 1, 1)
	expect(t, "calls", h.ask(early, 1, "early"), 1) // its answer gets lost
	lost := h.last()
	expect(t, "calls", h.ask(other, 2, "other"), 1)
	h.respond(other, h.last(), "201", granted)
	h.end(early, lost, grpcUnavailable)
	h.ticks(early, time.Second)
	expect(t, "calls", h.ask(early, 3, "later"), 1)
	expect(t, "the first VM remembers", h.mark(), h.ledger)
}

// A manager that refuses a call because its ledger is another one does not replace the ledger that the gate remembers.
func TestRefusalDoesNotChangeTheLedger(t *testing.T) {
	for _, code := range []api.Code{api.CodeWrongLedger, api.CodeWrongShard} {
		h := newFakeHost(t)
		p := started(t, h, `{}`)
		h.ledger = markText("a", 1, 1)
		expect(t, "calls", h.ask(p, 1, "k1"), 1)
		h.respond(p, h.last(), "201", granted)
		h.end(p, h.last(), grpcUnavailable)
		h.ledger = markText("b", 1, 1)
		expect(t, "calls", h.ask(p, 2, "k2"), 1)
		h.refuseWith(p, h.last(), "421", code)
		h.end(p, h.last(), grpcFailedPrecondition)
		replies := h.streams[2].replies
		if len(replies) != 1 || replies[0].status != 503 {
			t.Errorf("%s: the client gets %+v", code, replies)
		}
		expect(t, "calls", h.ask(p, 3, "k3"), 1)
		expect(t, string(code), h.mark(), markText("a", 1, 1))
		expect(t, "refused calls", h.values["oncegate_gate_call_wrong_shard_total"], 1)
	}
}

// A gate that was idle while its ledger was replaced takes the new one, once no key of the earlier one counts any more.
func TestIdleGateTakesTheNewLedger(t *testing.T) {
	for _, c := range []struct {
		idle time.Duration
		want string
	}{{5 * time.Minute, "a"}, {6 * time.Minute, "b"}} {
		h := newFakeHost(t)
		p := started(t, h, `{}`)
		h.ledger = markText("a", 1, 1)
		expect(t, "calls", h.ask(p, 1, "k1"), 1)
		h.respond(p, h.last(), "201", granted)
		h.end(p, h.last(), grpcUnavailable)
		h.now += int64(c.idle)
		h.ledger, h.retryAfter = markText("b", 1, 1), 360
		expect(t, "calls", h.ask(p, 2, "k2"), 1)
		expect(t, "it says what it remembers", h.mark(), markText("a", 1, 1))
		h.refuseWith(p, h.last(), "421", api.CodeWrongLedger)
		h.end(p, h.last(), grpcFailedPrecondition)
		h.retryAfter = 0
		expect(t, "calls", h.ask(p, 3, "k3"), 1)
		expect(t, fmt.Sprint("after ", c.idle), h.mark(), markText(c.want, 1, 1))
	}
}
