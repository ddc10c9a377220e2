package server

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// heldHomes is another data centre. It holds each call until the test gives the answer, and fails the test if two calls come at a time.
type heldHomes struct {
	farHomes
	t      *testing.T
	atWork *atomic.Int32
	answer chan api.State
}

func (h heldHomes) Call(ctx context.Context, _ string, op api.Op, _ []byte, _ time.Duration) (api.ReserveReply, error) {
	if h.atWork.Add(1) > 1 {
		h.t.Errorf("call %v came before the call ahead of it was answered", op)
	}
	defer h.atWork.Add(-1)
	h.calls <- op
	select {
	case state := <-h.answer:
		return api.ReserveReply{State: state, ExpiresIn: time.Minute}, nil
	case <-ctx.Done():
		return api.ReserveReply{}, ctx.Err()
	}
}

// want checks that this call is there, and answers it.
func (h heldHomes) want(op api.Op, state api.State) {
	h.t.Helper()
	if got := <-h.calls; got != op {
		h.t.Fatalf("the home got call %v, want %v", got, op)
	}
	h.answer <- state
}

// farCall makes a call about the key "far".
func (g *gateStream) farCall(op api.Op, token string, d api.Durability, wait time.Duration) []byte {
	switch op {
	case api.OpCommit, api.OpReject:
		return g.call(op, (&api.FinishRequest{Key: "far", Token: token, Durability: d, Result: api.Result{Status: 201}}).AppendRaw(nil))
	case api.OpRelease, api.OpLookUp:
		return g.call(op, (&api.ReleaseRequest{Key: "far", Token: token, Durability: d}).AppendRaw(nil))
	}
	return g.call(op, (&api.ReserveRequest{Key: "far", Token: token, Durability: d, Wait: wait}).AppendRaw(nil))
}

// Calls of one key that are sent together are made in their order, also those that its home makes. Another key does not wait.
func TestStreamKeepsTheOrderOfAKeyWithAHomeElsewhere(t *testing.T) {
	const global, local, reserve, release = api.DurabilityGlobal, api.DurabilityLocal, api.OpReserve, api.OpRelease
	type call struct {
		op       api.Op
		token    string
		d        api.Durability
		wait     time.Duration
		atHome   api.State // the home's answer; StateNone: it does not get the call
		status   int
		answered api.State
	}
	for name, calls := range map[string][]call{
		"home's by name": {
			{reserve, "a", global, 0, api.StateReserved, 201, api.StateReserved},
			{release, "a", global, 0, api.StateReleased, 200, api.StateReleased},
			{reserve, "b", global, 0, api.StateReserved, 201, api.StateReserved},
			{api.OpCommit, "b", global, 0, api.StateCommitted, 200, api.StateCommitted},
		},
		"home's by what the reserve recorded": {
			{reserve, "a", global, 0, api.StateReserved, 201, api.StateReserved},
			{api.OpRenew, "a", local, 0, api.StateReserved, 200, api.StateReserved},
			{api.OpUnknown, "a", local, 0, api.StateReserved, 200, api.StateReserved},
			{api.OpRenew, "a", local, 0, api.StateReserved, 200, api.StateReserved},
			{api.OpCommit, "a", local, 0, api.StateCommitted, 200, api.StateCommitted},
		},
		"here after a release at the home": {
			{reserve, "a", global, 0, api.StateReserved, 201, api.StateReserved},
			{release, "a", local, 0, api.StateReleased, 200, api.StateReleased},
			{reserve, "b", local, 0, api.StateNone, 201, api.StateReserved},
			{release, "b", local, 0, api.StateNone, 200, api.StateReleased},
		},
		"look-ups": {
			{api.OpLookUp, "", local, 0, api.StateNone, 200, api.StateNone},
			{reserve, "a", global, 0, api.StateReserved, 201, api.StateReserved},
			{api.OpLookUp, "", local, 0, api.StateNone, 200, api.StatePending},
			{release, "a", global, 0, api.StateReleased, 200, api.StateReleased},
			{api.OpLookUp, "", local, 0, api.StateNone, 200, api.StateNone},
		},
		"a reserve that may wait": {
			{reserve, "a", global, time.Minute, api.StateReserved, 201, api.StateReserved},
			{release, "a", global, 0, api.StateReleased, 200, api.StateReleased},
			{reserve, "a", global, time.Minute, api.StateReserved, 201, api.StateReserved},
			{api.OpReject, "a", local, 0, api.StateRejected, 200, api.StateRejected},
		},
	} {
		t.Run(name, func(t *testing.T) {
			far := heldHomes{farHomes{calls: make(chan api.Op, len(calls))}, t, new(atomic.Int32), make(chan api.State)}
			s := newSite(t, siteOptions{ledger: ledger.Options{Origin: "here"}, reach: home.Reach{Homes: far}})
			g := s.gate(httpdtest.HTTP2(t))
			var group [][]byte
			for _, c := range calls {
				group = append(group, g.farCall(c.op, c.token, c.d, c.wait))
			}
			g.send(group...)
			for i, c := range calls {
				if c.atHome != api.StateNone {
					n := g.n
					g.send(g.call(api.OpReserve, reserveOf("near", "a", 0)))
					if r, _ := g.reply(); r.Number != n+1 {
						t.Fatalf("call %d was answered before call %d was made", r.Number, i+1)
					}
					far.want(c.op, c.atHome)
				}
				g.wantReply(uint64(i+1), c.status, c.answered)
			}
		})
	}
}

// A look-up is made between the calls before it and those after it.
func TestStreamKeepsTheOrderOfLookUps(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	lookUp := func() []byte { return g.call(api.OpLookUp, releaseOf("k", "")) }
	g.send(lookUp(), lookUp(), g.call(api.OpReserve, reserveOf("k", "a", 0)), lookUp(), g.call(api.OpCommit, commitOf("k", "a", nil)), lookUp())
	for i, want := range []struct {
		status int
		state  api.State
	}{{200, api.StateNone}, {200, api.StateNone}, {201, api.StateReserved}, {200, api.StatePending}, {200, api.StateCommitted}, {200, api.StateCommitted}} {
		g.wantReply(uint64(i+1), want.status, want.state)
	}
}

// A reserve whose turn comes when the client has left is not made at the home. What ends a reservation is.
func TestStreamReservesNothingAtHomesForAClientThatLeft(t *testing.T) {
	far := heldHomes{farHomes{calls: make(chan api.Op, 3)}, t, new(atomic.Int32), make(chan api.State)}
	s := newSite(t, siteOptions{ledger: ledger.Options{Origin: "here"}, reach: home.Reach{Homes: far}})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.farCall(api.OpReserve, "a", api.DurabilityGlobal, 0), g.farCall(api.OpReserve, "b", api.DurabilityGlobal, 0),
		g.farCall(api.OpRelease, "b", api.DurabilityGlobal, 0))
	g.send(g.call(api.OpReserve, reserveOf("near", "a", 0)), g.call(api.OpReserve, reserveOf("near", "b", time.Minute)))
	s.Eventually("one waits", func() bool { return s.waiters() == 1 })
	g.Kill()
	s.Eventually("the manager knows", func() bool { return s.waiters() == 0 })
	far.want(api.OpReserve, api.StateReserved)
	far.want(api.OpRelease, api.StateReleased)
}

// Reserves that wait get the key in their order, whether they were sent together, before or after one that already waits, or behind
// the release that lets the first one have it.
func TestStreamKeepsTheOrderOfWaits(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	waits := func(tokens ...string) (calls [][]byte) {
		for _, token := range tokens {
			calls = append(calls, g.call(api.OpReserve, reserveOf("k", token, time.Minute)))
		}
		return calls
	}
	for range 20 {
		first := g.n
		g.send(g.call(api.OpReserve, reserveOf("k", "first", 0)))
		g.wantReply(first+1, 201, api.StateReserved)
		g.send(waits("1", "2", "3", "4")...)
		s.Eventually("four wait", func() bool { return s.waiters() == 4 })
		g.send(waits("5", "6", "7", "8")...)
		s.Eventually("eight wait", func() bool { return s.waiters() == 8 })
		release := g.n + 1
		g.send(slices.Concat([][]byte{g.call(api.OpRelease, releaseOf("k", "first"))}, waits("9"))...)
		for i, token := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
			number := first + 2 + uint64(i)
			if token == "9" {
				number++
			}
			// The key may go to the next one before the release of it is answered.
			got := map[uint64]api.State{}
			for range 2 {
				r, in := g.reply()
				got[r.Number] = in.State
			}
			if got[release] != api.StateReleased || got[number] != api.StateReserved {
				t.Fatalf("waiter %s: %v", token, got)
			}
			release = g.n + 1
			g.send(g.call(api.OpRelease, releaseOf("k", token)))
		}
		g.wantReply(release, 200, api.StateReleased)
	}
}

// A reserve does not overtake one that waits and came with it.
func TestStreamKeepsTheOrderBehindAWait(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("k", "b", time.Minute)), g.call(api.OpRelease, releaseOf("k", "a")), g.call(api.OpReserve, reserveOf("k", "c", time.Minute)))
	got := map[uint64]api.State{}
	for range 2 {
		r, in := g.reply()
		got[r.Number] = in.State
	}
	if got[2] != api.StateReserved || got[3] != api.StateReleased {
		t.Errorf("%v", got)
	}
}
