package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// A manager of the previous release refuses a reserve with unknown_ttl. It gets the older
// message until it is upgraded.
func TestOlderManagerGetsTheOlderMessage(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_ttl_seconds":9}`)
	unknownTTL := func() time.Duration {
		t.Helper()
		var sent api.ReserveRequest
		if err := sent.ParseRaw(h.calls[h.last()].body); err != nil {
			t.Fatal(err)
		}
		return sent.UnknownTTL
	}
	s, f := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "first", unknownTTL(), 300*time.Second)
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	expect(t, "calls", len(h.calls), 2)
	expect(t, "then", unknownTTL(), 0)
	h.respond(p, h.last(), "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	expect(t, "told", strings.Contains(strings.Join(h.logs, "\n"), "upgrade managers before gates"), true)
	s, _ = h.open(p, 2, "b")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "the next", unknownTTL(), 0)
	h.respond(p, h.last(), "201", granted)
	n := len(h.calls)
	h.ticks(p, 4*time.Second)
	expect(t, "no renewals", len(h.calls), n)
	// It gives the same answer when the gate tries again.
	h.now += 2 * olderPeriod
	s, _ = h.open(p, 5, "e")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "after a while", unknownTTL(), 300*time.Second)
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	expect(t, "then again", unknownTTL(), 0)
	h.respond(p, h.last(), "201", granted)
	// The next answer is a newer manager's.
	s, _ = h.open(p, 3, "c")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.answer, h.current = granted, 0
	h.headers = map[string]string{":status": "201", api.HeaderManager: "newer"}
	p.OnCallResponse(uint32(h.last()), 1)
	h.headers = nil
	s, _ = h.open(p, 4, "d")
	s.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "to the newer one", unknownTTL(), 300*time.Second)
	// A reserve that it refuses for another reason stays refused.
	_, f = s, h.streams[4]
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	h.refuseWith(p, h.last(), "400", api.CodeInvalidRequest)
	expect(t, "status", f.replies[0].status, 503)
}
