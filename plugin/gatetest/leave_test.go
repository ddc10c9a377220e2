package gatetest

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// These tests cover every point at which a client can leave.

func TestClientLeavesWhileItsBodyIsRead(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Open(Request{Key: "k"}, false)
		x.RequestData([]byte("half"), false)
		r.Settle()
		x.Leave()
		r.Settle()
		want(t, "calls", len(r.Manager.Calls()), 0)
		y := r.Send(Request{Key: "k", Body: "b"})
		y.Answer(200, "")
		want(t, "next", y.Response().Status, "200")
	})
}

func TestClientLeavesWhileTheLedgerIsAsked(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, fault := range map[string]Fault{
			"call on its way":   {HoldCall: true},
			"answer on its way": {Hold: true},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailNext(api.PathReserve, fault)
				x := r.Send(Request{Key: "k"})
				r.Settle()
				x.Leave()
				r.Settle()
				want(t, "upstream called", x.Upstream.Begun(), false)
				r.Manager.Release()
				r.Settle()
				want(t, "calls", calls(r), "reserve release")
				state, _ := r.Manager.State("k")
				want(t, "state", state, api.StateNone)
				y := r.Send(Request{Key: "k"})
				y.Answer(200, "second")
				want(t, "next", y.Response().Body, "second")
			})
		}
	})
}

// The reserve finds an outcome after the client has left. The cache learns it.
func TestClientLeavesAndTheLedgerKnewTheOutcome(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		x := a.Send(Request{Key: "k"})
		x.Answer(200, "first")
		x.Response()
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock})
		b.Manager.FailNext(api.PathReserve, Fault{Hold: true})
		y := b.Send(Request{Key: "k"})
		b.Settle()
		y.Leave()
		b.Manager.Release()
		b.Settle()
		n := len(b.Manager.Calls())
		want(t, "cached", b.Send(Request{Key: "k"}).Response().Body, "first")
		want(t, "calls", len(b.Manager.Calls()), n)
	})
}

func TestClientLeavesAfterTheRequestWasSent(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"wait_for_pending":false}`})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		x.Leave()
		r.Settle()
		// The request may have run, so nothing runs it again while its outcome is remembered.
		want(t, "calls", calls(r), "reserve unknown")
		want(t, "retry", r.Send(Request{Key: "k"}).Response().Problem(t), "outcome-unknown")
		want(t, "unknown outcomes", r.Metric("oncegate_gate_outcomes_unknown_total"), 1)
		r.Clock.Advance(299 * time.Second)
		want(t, "later", r.Send(Request{Key: "k"}).Response().Problem(t), "outcome-unknown")
		r.Clock.Advance(2 * time.Second)
		y := r.Send(Request{Key: "k"})
		y.Answer(200, "second")
		want(t, "when it is forgotten", y.Response().Body, "second")
	})
}

func TestClientLeavesWithinTheAnswer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			body         bool
		}{
			{"headers mode", `{}`, false},
			{"body mode", `{"mode":"body"}`, true},
			{"async", `{"commit":"async"}`, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config, BodyMode: c.body})
				x := r.Send(Request{Key: "k"})
				x.Upstream.AwaitHeaders(t)
				x.ResponseHeaders(hostsim.H(":status", "402", "content-length", "10"), false)
				x.ResponseData([]byte("half"), false)
				r.Settle()
				x.Leave()
				r.Settle()
				want(t, "calls", calls(r), "reserve reject")
				state, result := r.Manager.State("k")
				want(t, "state", state, api.StateRejected)
				want(t, "status", result.Status, 402)
				want(t, "retry", r.Send(Request{Key: "k"}).Response().Status, "410")
			})
		}
	})
}

func TestClientLeavesWhileTheOutcomeIsRecorded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, fault := range map[string]Fault{
			"call on its way":   {HoldCall: true},
			"answer on its way": {Hold: true},
			"call fails":        {Close: 14},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				r.Manager.FailNext(api.PathCommit, fault)
				x := r.Send(Request{Key: "k"})
				x.Answer(200, "done")
				r.Settle()
				if fault.Close == 0 {
					x.Leave()
				}
				r.Manager.Release()
				r.Settle()
				r.Clock.Advance(time.Second)
				state, result := r.Manager.State("k")
				want(t, "state", state, api.StateCommitted)
				want(t, "body", string(result.Body), "done")
				want(t, "retry", r.Send(Request{Key: "k"}).Response().Body, "done")
			})
		}
	})
}

// The client leaves before the gate can ask the ledger.
func TestClientLeavesAtOnce(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Workers: 2})
		r.Manager.FailAll(api.PathReserve, Fault{HoldCall: true})
		for i := range 50 {
			x := r.Send(Request{Key: "k", Worker: i % 2})
			x.ClientReset()
			x.Over()
		}
		r.Manager.FailAll(api.PathReserve, Fault{})
		r.Manager.Release()
		r.Settle()
		y := r.Send(Request{Key: "k"})
		y.Answer(200, "done")
		want(t, "next", y.Response().Body, "done")
		// The gate gave back every reservation.
		reserves, releases := r.Manager.Count(api.PathReserve), r.Manager.Count(api.PathRelease)
		want(t, "reserves but one", reserves-1, releases)
	})
}

func TestStreamIdleTimeoutWhileUpstreamIsSilent(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_ttl_seconds":3600,"wait_for_pending":false}`})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		x.UpstreamSelected("192.0.2.9:80")
		r.Clock.Advance(6 * time.Minute)
		x.Over()
		r.Settle()
		want(t, "calls", calls(r), "reserve unknown")
		want(t, "retry", r.Send(Request{Key: "k"}).Response().Problem(t), "outcome-unknown")
	})
}

// The host ends a stream that the gate holds. The gate keeps nothing of it.
func TestStreamIdleTimeoutWhileTheGateDecides(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{
			Config: `{"pending_ttl_seconds":7200,"pending_wait_timeout":3600,"manager":{"timeout_ms":600000}}`, Workers: 2,
		})
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k", Worker: 0}) // reserving
		r.Settle()
		y := r.Send(Request{Key: "k", Worker: 1}) // waiting
		r.Settle()
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 1)
		r.Clock.Advance(6 * time.Minute)
		for _, e := range []*Exchange{x, y} {
			p := e.Response()
			want(t, "status", p.Status, "504")
			want(t, "idempotency-status", p.Header("idempotency-status"), "")
			e.Over()
		}
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 0)
		r.Manager.Release()
		r.Settle()
		want(t, "calls", calls(r), "reserve release")
		z := r.Send(Request{Key: "k"})
		z.Answer(200, "next")
		want(t, "next", z.Response().Body, "next")
	})
}
