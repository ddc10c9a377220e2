package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// renewals counts the renewals among the calls.
func (h *fakeHost) renewals() (n int) {
	for _, c := range h.calls {
		if c.path == api.PathRenew {
			n++
		}
	}
	return n
}

// While upstream works, the ledger and the cache hear of it before the reservation is over;
// before and after that they do not.
func TestReservationIsRenewedWhileUpstreamWorks(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_ttl_seconds":9,"manager":{"timeout_ms":60000}}`)
	s, _ := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	reserve := h.last()
	h.ticks(p, 4*time.Second)
	expect(t, "while the ledger decides", h.renewals(), 0)
	h.respond(p, reserve, "201", granted)
	for i := range 10 {
		h.ticks(p, 3*time.Second)
		expect(t, "renewals", h.renewals(), i+1)
		h.respond(p, h.last(), "200", api.ReserveReply{State: api.StateReserved, ExpiresIn: 9 * time.Second})
	}
	var e cache.Entry
	if !p.table.Lookup(&s.hash, h.now, &e) || e.State != api.StatePending || e.Expires < h.now+int64(6*time.Second) {
		t.Errorf("the cache has %+v at %d", e, h.now)
	}
	expect(t, "counted", h.values["oncegate_gate_reservations_renewed_total"], 10)
	h.current = 1
	s.OnResponseHeaders(true)
	h.ready(p)
	expect(t, "call", h.calls[h.last()].path, api.PathCommit)
	h.ticks(p, 20*time.Second)
	expect(t, "when the outcome is known", h.renewals(), 10)
}

// A renewal that finds no manager is tried again soon. A refused renewal means that two requests
// may run.
func TestFailedRenewalIsRetriedAndRefusedOneIsAnAlarm(t *testing.T) {
	for code, again := range map[api.Code]bool{"": true, api.CodeFenced: false, api.CodeConflict: false} {
		h := newFakeHost(t)
		p := started(t, h, `{"pending_ttl_seconds":9}`)
		h.run(p, 1, "k")
		h.ticks(p, 3*time.Second)
		expect(t, "renewals", h.renewals(), 1)
		if code == "" {
			h.refuseWith(p, h.last(), "503", api.CodeUnavailable)
		} else {
			h.refuseWith(p, h.last(), "409", code)
		}
		h.ticks(p, time.Second)
		want, lost := 1, int64(1)
		if again {
			want, lost = 2, 0
		}
		expect(t, string(code)+": renewals", h.renewals(), want)
		expect(t, string(code)+": lost", h.values["oncegate_gate_reservations_lost_total"], lost)
		expect(t, string(code)+": alarms", int64(strings.Count(strings.Join(h.logs, "\n"), "run twice")), lost)
	}
}

// Without a ledger only the cache has the reservation, and a key stays taken for as long as it works.
func TestCacheEntryIsRenewedWithoutALedger(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"ledger":"none","pending_ttl_seconds":3,"unknown_ttl_seconds":0,"wait_for_pending":false}`)
	s, _ := h.open(p, 1, "k")
	expect(t, "forwarded", s.OnRequestHeaders(true), Continue)
	for range 10 {
		h.ticks(p, 2*time.Second)
		again, f := h.open(p, 2, "k")
		again.OnRequestHeaders(true)
		expect(t, "a duplicate", f.replies[0].status, 409)
	}
	expect(t, "calls", len(h.calls), 0)
}

// A renewal may reach the ledger after the release and reserve the key again, so the gate releases
// the key once more.
func TestReleaseIsSentTwiceAfterADoubtfulRenewal(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_ttl_seconds":9}`)
	s, f := h.run(p, 1, "k")
	h.ticks(p, 3*time.Second)
	renewal := h.last()
	expect(t, "call", h.calls[renewal].path, api.PathRenew)
	h.current = 1
	f.response = [][2]string{{":status", "429"}}
	s.OnResponseHeaders(true)
	h.ready(p)
	expect(t, "call", h.calls[h.last()].path, api.PathRelease)
	h.respond(p, h.last(), "200", released)
	h.respond(p, renewal, "200", api.ReserveReply{State: api.StateReserved, ExpiresIn: 9 * time.Second})
	n := len(h.calls)
	h.ticks(p, 3*time.Second)
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathRelease)
	h.respond(p, n, "200", released)
	h.ticks(p, 30*time.Second)
	expect(t, "calls", len(h.calls), n+1)
}

// All of many reservations are renewed in time, a bounded number in each tick.
func TestRenewalsAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_ttl_seconds":60}`)
	const many = renewsPerTick + renewsPerTick/2
	for i := range uint32(many) {
		h.run(p, i+1, "k"+strconv.Itoa(int(i)))
	}
	h.now += int64(20 * time.Second)
	h.tick(p)
	expect(t, "in one tick", h.renewals(), renewsPerTick)
	h.tick(p)
	expect(t, "in two", h.renewals(), many)
	h.tick(p)
	expect(t, "in three", h.renewals(), many)
	// They end in any order.
	for left := many; left > 0; left-- {
		r := p.renewing[left*7%left]
		p.stopRenewing(r)
		p.stopRenewing(r)
		expect(t, "left", len(p.renewing), left-1)
	}
}

// The attempt's number tells upstream which attempt is newer. So it comes from the grant and not from the reserve, which the
// manager may have held while an earlier attempt was granted and ran.
func TestAttemptNumberIsTheTimeOfTheGrant(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"forward":{"attempt_header":"x-attempt"}}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "200", api.ReserveReply{State: api.StatePending, ExpiresIn: time.Minute})
	h.ready(p)
	expect(t, "the second call", h.calls[1].path, api.PathReserve)
	h.now += int64(10 * time.Second)
	h.respond(p, 1, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	number, _ := fields.Value(f.request, "x-attempt")
	expect(t, "number", number, strconv.FormatInt(h.now/1e3, 10))
}
