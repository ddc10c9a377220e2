package gatetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

var errInjected = errors.New("injected")

// A VM dies: its streams hang, but everybody else gets an answer in time and the
// key comes back when the reservation is over.
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
					r.Manager.Next(c.path, c.fault)
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
				want(t, "the waiter runs", y.Upstream.Begun(), false)
				state, _ := r.Manager.State("k")
				want(t, "state", state, c.state)
				r.Clock.Advance(31 * time.Second)
				want(t, "the waiter is told", y.Response().Status, "409")
				r.Clock.Advance(30 * time.Second)
				z := r.Send(Request{Key: "k", Worker: 0}) // the new VM
				if c.state == api.StateCommitted {
					want(t, "retry", z.Response().Body, "done")
					return
				}
				z.Answer(200, "again")
				want(t, "retry", z.Response().Body, "again")
			})
		}
	})
}

// Somebody else writes between every read and write of the table: the cache is of no
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

// Many keys, many retries, two gates of several workers, clients that leave anywhere, a
// manager that fails often: no key runs twice, and all answers of a key are the same.
func TestHammer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const keys, clients, retries = 25, 12, 25
		config := `{"pending_ttl_seconds":86400,"committed_ttl_seconds":86400,"pending_wait_timeout":2,"max_entries":64}`
		a := NewRig(t, guest, Options{Config: config, Workers: 3})
		b := NewRig(t, guest, Options{Config: config, Workers: 3, Manager: a.Manager, Clock: a.Clock})
		rigs := []*Rig{a, b}

		stop := make(chan struct{})
		var mover sync.WaitGroup
		mover.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					a.Clock.Advance(50 * time.Millisecond)
				}
			}
		})
		var mu sync.Mutex
		executions := make(map[string]int)
		answers := make(map[string]string)
		replays, unanswered := 0, 0
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(c)))
				for range retries {
					key := fmt.Sprint("key", rng.IntN(keys))
					if rng.IntN(10) == 0 {
						faults := []Fault{{Refuse: true}, {Status: 503}, {Failure: hostsim.CallReset, AfterIt: true}, {Failure: hostsim.CallConnectFailed}}
						paths := []string{api.PathReserve, api.PathCommit, api.PathRelease}
						a.Manager.Next(paths[rng.IntN(len(paths))], faults[rng.IntN(len(faults))])
					}
					x := rigs[rng.IntN(2)].Send(Request{Key: key, Worker: rng.IntN(3)})
					leave := rng.IntN(8) // 0: at once, 1: when upstream has it, 2: within the answer
					if leave == 0 {
						x.Leave()
						if x.Upstream.Begun() {
							mu.Lock()
							executions[key]++
							mu.Unlock()
						}
						continue
					}
					if x.begunOrAnswered(t) {
						mu.Lock()
						executions[key]++
						body := fmt.Sprint(key, " execution ", executions[key])
						mu.Unlock()
						switch leave {
						case 1:
							x.Leave()
							continue
						case 2:
							x.ResponseHeaders(hostsim.H(":status", "200", "content-length", fmt.Sprint(len(body))), false)
							x.Leave()
							continue
						}
						x.Answer(200, body)
					}
					p := x.Response()
					mu.Lock()
					if p.Status == "200" {
						if answers[key] == "" {
							answers[key] = p.Body
						}
						if answers[key] != p.Body {
							t.Errorf("%s: answers %q and %q", key, answers[key], p.Body)
						}
						if p.Header("idempotent-replayed") == "true" {
							replays++
						}
					} else {
						unanswered++
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		close(stop)
		mover.Wait()
		for key, n := range executions {
			if n > 1 {
				t.Errorf("%s ran %d times", key, n)
			}
		}
		if replays == 0 || len(answers) == 0 {
			t.Errorf("nothing was replayed (%d answers, %d replays, %d unanswered)", len(answers), replays, unanswered)
		}
	})
}

// begunOrAnswered waits for what comes first: upstream gets the request (true), or the
// client gets an answer.
func (x *Exchange) begunOrAnswered(t *testing.T) bool {
	t.Helper()
	deadline := time.After(patience)
	for {
		x.Upstream.mu.Lock()
		begun, up := x.Upstream.begun, x.Upstream.changed
		x.Upstream.mu.Unlock()
		x.Client.mu.Lock()
		answered, down := x.Client.ended, x.Client.changed
		x.Client.mu.Unlock()
		if begun || answered {
			return begun
		}
		select {
		case <-up:
		case <-down:
		case <-deadline:
			t.Error("a request is neither forwarded nor answered")
			return false
		}
	}
}
