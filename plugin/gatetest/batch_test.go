package gatetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Cases that only batches can meet.

// The largest batch is answered in one callback. Neither the answers nor their consequences overflow the host's
// stack, and each call has the trace of its own request.
func TestLargestBatchIsAnsweredInOneCallback(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{MaxNestedReplies: 33})
		var all []*Exchange
		r.together(func() {
			for i := range 70 {
				all = append(all, r.Send(Request{Key: key(i), Headers: []string{"x-request-id: " + key(i), "traceparent: t-" + key(i)}}))
			}
		})
		r.answer(all)
		r.once(all)
		want(t, "batches", r.sizes(), "[64 6 64 6]")
		for _, c := range r.Manager.Calls() {
			want(t, "trace", c.Trace, c.Key+" t-"+c.Key)
		}
		want(t, "batches counted", r.Metric("oncegate_gate_callout_batches_total"), 4)
		want(t, "sizes counted", r.Metric("oncegate_gate_callout_batch_calls"), 4)
		// A lone call goes by itself.
		x := r.Send(Request{Key: "alone"})
		x.Answer(200, "")
		x.Response()
		want(t, "batches", len(r.Manager.Batches()), 4)
	})
}

// The manager has no room for any call of a batch, so the gate sends as many replies as there were calls.
func TestBatchOfAnOverloadedManager(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		for name, f := range map[string]Fault{
			"overloaded":      {Status: 503, Code: api.CodeOverloaded, RetryAfter: 7},
			"refused at once": {Refuse: true},
			"not authorized":  {Status: 401},
			"breaks":          {Status: 500},
		} {
			t.Run(name, func(t *testing.T) {
				r := newCrowd(t, guest, Options{MaxNestedReplies: 33})
				r.Manager.FailNext(api.PathBatch, f)
				for _, x := range r.send(64) {
					p := x.Response()
					want(t, "code", p.Problem(t), "manager-unavailable")
					if f.RetryAfter > 0 {
						want(t, "retry-after", p.Header("retry-after"), "7")
					}
				}
				r.Settle()
				sizes := "[64]"
				if f.Status == 500 { // it may have reserved the keys, which are given back
					sizes = "[64 64]"
				}
				want(t, "batches", r.sizes(), sizes)
				want(t, "releases", r.Manager.Count(api.PathRelease), map[int]int{500: 64}[f.Status])
				all := r.send(64)
				r.answer(all)
				r.once(all)
			})
		}
	})
}

// A batch that fails as a whole fails none of its calls: each is made again by itself, with the same token.
func TestFailedBatchFailsNoneOfItsCalls(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		cut := api.AppendRawAnswers(nil, 5)
		for range 5 {
			cut = api.AppendRawAnswer(cut, 201, 0, (&api.ReserveReply{State: api.StateReserved, ExpiresIn: time.Minute}).AppendRaw(nil))
		}
		few := api.AppendRawAnswer(api.AppendRawAnswers(nil, 1), 200, 0, (&api.ReserveReply{State: api.StateReserved}).AppendRaw(nil))
		for name, f := range map[string]Fault{
			"killed between its fsync and its answer": {Failure: hostsim.CallReset, AfterIt: true},
			"killed before":         {Failure: hostsim.CallReset},
			"cut within the answer": {Failure: hostsim.CallResetMidAnswer, AfterIt: true},
			"garbage":               {Garbage: []byte("nonsense")},
			"no body":               {Garbage: []byte{}},
			"cut short":             {Garbage: cut[:len(cut)-1]},
			"too few answers":       {Garbage: few},
			"too large an answer":   {Garbage: make([]byte, 3<<20)},
			"400":                   {Status: 400},
			"413":                   {Status: 413},
			"403 on the way":        {Status: 403, Foreign: true},
		} {
			t.Run(name, func(t *testing.T) {
				r := newCrowd(t, guest, Options{})
				r.Manager.FailNext(api.PathBatch, f)
				all := r.send(5)
				r.Manager.FailNext(api.PathBatch, f)
				r.answer(all)
				r.once(all)
				want(t, "releases", r.Manager.Count(api.PathRelease), 0)
				tokens := map[string]string{}
				for _, c := range r.Manager.Calls() {
					if tokens[c.Key] == "" {
						tokens[c.Key] = c.Token
					}
					want(t, "token", c.Token, tokens[c.Key])
				}
				want(t, "tokens", len(tokens), 5)
			})
		}
	})
}

// The answer to a batch is lost, and the call that goes out instead is refused: the batch may have reserved the key,
// which is given back, whatever the refusal says of the second call.
func TestCallOfALostBatchIsRefused(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		lost, unreadable := Fault{Failure: hostsim.CallReset, AfterIt: true}, Fault{Garbage: []byte("nonsense")}
		for name, c := range map[string]struct{ batch, call Fault }{
			"at once":                    {lost, Fault{Refuse: true}},
			"by an overloaded manager":   {lost, Fault{Status: 503, Code: api.CodeOverloaded}},
			"for its credentials":        {lost, Fault{Status: 401}},
			"after an unreadable answer": {unreadable, Fault{Status: 429}},
		} {
			t.Run(name, func(t *testing.T) {
				r := newCrowd(t, guest, Options{})
				r.Manager.FailNext(api.PathBatch, c.batch)
				r.Manager.FailNext(api.PathReserve, Fault{}, Fault{}, Fault{}, Fault{}, c.call)
				all := r.send(3)
				want(t, "code", all[1].Response().Problem(t), "manager-unavailable")
				r.Clock.Advance(time.Second)
				for i, state := range []api.State{api.StatePending, api.StateNone, api.StatePending} {
					got, _ := r.Manager.State(key(i))
					want(t, "state of "+key(i), got, state)
				}
				all[1] = r.Send(Request{Key: key(1)})
				r.answer(all)
				r.once(all)
			})
		}
	})
}

// A call of a lost batch may arrive after its repetition, and after the release that follows. So the release goes twice.
// A call that the manager asked to be made alone never arrives a second time.
func TestReleaseAfterALostBatchIsMadeTwice(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		for name, c := range map[string]struct {
			path     string
			fault    Fault
			releases int
		}{
			"lost":      {api.PathBatch, Fault{Failure: hostsim.CallReset, AfterIt: true}, 4},
			"ask alone": {api.PathReserve, Fault{Status: 503, Code: api.CodeAskAlone}, 2},
		} {
			t.Run(name, func(t *testing.T) {
				r := newCrowd(t, guest, Options{})
				r.Manager.FailNext(c.path, c.fault)
				for _, x := range r.send(2) {
					x.Answer(429, "later")
					want(t, "status", x.Response().Status, "429")
				}
				r.Clock.Advance(10 * time.Second)
				want(t, "releases", r.Manager.Count(api.PathRelease), c.releases)
			})
		}
	})
}

// Upstream answers each of the gate's own calls in its own callback. Their outcomes still go out together.
func TestOutcomesOfCarriedCallsGoTogether(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		b := &backend{changed: make(chan struct{})}
		r := newCrowd(t, guest, Options{
			Config: `{"mode":"body","client_abort":"continue","manager":{"batch":"auto"}}`, BodyMode: true,
			Clusters: map[string]hostsim.Cluster{"route-cluster": b},
		})
		all := r.send(5)
		b.await(t, len(all)-1)
		r.together(func() {
			for i := range all {
				c := b.await(t, i)
				c.answer(upstream(200, c.Headers.Get("idempotency-key")))
			}
		})
		for i, x := range all {
			want(t, "answer", x.Response().Body, key(i))
		}
		want(t, "batches", r.sizes(), "[5 5]")
		want(t, "executions", b.count(), len(all))
	})
}

// A batch that times out means the same for each of its calls as a single call that times out.
func TestBatchTimesOut(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		for _, f := range []Fault{{Lose: true}, {LoseAnswer: true}} {
			r := newCrowd(t, guest, Options{})
			r.Manager.FailNext(api.PathBatch, f)
			all := r.send(5)
			r.Clock.Advance(6 * time.Second)
			for _, x := range all {
				want(t, "code", x.Response().Problem(t), "manager-unavailable")
			}
			r.Clock.Advance(6 * time.Second)
			for i := range all {
				state, _ := r.Manager.State(key(i))
				want(t, "state", state, api.StateNone)
			}
			all = r.send(5)
			// The outcomes' batch gets lost: the clients wait for no longer than that.
			r.Manager.FailNext(api.PathBatch, f)
			r.answer(all)
			r.Clock.Advance(20 * time.Second)
			r.once(all)
		}
	})
}

// Half of the clients have left when the answer comes. The gate gives back their reservations.
func TestBatchWhoseStreamsAreGone(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		r.Manager.FailNext(api.PathBatch, Fault{Hold: true})
		all := r.send(40)
		r.together(func() {
			for _, x := range all[20:] {
				x.ClientReset()
			}
		})
		r.Manager.Release()
		r.Settle()
		for i := range all {
			state, _ := r.Manager.State(key(i))
			want(t, "state of "+key(i), state, map[bool]api.State{true: api.StatePending, false: api.StateNone}[i < 20])
		}
		// So do others before their outcomes are recorded.
		r.Manager.FailNext(api.PathBatch, Fault{Hold: true})
		r.answer(all[:20])
		r.together(func() {
			for _, x := range all[:10] {
				x.ClientReset()
			}
		})
		r.Manager.Release()
		r.Settle()
		for i := range 20 {
			want(t, "retry", r.Send(Request{Key: key(i)}).Response().Body, fmt.Sprint(i))
		}
		want(t, "waiters", r.Metric("oncegate_gate_waiters"), 0)
	})
}

// Each call has its own answer: reserved, pending elsewhere, known, of another request, unknown, refused.
func TestBatchOfMixedAnswers(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		other := NewRig(t, guest, Options{Manager: r.Manager, Clock: r.Clock})
		pending := other.Send(Request{Key: key(1)})
		pending.Upstream.AwaitHeaders(t)
		for i, x := range []*Exchange{other.Send(Request{Key: key(2)}), other.Send(Request{Key: key(3), Body: "longer"})} {
			x.Answer(200, fmt.Sprint("known ", i))
			x.Response()
		}
		unknown := other.Send(Request{Key: key(4)})
		unknown.Upstream.AwaitHeaders(t)
		unknown.Leave()
		r.Settle()
		r.Manager.FailNext(api.PathReserve, Fault{}, Fault{}, Fault{}, Fault{}, Fault{}, Fault{Status: 503, Code: api.CodeLedgerFull}, Fault{Status: 503, Code: api.CodeAskAlone})
		all := r.send(8)
		want(t, "batches", r.sizes(), "[8]")
		want(t, "of a full ledger", all[5].Response().Problem(t), "ledger-full")
		want(t, "unknown", all[4].Response().Problem(t), "outcome-unknown")
		want(t, "another request", all[3].Response().Problem(t), "fingerprint-mismatch")
		want(t, "known", all[2].Response().Body, "known 0")
		for _, i := range []int{0, 6, 7} {
			all[i].Answer(200, "mine")
			want(t, "new", all[i].Response().Body, "mine")
		}
		// No call waited for the one that has to wait, which is a separate call.
		want(t, "waits", all[1].Client.Begun(), false)
		pending.Answer(200, "theirs")
		want(t, "pending", all[1].Response().Body, "theirs")
		var waits []int
		for _, c := range r.Manager.Calls() {
			if c.Wait > 0 {
				waits = append(waits, c.Batch)
			}
		}
		want(t, "waiting calls", fmt.Sprint(waits), "[0]")
	})
}

// The ledger refuses an outcome whose key another gate has taken over, and records the others of the batch.
func TestBatchWithAFencedOutcome(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		all := r.send(3)
		r.Manager.Free(key(1))
		other := NewRig(t, guest, Options{Manager: r.Manager, Clock: r.Clock})
		y := other.Send(Request{Key: key(1)})
		y.Upstream.AwaitHeaders(t)
		r.answer(all)
		for i, x := range all {
			want(t, "answer", x.Response().Body, fmt.Sprint(i))
		}
		want(t, "batches", r.sizes(), "[3 3]")
		want(t, "fenced", r.Metric("oncegate_gate_requests_fenced_total"), 1)
		for i, state := range []api.State{api.StateCommitted, api.StatePending, api.StateCommitted} {
			got, _ := r.Manager.State(key(i))
			want(t, "state", got, state)
		}
	})
}

// The gate notices answers in the wrong order if they do not fit their calls, and runs nothing for them.
func TestBatchAnsweredInAnotherOrder(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		x := r.Send(Request{Key: "old"})
		x.Upstream.AwaitHeaders(t)
		swapped := api.AppendRawAnswers(nil, 2)
		swapped = api.AppendRawAnswer(swapped, 201, 0, (&api.ReserveReply{State: api.StateReserved, ExpiresIn: time.Minute}).AppendRaw(nil))
		swapped = api.AppendRawAnswer(swapped, 200, 0, (&api.ReserveReply{State: api.StateReleased}).AppendRaw(nil))
		r.Manager.FailNext(api.PathBatch, Fault{Garbage: swapped})
		var y *Exchange
		r.together(func() {
			x.Answer(429, "later")
			y = r.Send(Request{Key: "new"})
		})
		want(t, "batches", r.sizes(), "[2]")
		want(t, "answer", x.Response().Status, "429")
		want(t, "new", y.Response().Problem(t), "manager-unavailable")
		want(t, "upstream called", y.Upstream.Begun(), false)
		r.Clock.Advance(10 * time.Second)
		for _, k := range []string{"old", "new"} {
			state, _ := r.Manager.State(k)
			want(t, "state", state, api.StateNone)
		}
	})
}

// A batch has two calls about one key, and the cache does not help. One request runs, the other gets its answer.
func TestBatchWithTwoCallsOfOneKey(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		process := hostsim.NewProcess()
		r := newCrowd(t, guest, Options{Process: process, Hooks: hostsim.Hooks{
			BeforeSetSharedData: func(h hostsim.HookSharedData) {
				value, _, _ := process.GetSharedData("", h.Key)
				process.SetSharedData("", h.Key, value, 0)
			},
		}})
		var x, y *Exchange
		r.together(func() {
			x, y = r.Send(Request{Key: "k"}), r.Send(Request{Key: "k"})
		})
		want(t, "batches", r.sizes(), "[2]")
		x.Answer(200, "once")
		want(t, "first", x.Response().Body, "once")
		want(t, "second", y.Response().Body, "once")
		want(t, "upstream called", y.Upstream.Begun(), false)
	})
}

// A large answer goes by itself.
func TestLargeAnswersGoAlone(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		all := r.send(4)
		large := strings.Repeat("x", 100_000)
		r.together(func() {
			for i, x := range all {
				x.Answer(200, map[bool]string{true: large, false: "small"}[i == 1])
			}
		})
		want(t, "answer", all[1].Response().Body, large)
		want(t, "batches", r.sizes(), "[4 3]")
		want(t, "commits", r.Manager.Count(api.PathCommit), 4)
	})
}

// Renewals, and reports of unknown outcomes, go together as well.
func TestBatchOfRenewalsAndUnknowns(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{Config: `{"manager":{"batch":"auto"},"pending_ttl_seconds":9}`})
		all := r.send(4)
		r.Clock.Advance(3500 * time.Millisecond)
		want(t, "batches", r.sizes(), "[4 4]")
		want(t, "renewals", r.Manager.Count(api.PathRenew), 4)
		r.together(func() {
			for _, x := range all {
				x.ClientReset()
			}
		})
		want(t, "batches", r.sizes(), "[4 4 4]")
		want(t, "unknown", r.Manager.Count(api.PathUnknown), 4)
	})
}

// A proxy on the way to the manager refuses batches. The gate makes single calls until it passes them on, and the log says so.
func TestProxyThatRefusesBatches(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := newCrowd(t, guest, Options{})
		r.Manager.FailAll(api.PathBatch, Fault{Foreign: true, Status: 404})
		all := r.send(5)
		r.answer(all)
		r.once(all)
		want(t, "batches tried", len(r.Manager.Batches()), 1)
		r.Clock.Advance(2 * time.Minute)
		r.together(func() {
			r.Send(Request{Key: "a"}).ClientReset()
			r.Send(Request{Key: "b"})
			r.Send(Request{Key: "c"})
		})
		want(t, "tried again", len(r.Manager.Batches()), 2)
		wantLog(t, r.Rig, "a proxy on the way to the manager refuses batches", 2)
		r.Manager.FailAll(api.PathBatch, Fault{})
		r.Clock.Advance(2 * time.Minute)
		r.together(func() {
			r.Send(Request{Key: "d"})
			r.Send(Request{Key: "e"})
		})
		batches := r.Manager.Batches()
		want(t, "the last batch", batches[len(batches)-1], 2)
	})
}

// A manager that stands still gets a bounded number of callouts. Calls that come meanwhile go out together later.
func TestCalloutsUnderWayAreBounded(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		const most, more = 1 + 255*4, 30 // of 256 callouts all but the first have waited for four calls
		r := newCrowd(t, guest, Options{})
		r.Manager.FailAll(api.PathReserve, Fault{HoldCall: true})
		var all []*Exchange
		for i := range most + more {
			all = append(all, r.Send(Request{Key: fmt.Sprint("k", i)}))
			r.Settle()
		}
		want(t, "calls", r.Manager.Count(api.PathReserve), most)
		r.Manager.FailAll(api.PathReserve, Fault{})
		r.Manager.Release()
		r.Settle()
		for _, x := range all {
			x.Answer(200, "done")
			want(t, "answer", x.Response().Body, "done")
		}
		want(t, "reserves", r.Manager.Count(api.PathReserve), most+more)
		want(t, "went together", slices.Max(r.Manager.Batches()) > 1, true)
	})
}
