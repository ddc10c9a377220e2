package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// A connection ends with calls under way. They are sent again, with their tokens, on the next connection, and a reservation
// that the first one made is the same one.
func TestCallsMoveToTheNextConnection(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, _ := h.run(p, 1, "a")
	s.OnResponseHeaders(true)
	commit := h.last()
	h.open(p, 2, "b")
	waiting, f := h.open(p, 2, "b")
	waiting.OnRequestHeaders(true)
	reserve := h.last()
	n := len(h.calls)
	h.end(p, commit, grpcUnavailable)
	h.ready(p)
	expect(t, "calls", len(h.calls), n+2)
	for i, was := range []int{commit, reserve} {
		again := h.calls[n+i]
		expect(t, "path", again.path, h.calls[was].path)
		expect(t, "message", string(again.body), string(h.calls[was].body))
		expect(t, "on a new connection", again.conn != h.calls[was].conn, true)
	}
	h.respond(p, n+1, "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	h.respond(p, n, "200", committed)
	expect(t, "repetitions are no failures", len(h.logs), 0)
}

// A call that ends each connection is given up, and the others are not.
func TestCallThatEndsConnectionsIsGivenUp(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "poison")
	s.OnRequestHeaders(true)
	h.ready(p)
	for range maxSends {
		expect(t, "replies", len(f.replies), 0)
		h.end(p, h.last(), 3)
		h.ticks(p, lastBackoff)
	}
	expect(t, "status", f.replies[0].status, 503)
	// It may have been carried out.
	expect(t, "call", h.calls[h.last()].path, api.PathRelease)
}

// Connections that nobody accepts are no reason to give a call up before manager.timeout_ms.
func TestCallsOutliveAManagersRestart(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, f := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	h.ready(p)
	for range maxSends + 2 {
		expect(t, "replies", len(f.replies), 0)
		h.end(p, h.last(), grpcUnavailable)
		h.ticks(p, lastBackoff/2)
	}
	h.respond(p, h.last(), "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

// A manager that is away makes requests wait until manager.timeout_ms, and after that for one more try to connect. Requests that wait
// when it comes back are served.
func TestRequestsWaitForAManagerThatHasJustGone(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager":{"timeout_ms":2000}}`)
	h.run(p, 1, "before")
	conn := h.calls[0].conn
	h.refuse = true
	h.conns[conn-1] = ""
	h.current = 0
	p.OnStreamClose(conn, grpcUnavailable)
	s, f := h.open(p, 2, "a")
	s.OnRequestHeaders(true)
	h.ticks(p, 1800*time.Millisecond)
	expect(t, "replies before the time-out", len(f.replies), 0)
	h.ticks(p, time.Second)
	expect(t, "status", f.replies[0].status, 503)
	for i := range uint32(20) {
		s, _ = h.open(p, 3+i, fmt.Sprint("b", i))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.ticks(p, tickPeriod)
	}
	h.ticks(p, lastBackoff+tickPeriod)
	for id := uint32(3); id < 23; id++ {
		expect(t, "replies while the manager is away for long", len(h.streams[id].replies), 1)
	}
	s, f = h.open(p, 50, "c")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.refuse = false
	h.ticks(p, lastBackoff+tickPeriod)
	h.respond(p, h.last(), "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	expect(t, "replies", len(f.replies), 0)
}

// Clients and duplicates do not wait for a manager that is away when the request has run. The manager hears of it later.
func TestOutcomesDoNotWaitForAManagerThatHasJustGone(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit":"before_reply"}`)
	h.run(p, 1, "before")
	s, f := h.run(p, 2, "a")
	h.refuse = true
	h.end(p, 0, grpcUnavailable)
	h.current = 2
	s.OnResponseHeaders(true)
	h.ready(p)
	expect(t, "the client's answer", f.resumedResponse, 1)
	retry, f := h.open(p, 3, "a")
	retry.OnRequestHeaders(true)
	h.ready(p)
	expect(t, "replays", len(f.replies), 1)
	expect(t, "status", f.replies[0].status, 200)
	n := len(h.calls)
	h.refuse = false
	h.ticks(p, 2*lastBackoff)
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathCommit)
}

// A manager that refuses the gate fails its calls at once.
func TestRefusedConnectionFailsCalls(t *testing.T) {
	for status, why := range map[int]string{16: "credentials", 7: "does not allow", 12: "not a manager"} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, f := h.open(p, 1, "a")
		s.OnRequestHeaders(true)
		h.ready(p)
		h.end(p, h.last(), status)
		h.ready(p)
		expect(t, "status", f.replies[0].status, 503)
		expect(t, "log", strings.Contains(strings.Join(h.logs, "\n"), why), true)
	}
}

// A manager that stands still answers no ping. Its connection is given up, with calls that could wait for longer.
func TestPingFindsAManagerThatStandsStill(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager":{"timeout_ms":2000}}`)
	s, f := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, h.last(), "202", api.ReserveReply{State: api.StatePending, ExpiresIn: time.Minute})
	held := h.last()
	expect(t, "the manager holds the call", h.calls[held].path, api.PathReserve)
	h.ticks(p, 20*time.Second)
	expect(t, "as long as it answers pings", len(h.calls)-1, held)
	h.still = true
	h.ticks(p, 4*time.Second)
	expect(t, "calls", len(h.calls)-1 > held, true)
	expect(t, "again", h.calls[h.last()].path, api.PathReserve)
	h.still = false
	h.respond(p, h.last(), "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
	// An idle connection is looked after, too.
	h.still = true
	last := h.calls[h.last()].conn
	h.ticks(p, 18*time.Second)
	expect(t, "closed", h.conns[last-1], "")
}

// A large answer comes by the connection for large messages, and a large outcome goes by it.
func TestLargeMessagesHaveTheirOwnConnection(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":1048576}`)
	s, f := h.open(p, 1, "a")
	s.OnRequestHeaders(true)
	h.ready(p)
	small := h.calls[h.last()].conn
	h.refuseWith(p, h.last(), "503", api.CodeLargeAnswer)
	h.ready(p)
	expect(t, "again", h.calls[h.last()].path, api.PathReserve)
	large := h.calls[h.last()].conn
	expect(t, "another connection", large != small, true)
	expect(t, "that says so", h.metadata[large-1][api.HeaderStream], api.StreamLarge)
	h.respond(p, h.last(), "200", api.ReserveReply{State: api.StateCommitted, ExpiresIn: time.Minute, Result: api.Result{Status: 200, Body: []byte("x")}})
	expect(t, "replayed", f.replies[0].status, 200)
	s, f = h.run(p, 2, "b")
	expect(t, "small", h.calls[h.last()].conn, small)
	f.responseBody = make([]byte, maxSmallMessage+1)
	s.OnResponseHeaders(false)
	s.OnResponseBody(len(f.responseBody), true)
	expect(t, "path", h.calls[h.last()].path, api.PathCommit)
	expect(t, "large", h.calls[h.last()].conn, large)
}

// Calls and bytes on a connection are bounded. A call that finds no room in time fails.
func TestConnectionIsBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_waiters":100}`)
	var f *fakeStream
	for i := range uint32(maxUnderWay + 1) {
		var s *Stream
		s, f = h.open(p, i+1, fmt.Sprint("k", i))
		s.OnRequestHeaders(true)
		h.ready(p)
	}
	expect(t, "calls", len(h.calls), maxUnderWay)
	h.respond(p, 0, "201", granted)
	expect(t, "calls when there is room", len(h.calls), maxUnderWay+1)
	h.respond(p, h.last(), "201", granted)
	expect(t, "resumed", f.resumedRequest, 1)
}

// What is no reply of a manager ends the connection, and nothing else.
func TestUnreadableMessageEndsTheConnection(t *testing.T) {
	for name, message := range map[string][]byte{
		"garbage": []byte("garbage"), "nothing": nil, "no number": api.AppendStreamReply(nil, 0, 200, 0, "", nil), "no status": api.AppendStreamReply(nil, 2, 0, 0, "", nil),
	} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, f := h.open(p, 1, "a")
		s.OnRequestHeaders(true)
		h.ready(p)
		first := h.calls[0].conn
		h.message = message
		h.begin()
		h.receiving = true
		p.OnStreamMessage(first, len(message))
		expect(t, name+": closed in the callback", h.conns[first-1] == "", false)
		h.ready(p)
		expect(t, name+": closed", h.conns[first-1], "")
		h.ticks(p, time.Second)
		expect(t, name+": calls", len(h.calls), 2)
		h.respond(p, 1, "201", granted)
		expect(t, name+": resumed", f.resumedRequest, 1)
	}
}

// The gate closes a connection that takes no message: the host may report its end much later, or never.
func TestConnectionThatTakesNoMessageIsClosed(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	s, _ := h.run(p, 1, "a")
	h.deaf = h.calls[h.last()].conn
	s.OnResponseHeaders(true)
	h.ready(p)
	expect(t, "closed", h.conns[h.deaf-1], "")
	h.ticks(p, time.Second)
	commit := h.calls[h.last()]
	expect(t, "call", commit.path, api.PathCommit)
	expect(t, "on a new connection", commit.conn != h.deaf, true)
}

// Replies in any order, for calls that are over and for numbers that never were.
func TestRepliesInAnyOrder(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	var all []*fakeStream
	for i := range uint32(500) {
		s, f := h.open(p, i+1, fmt.Sprint("k", i))
		s.OnRequestHeaders(true)
		h.ready(p)
		all = append(all, f)
	}
	for i := range 500 {
		h.respond(p, i*7%500, "201", granted)
	}
	conn := h.calls[0].conn
	for _, number := range []uint64{1, 2, 501, 502, 1 << 60} {
		h.message = api.AppendStreamReply(nil, number, 201, 0, "", granted.AppendRaw(nil))
		h.current = 0
		p.OnStreamMessage(conn, len(h.message))
	}
	for i, f := range all {
		if f.resumedRequest != 1 {
			t.Fatalf("request %d was resumed %d times", i, f.resumedRequest)
		}
	}
	expect(t, "under way", p.calls.underWay, 0)
	expect(t, "bytes", p.calls.conns[0].bytes, 0)
}

// A reserve that was sent again was perhaps made the first time. If it does not get the key now, the first one may have got it:
// for so long ago that the ledger takes it for an unknown outcome, or still to come. The attempt gives the key back.
func TestReserveThatWasSentAgainInVainIsTakenBack(t *testing.T) {
	for what, refuse := range map[string]func(h *fakeHost, p *Plugin){
		"unknown": func(h *fakeHost, p *Plugin) { h.refuseWith(p, h.last(), "409", api.CodeOutcomeUnknown) },
		"fenced":  func(h *fakeHost, p *Plugin) { h.refuseWith(p, h.last(), "409", api.CodeFenced) },
		"pending": func(h *fakeHost, p *Plugin) {
			for range 2 { // the second one could wait
				h.respond(p, h.last(), "202", api.ReserveReply{State: api.StatePending, ExpiresIn: time.Minute})
				h.now += int64(time.Minute)
			}
		},
	} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, f := h.open(p, 1, "a")
		s.OnRequestHeaders(true)
		h.ready(p)
		reserve := h.last()
		h.end(p, reserve, grpcUnavailable)
		h.ticks(p, lastBackoff)
		refuse(h, p)
		h.ready(p)
		expect(t, what+": status", f.replies[0].status, 409)
		for range 2 { // the first one may still be on its way
			expect(t, what+": call", h.calls[h.last()].path, api.PathRelease)
			h.respond(p, h.last(), "200", released)
			h.ticks(p, overtakeDelay+tickPeriod)
		}
		expect(t, what+": idle", p.calls.idle(), true)
	}
}

// A connection belongs to the plugin's context. A callback that has just answered a stream is in that stream's.
func TestConnectionIsLookedAfterInThePluginsContext(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"wait_for_pending":false}`)
	h.run(p, 1, "a")
	h.ticks(p, pingIdle)
	s, f := h.open(p, 2, "a")
	s.OnRequestHeaders(false)
	h.ready(p)
	h.now += int64(tickPeriod)
	h.tick(p)
	expect(t, "status", f.replies[0].status, 409)
	expect(t, "pings", len(h.pings), 1)
}

// Several shards are away: one callback tries one of them. Envoy's worker hangs when two are refused.
func TestOneCallbackOpensOneConnection(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager":{"shards":["a","b","c"],"timeout_ms":1000}}`)
	h.refuse = true
	var all []*fakeStream
	for i := range uint32(30) {
		s, f := h.open(p, i+1, fmt.Sprint("k", i))
		s.OnRequestHeaders(true)
		all = append(all, f)
	}
	h.ticks(p, 3*time.Second) // the fake host checks each callback
	for i, f := range all {
		if len(f.replies) != 1 {
			t.Fatalf("request %d has %d replies", i, len(f.replies))
		}
	}
	h.refuse = false
	h.ticks(p, 2*time.Second)
	for i := range uint32(30) {
		s, _ := h.open(p, 100+i, fmt.Sprint("l", i))
		s.OnRequestHeaders(true)
	}
	h.ticks(p, time.Second)
	expect(t, "connections", len(h.conns), 3)
}

// A manager that refuses the gate may have got its calls before, for example when a token is withdrawn. The reservation is given back.
func TestRefusedConnectionMayHaveCarriedCallsOut(t *testing.T) {
	for _, status := range []int{grpcPermissionDenied, grpcUnimplemented, grpcUnauthenticated} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, _ := h.open(p, 1, "a")
		s.OnRequestHeaders(true)
		h.ready(p)
		h.end(p, h.last(), status)
		h.ticks(p, 2*time.Second)
		expect(t, fmt.Sprint("after status ", status), h.calls[h.last()].path, api.PathRelease)
	}
}

// A renewal whose reservation has ended is not sent again: it could reserve the key after its release.
func TestRenewalOfAnEndedReservationIsNotSentAgain(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"pending_ttl_seconds":9}`)
	s, f := h.run(p, 1, "k")
	h.ticks(p, 3*time.Second)
	renewal := h.last()
	expect(t, "call", h.calls[renewal].path, api.PathRenew)
	h.current = 1
	f.response = [][2]string{{":status", "429"}}
	s.OnResponseHeaders(true)
	release := h.last()
	expect(t, "call", h.calls[release].path, api.PathRelease)
	n := len(h.calls)
	h.end(p, release, grpcUnavailable)
	h.ticks(p, time.Second)
	for _, c := range h.calls[n:] {
		expect(t, "sent again", c.path, api.PathRelease)
	}
}
