package gatetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

func TestDuplicatesWaitAcrossWorkers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Workers: 4})
		x := r.Send(Request{Key: "k", Worker: 0})
		x.Upstream.AwaitHeaders(t)
		var waiting []*Exchange
		for i := range 40 {
			waiting = append(waiting, r.Send(Request{Key: "k", Worker: i % 4}))
		}
		r.Settle()
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 40)
		x.Answer(201, "one")
		want(t, "answer", x.Response().Body, "one")
		// The clock stands still, so no duplicate needed the tick.
		for i, w := range waiting {
			p := w.Response()
			want(t, fmt.Sprint("waiter ", i), p.Status+p.Body+p.Header("idempotent-replayed"), "201onetrue")
			want(t, "upstream called", w.Upstream.Begun(), false)
		}
		want(t, "waited", r.Metric("oncegate_gate_requests_waited_total"), 40)
		want(t, "waits measured", r.Metric("oncegate_gate_wait_milliseconds"), 40)
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 0)
		want(t, "reserves", r.Manager.Count(api.PathReserve), 1)
	})
}

// With two gates and one manager, the duplicate waits at the manager.
func TestDuplicatesWaitAcrossGates(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{Workers: 2})
		b := NewRig(t, guest, Options{Workers: 2, Manager: a.Manager, Clock: a.Clock})
		x := a.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		var waiting []*Exchange
		for i := range 10 {
			waiting = append(waiting, b.Send(Request{Key: "k", Worker: i % 2}))
		}
		b.Settle()
		// The duplicates are coalesced: one of them makes two reserves, the second of which waits.
		// The others wait for that one.
		want(t, "reserves", a.Manager.Count(api.PathReserve), 3)
		x.Answer(201, "one")
		for _, w := range waiting {
			p := w.Response()
			want(t, "answer", p.Body+p.Header("idempotent-replayed"), "onetrue")
			want(t, "upstream called", w.Upstream.Begun(), false)
		}
		// The duplicate that waited at the manager counts like the others.
		want(t, "waited", b.Metric("oncegate_gate_requests_waited_total"), 10)
		want(t, "waits measured", b.Metric("oncegate_gate_wait_milliseconds"), 10)
	})
}

func TestWaitIsLimited(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_wait_timeout":5}`})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(4 * time.Second)
		want(t, "answered early", y.Client.Begun(), false)
		r.Clock.Advance(2 * time.Second)
		p := y.Response()
		want(t, "status", p.Status, "409")
		want(t, "code", p.Problem(t), "request-pending")
		want(t, "retry-after", p.Header("retry-after"), "10")
		want(t, "conflicts", r.Metric("oncegate_gate_requests_conflict_total"), 1)
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 0)
		x.Answer(200, "x")
		x.Response()
	})
}

func TestShortWaitEndsInTime(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_wait_timeout":0.5}`})
		r.Clock.Advance(250 * time.Millisecond)
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(400 * time.Millisecond)
		want(t, "answered early", y.Client.Begun(), false)
		r.Clock.Advance(300 * time.Millisecond)
		want(t, "status", y.Response().Status, "409")
		x.Answer(200, "x")
		x.Response()
	})
}

// The entry ends between the duplicate's look and its registration as a waiter, so
// nothing wakes it. The clock stands still, so the duplicate must notice without a tick.
func TestEntryEndsWhileTheDuplicateRegisters(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		var x *Exchange
		var once sync.Once
		var armed atomic.Bool
		r := NewRig(t, guest, Options{Workers: 2, Hooks: hostsim.Hooks{
			AfterGetSharedData: func(h hostsim.HookSharedData) {
				if armed.Load() && h.Thread == "worker-1" {
					once.Do(func() {
						x.Answer(200, "done")
						x.Response()
					})
				}
			},
		}})
		x = r.Send(Request{Key: "k", Worker: 0})
		x.Upstream.AwaitHeaders(t)
		armed.Store(true)
		want(t, "duplicate", r.Send(Request{Key: "k", Worker: 1}).Response().Body, "done")
	})
}

func TestWaitAtTheManagerIsLimited(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock, Config: `{"pending_wait_timeout":5}`})
		x := a.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y := b.Send(Request{Key: "k"})
		b.Settle()
		b.Clock.Advance(2 * time.Second)
		z := b.Send(Request{Key: "k"}) // waits for y, then asks for what is left of its time
		b.Settle()
		b.Clock.Advance(3 * time.Second)
		p := y.Response()
		want(t, "status", p.Status, "409")
		want(t, "code", p.Problem(t), "request-pending")
		want(t, "z is answered early", z.Client.Begun(), false)
		b.Clock.Advance(3 * time.Second)
		want(t, "status", z.Response().Status, "409")
		calls := a.Manager.Calls()
		want(t, "calls", len(calls), 5)
		want(t, "y's first look", calls[1].Wait, 0)
		want(t, "y's wait", calls[2].Wait, 5*time.Second)
		want(t, "z's first look", calls[3].Wait, 0)
		want(t, "z's wait is the rest", calls[4].Wait > 0 && calls[4].Wait <= 2*time.Second, true)
		x.Answer(200, "")
		x.Response()
	})
}

// The gate notices a manager that takes calls and never answers within the time of
// an ordinary call, not only when duplicates would have stopped waiting.
func TestManagerThatHangs(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"manager":{"timeout_ms":2000},"pending_wait_timeout":30}`})
		r.Manager.FailAll(api.PathReserve, Fault{Lose: true})
		x := r.Send(Request{Key: "k"})
		r.Settle()
		y := r.Send(Request{Key: "k"})
		r.Clock.Advance(1900 * time.Millisecond)
		want(t, "answered early", x.Client.Begun(), false)
		r.Clock.Advance(1200 * time.Millisecond) // the gate looks once a second
		for _, e := range []*Exchange{x, y} {
			p := e.Response()
			want(t, "status", p.Status, "503")
			want(t, "code", p.Problem(t), "manager-unavailable")
			want(t, "upstream called", e.Upstream.Begun(), false)
		}
		r.Manager.FailAll(api.PathReserve, Fault{})
		z := r.Send(Request{Key: "k"})
		z.Answer(200, "done")
		want(t, "as soon as it answers", z.Response().Body, "done")
	})
}

// A manager that stood still carries out its calls later and in any order. A reserve for which
// no request waits any more must not block the key until it runs out.
func TestReleaseThatOvertakesItsReserve(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"manager":{"timeout_ms":2000}}`})
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k"})
		r.Settle()
		r.Clock.Advance(3100 * time.Millisecond)
		want(t, "status", x.Response().Status, "503")
		r.Settle()
		want(t, "releases", r.Manager.Count(api.PathRelease), 1)
		r.Manager.Release()
		state, _ := r.Manager.State("k")
		want(t, "the reserve arrives", state, api.StatePending)
		y := r.Send(Request{Key: "k"})
		r.Settle()
		want(t, "answered early", y.Client.Begun(), false)
		r.Clock.Advance(3100 * time.Millisecond)
		y.Answer(200, "done")
		want(t, "the next try", y.Response().Body, "done")
		r.Clock.Advance(time.Minute)
		want(t, "releases", r.Manager.Count(api.PathRelease), 2)
		want(t, "retry", r.Send(Request{Key: "k"}).Response().Body, "done")
	})
}

// The manager hangs while it holds the call of a duplicate. The duplicate waits as long as it
// may, and the other attempt is not disturbed.
func TestManagerThatHangsWhileItHoldsACall(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock, Config: `{"manager":{"timeout_ms":2000},"pending_wait_timeout":5}`})
		x := a.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		a.Manager.FailNext(api.PathReserve, Fault{}, Fault{Lose: true})
		y := b.Send(Request{Key: "k"})
		b.Settle()
		want(t, "reserves", a.Manager.Count(api.PathReserve), 3)
		b.Clock.Advance(6900 * time.Millisecond)
		want(t, "answered early", y.Client.Begun(), false)
		b.Clock.Advance(1200 * time.Millisecond)
		want(t, "status", y.Response().Status, "503")
		want(t, "upstream called", y.Upstream.Begun(), false)
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		want(t, "retry", b.Send(Request{Key: "k"}).Response().Body, "done")
	})
}

func TestDuplicatesDoNotWaitIfToldSo(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{Config: `{"wait_for_pending":false}`})
		b := NewRig(t, guest, Options{Config: `{"wait_for_pending":false}`, Manager: a.Manager, Clock: a.Clock})
		x := a.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		p := a.Send(Request{Key: "k"}).Response()
		want(t, "same gate", p.Status, "409")
		// The original may be done soon.
		want(t, "retry-after", p.Header("retry-after"), "1")
		want(t, "other gate", b.Send(Request{Key: "k"}).Response().Status, "409")
		x.Answer(200, "")
		x.Response()
	})
}

func TestTooManyWaiters(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"max_waiters":4}`}) // half of them for one key
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y, z := r.Send(Request{Key: "k"}), r.Send(Request{Key: "k"})
		r.Settle()
		want(t, "one too many", r.Send(Request{Key: "k"}).Response().Status, "409")
		x.Answer(200, "x")
		want(t, "first", y.Response().Body, "x")
		want(t, "second", z.Response().Body, "x")
	})
}

func TestWaitersTakeOverWhenTheOriginalGaveUp(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Workers: 2})
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k", Worker: 0})
		r.Settle()
		y, z := r.Send(Request{Key: "k", Worker: 1}), r.Send(Request{Key: "k", Worker: 0})
		r.Settle()
		x.Leave()
		r.Manager.Release() // reserved, but the client has left
		r.Settle()
		var first, second *Exchange = y, z
		if z.Upstream.Begun() {
			first, second = z, y
		}
		first.Upstream.AwaitHeaders(t)
		want(t, "both run", second.Upstream.Begun(), false)
		first.Answer(200, "x")
		want(t, "first", first.Response().Body, "x")
		want(t, "second", second.Response().Header("idempotent-replayed"), "true")
	})
}

func TestWaitersOfAFailedReserveAreTold(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		r.Manager.FailNext(api.PathReserve, Fault{Hold: true, Status: 503})
		x := r.Send(Request{Key: "k"})
		r.Settle()
		y := r.Send(Request{Key: "k"})
		r.Settle()
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 1)
		r.Manager.Release()
		want(t, "original", x.Response().Status, "503")
		// After the first one failed, the others do not try in turn.
		want(t, "waiter", y.Response().Status, "503")
		want(t, "reserves", r.Manager.Count(api.PathReserve), 1)
		want(t, "upstream called", x.Upstream.Begun() || y.Upstream.Begun(), false)
	})
}

func TestLeavingWaiterIsForgotten(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y, z := r.Send(Request{Key: "k"}), r.Send(Request{Key: "k"})
		r.Settle()
		y.Leave()
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 1)
		x.Answer(200, "x")
		want(t, "the other one", z.Response().Body, "x")
	})
}

// A wake-up can get lost with the VM that should have sent it. Then the tick wakes the duplicate.
func TestTickIsTheSafetyNet(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"pending_ttl_seconds":10,"unknown_ttl_seconds":0}`})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k"})
		r.Settle()
		x.Leave() // the outcome stays unknown: nothing will end the entry
		r.Settle()
		want(t, "y was let through", y.Upstream.Begun(), false)
		r.Clock.Advance(12 * time.Second)
		y.Answer(200, "second")
		want(t, "answer", y.Response().Body, "second")
	})
}

// A storm on one key leaves room for waiters of other keys.
func TestStormLeavesPlaces(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"max_waiters":16}`})
		for _, c := range []struct {
			key  string
			want int
		}{{"a", 8}, {"b", 4}, {"c", 2}} {
			x := r.Send(Request{Key: c.key})
			x.Upstream.AwaitHeaders(t)
			before := r.Metric("oncegate_gate_waiters")
			var refused []*Exchange
			for range 20 {
				y := r.Send(Request{Key: c.key})
				r.Settle()
				if y.Client.Begun() {
					refused = append(refused, y)
				}
			}
			want(t, "waiters for "+c.key, r.Metric("oncegate_gate_waiters")-before, int64(c.want))
			want(t, "refused", len(refused), 20-c.want)
			want(t, "code", refused[0].Response().Problem(t), "request-pending")
		}
	})
}
