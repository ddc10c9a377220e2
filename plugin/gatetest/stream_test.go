package gatetest

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Streams end while calls of every kind are under way on two workers. Each call is made again with its token: nothing runs
// twice, and each client gets its answer.
func TestStreamsEndWithCallsUnderWay(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, fault := range map[string]Fault{"before they are carried out": {HoldCall: true}, "before the replies": {Hold: true}} {
			t.Run(name, func(t *testing.T) {
				a := NewRig(t, guest, Options{Workers: 2, Config: `{"pending_ttl_seconds":60}`})
				b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock})
				m := a.Manager
				cut := func() {
					t.Helper()
					a.Settle()
					m.CutStreams(14)
					a.Settle()
					if fault.Hold {
						m.Release() // the replies are too late
					}
					a.Clock.Advance(2 * time.Second)
				}
				m.FailNext(api.PathReserve, fault, fault)
				x := []*Exchange{a.Send(Request{Key: "0", Worker: 0}), a.Send(Request{Key: "1", Worker: 1})}
				cut()
				tokens := make(map[string]string)
				for _, c := range m.Calls() {
					if was := tokens[c.Key]; was != "" {
						want(t, "token of the reserve that is sent again", c.Token, was)
					}
					tokens[c.Key] = c.Token
				}
				want(t, "reserves", m.Count(api.PathReserve), 4)
				for i := range x {
					x[i].Upstream.AwaitHeaders(t)
				}

				// A reserve of another proxy, which the manager holds.
				wait := b.Send(Request{Key: "0"})
				cut()
				want(t, "the duplicate runs", wait.Upstream.Begun(), false)

				m.FailNext(api.PathRenew, fault, fault)
				a.Clock.Advance(20 * time.Second)
				want(t, "renewals", m.Count(api.PathRenew), 2)
				cut()
				want(t, "renewals", m.Count(api.PathRenew), 4)

				m.FailNext(api.PathCommit, fault)
				m.FailNext(api.PathRelease, fault)
				x[0].Answer(200, "done")
				x[1].Answer(429, "later")
				cut()
				want(t, "answer", x[0].Response().Body, "done")
				want(t, "answer", x[1].Response().Body, "later")
				want(t, "the duplicate", wait.Response().Body, "done")
				want(t, "the duplicate runs", wait.Upstream.Begun(), false)
				state, _ := m.State("0")
				want(t, "state", state, api.StateCommitted)
				again := a.Send(Request{Key: "1", Worker: 0})
				again.Answer(200, "again")
				want(t, "after the release", again.Response().Body, "again")
				want(t, "fenced", a.Metric("oncegate_gate_requests_fenced_total"), 0)
				want(t, "lost reservations", a.Metric("oncegate_gate_reservations_lost_total"), 0)
			})
		}
	})
}

// Large answers go by a stream of their own, in both directions, and small calls do not wait for them.
func TestLargeAnswersHaveAStreamOfTheirOwn(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock})
		body := strings.Repeat("x", 200_000)
		a.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
		x := a.Send(Request{Key: "k"})
		x.Answer(200, body)
		a.Settle()
		once(t, a, Request{Key: "small"})
		a.Manager.Release()
		want(t, "answer", x.Response().Body, body)
		want(t, "elsewhere", b.Send(Request{Key: "k"}).Response().Body, body)
		var ways []string
		for _, c := range a.Manager.Calls() {
			if c.Key == "k" {
				ways = append(ways, c.Path[strings.LastIndex(c.Path, "/")+1:]+map[bool]string{true: " large"}[c.Large])
			}
		}
		want(t, "calls", strings.Join(ways, ", "), "reserve, commit large, reserve, reserve large")
	})
}

// A VM that was reloaded opens streams of its own, and those of the dead one end.
func TestReloadedVMOpensNewStreams(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Traps: true, FailurePolicy: hostsim.FailReload})
		once(t, r, Request{Key: "k"})
		r.Host.Trap(0, errInjected)
		r.Clock.Advance(7 * time.Second)
		once(t, r, Request{Key: "next"})
		open, opened := r.Manager.Streams()
		want(t, "streams opened", opened, 2)
		want(t, "streams open", open, 1)
	})
}

// When the plugin is removed, its streams end, even with calls under way.
func TestRemovedPluginEndsItsStreams(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		var m *Manager
		t.Run("host", func(t *testing.T) {
			r := NewRig(t, guest, Options{Workers: 2})
			m = r.Manager
			for worker := range 2 {
				once(t, r, Request{Key: "k" + string(rune('0'+worker)), Worker: worker})
			}
			m.FailNext(api.PathCommit, Fault{Lose: true})
			x := r.Send(Request{Key: "l"})
			x.Upstream.AwaitHeaders(t)
			x.Answer(200, "done")
			r.Settle()
			open, _ := m.Streams()
			want(t, "streams open", open, 2)
		})
		open, opened := m.Streams()
		want(t, "streams opened", opened, 2)
		want(t, "streams open", open, 0)
	})
}
