package gatetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

var errInjected = errors.New("injected")

// When a VM dies, its streams hang, but all other clients get an answer in time. Nothing runs a
// second time while the reservation holds, and an outcome that the ledger knows is replayed.
func TestVMTraps(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name  string
			fault Fault
			path  string
			state api.State
		}{
			{"while the ledger is asked", Fault{HoldCall: true}, api.PathReserve, api.StatePending},
			{"while upstream works", Fault{}, "", api.StatePending},
			{"while the outcome is recorded", Fault{HoldCall: true}, api.PathCommit, api.StateCommitted},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Workers: 2, Traps: true, FailurePolicy: hostsim.FailReload})
				if c.path != "" {
					r.Manager.FailNext(c.path, c.fault)
				}
				x := r.Send(Request{Key: "k", Worker: 0})
				r.Settle()
				if c.path != api.PathReserve {
					x.Upstream.AwaitHeaders(t)
				}
				y := r.Send(Request{Key: "k", Worker: 1})
				r.Settle()
				if c.path == api.PathCommit {
					x.Answer(200, "done")
					r.Settle()
				}
				r.Host.Trap(0, errInjected)
				r.Manager.Release()
				r.Settle()
				state, _ := r.Manager.State("k")
				want(t, "state", state, c.state)
				// The other VMs know that this one is dead long before the waiter's time is over.
				r.Clock.Advance(7 * time.Second)
				want(t, "the waiter runs", y.Upstream.Begun(), false)
				want(t, "orphans", r.Metric("oncegate_gate_orphans_total"), 1)
				if c.state == api.StateCommitted {
					want(t, "the waiter", y.Response().Body, "done")
					want(t, "retry", r.Send(Request{Key: "k", Worker: 0}).Response().Body, "done") // the new VM
					return
				}
				want(t, "the waiter gets an answer", y.Response().Status, "409")
				later := r.Send(Request{Key: "k", Worker: 0}) // the new VM
				want(t, "a later duplicate gets its answer at once", later.Response().Status, "409")
				want(t, "upstream called", y.Upstream.Begun() || later.Upstream.Begun(), false)
				// The reservation is not renewed any more, and its outcome will never be reported.
				r.Clock.Advance(54 * time.Second)
				z := r.Send(Request{Key: "k", Worker: 0})
				want(t, "when the reservation is over", z.Response().Problem(t), "outcome-unknown")
				r.Manager.Free("k")
				z = r.Send(Request{Key: "k", Worker: 0})
				z.Answer(200, "again")
				want(t, "when an operator has released it", z.Response().Body, "again")
			})
		}
	})
}

// Without a ledger the outcome of a dead VM's request is unknown. The key stays taken as for any
// other unknown outcome, and no duplicate waits for the dead VM.
func TestVMTrapsWithoutALedger(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{
			Config: `{"ledger":"none"}`, Workers: 2, Traps: true, FailurePolicy: hostsim.FailReload, IdleTimeout: time.Hour,
		})
		r.Send(Request{Key: "k", Worker: 0}).Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k", Worker: 1})
		r.Settle()
		r.Host.Trap(0, errInjected)
		r.Clock.Advance(7 * time.Second)
		want(t, "the waiter gets an answer", y.Response().Problem(t), "outcome-unknown")
		for worker := range 2 {
			z := r.Send(Request{Key: "k", Worker: worker})
			want(t, "a later duplicate gets its answer at once", z.Response().Problem(t), "outcome-unknown")
		}
		r.Clock.Advance(350 * time.Second)
		z := r.Send(Request{Key: "k", Worker: 1})
		want(t, "long after the reservation is over", z.Response().Problem(t), "outcome-unknown")
		r.Clock.Advance(10 * time.Second)
		z = r.Send(Request{Key: "k", Worker: 1})
		z.Answer(200, "again")
		want(t, "when it is forgotten", z.Response().Body, "again")
	})
}

// A VM that only stood still continues normally after others took it for dead.
func TestVMStandsStill(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`{}`, `{"ledger":"none"}`} {
			r := NewRig(t, guest, Options{Config: config, Workers: 2})
			x := r.Send(Request{Key: "k", Worker: 0})
			x.Upstream.AwaitHeaders(t)
			// What the list of VMs says instead.
			for _, e := range r.Host.SharedData() {
				if strings.HasSuffix(e.Key, ".v") {
					r.Process.SetSharedData("", e.Key, []byte("\x01\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"), 0)
				}
			}
			y := r.Send(Request{Key: "k", Worker: 1})
			r.Settle()
			want(t, "upstream called", y.Upstream.Begun(), false)
			r.Clock.Advance(2 * time.Second)
			x.Answer(200, "done")
			want(t, "answer", x.Response().Body, "done")
			p := y.Response()
			want(t, config, p.Status == "409" || p.Body == "done", true)
			want(t, "retry", r.Send(Request{Key: "k", Worker: 1}).Response().Body, "done")
		}
	})
}

// Another program writes between every read and write of the table: the cache is of no
// use, and everything still works.
func TestEveryRaceIsLost(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		process := hostsim.NewProcess()
		r := NewRig(t, guest, Options{Process: process, Hooks: hostsim.Hooks{
			BeforeSetSharedData: func(h hostsim.HookSharedData) {
				value, _, _ := process.GetSharedData("", h.Key)
				process.SetSharedData("", h.Key, value, 0)
			},
		}})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		y := r.Send(Request{Key: "k"})
		want(t, "retry", y.Response().Body, "done")
		want(t, "upstream called", y.Upstream.Begun(), false)
		r.Clock.Advance(time.Minute)
		want(t, "races are counted", r.Metric("oncegate_gate_cas_retries_total") > 0, true)
	})
}

// Shared data is filled with garbage under the gate's feet.
func TestForeignSharedData(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for i, key := range []string{"a", "b"} {
			x := r.Send(Request{Key: key})
			x.Answer(200, key)
			x.Response()
			for _, e := range r.Host.SharedData() {
				garbage := []byte(strings.Repeat("\xff", len(e.Value)))
				if i == 1 {
					garbage = e.Value[:len(e.Value)/2]
				}
				r.Process.SetSharedData("", e.Key, garbage, 0)
			}
			y := r.Send(Request{Key: key})
			want(t, "retry", y.Response().Body, key)
			want(t, "upstream called", y.Upstream.Begun(), false)
		}
		r.Clock.Advance(time.Minute)
	})
}

// Two workers find nothing at the same moment: one creates the entry, the other waits.
func TestTwoWorkersRaceForOneKey(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		var once sync.Once
		var second *Exchange
		var r *Rig
		seen := make(chan struct{})
		r = NewRig(t, guest, Options{Workers: 2, Hooks: hostsim.Hooks{
			// When worker 0 is about to create the entry, worker 1 gets its request.
			BeforeSetSharedData: func(h hostsim.HookSharedData) {
				if h.Thread == "worker-0" && r != nil {
					once.Do(func() {
						second = r.Send(Request{Key: "k", Worker: 1})
						close(seen)
					})
				}
			},
		}})
		first := r.Send(Request{Key: "k", Worker: 0})
		<-seen
		r.Settle()
		ran, waits := first, second
		if second.Upstream.Begun() {
			ran, waits = second, first
		}
		ran.Upstream.AwaitHeaders(t)
		want(t, "both run", waits.Upstream.Begun(), false)
		ran.Answer(200, "once")
		want(t, "answer", ran.Response().Body, "once")
		want(t, "replay", waits.Response().Header("idempotent-replayed"), "true")
		want(t, "reserves", r.Manager.Count(api.PathReserve), 1)
	})
}

// With a slow manager and large answers the VM does not run out of memory. Every client gets
// its answer, and an answer that the VM has no room to keep is recorded without its body.
func TestManyLargeAnswersWaitForTheManager(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const n, size = 200, 400_000
		r := NewRig(t, guest, Options{})
		r.Manager.FailAll(api.PathCommit, Fault{HoldCall: true})
		body := strings.Repeat("x", size)
		var all []*Exchange
		for i := range n {
			x := r.Send(Request{Key: fmt.Sprint("k", i)})
			x.Upstream.AwaitHeaders(t) // a reserve must not wait for a commit that is held
			all = append(all, x)
		}
		for _, x := range all {
			x.Answer(200, body)
		}
		r.Settle()
		r.Manager.FailAll(api.PathCommit, Fault{})
		r.Manager.Release()
		whole := 0
		for i, x := range all {
			want(t, "bytes of the answer", len(x.Response().Body), size)
			state, result := r.Manager.State(fmt.Sprint("k", i))
			want(t, "state", state, api.StateCommitted)
			if !result.BodyOmitted {
				whole++
			}
		}
		t.Logf("the VM has %d MiB", r.Host.GuestMemory(0)>>20)
		want(t, "answers recorded whole", whole, 16<<20/size)
		want(t, "retry of the first", len(r.Send(Request{Key: "k0"}).Response().Body), size)
		want(t, "retry of the last", r.Send(Request{Key: fmt.Sprint("k", n-1)}).Response().Status, "410")
	})
}
