package gatetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// There are many keys and retries, two gates with several workers, clients that leave anywhere,
// and a manager that fails often. No key runs twice, and all answers of a key are the same.
func TestHammer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		// The clock runs as fast as it can, so nothing may depend on its speed. The TTLs that
		// must not end are a year.
		const times = `"pending_ttl_seconds":31622400,"committed_ttl_seconds":31622400,"pending_wait_timeout":2`
		for _, v := range []struct {
			name, config string
			body         bool
			gates        int
		}{
			// A cache that is smaller than the number of keys, too.
			{"headers mode", `{` + times + `,"max_entries":8}`, false, 2},
			{"body mode", `{` + times + `,"mode":"body"}`, true, 2},
			{"async", `{` + times + `,"commit":"async"}`, false, 2},
			{"cache only", `{` + times + `,"ledger":"none"}`, false, 1},
		} {
			t.Run(v.name, func(t *testing.T) {
				o := Options{Config: v.config, BodyMode: v.body, Workers: hammerWorkers, IdleTimeout: 366 * 24 * time.Hour}
				rigs := []*Rig{NewRig(t, guest, o)}
				for len(rigs) < v.gates {
					o.Manager, o.Clock = rigs[0].Manager, rigs[0].Clock
					rigs = append(rigs, NewRig(t, guest, o))
				}
				hammer(t, rigs, []*Manager{rigs[0].Manager}, nil)
			})
		}
	})
}

// hammerWorkers is how many workers each gate has.
const hammerWorkers = 4

// hammer sends many requests through the gates while calls to the managers fail. after, if not nil, is called
// before the n-th request.
func hammer(t *testing.T, rigs []*Rig, managers []*Manager, after func(n int)) {
	const keys, clients, retries = 25, 12, 15
	var begun atomic.Int64
	a := rigs[0]
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
				number := rng.IntN(keys)
				if n := int(begun.Add(1)); after != nil {
					after(n)
					number += n / 6 // new keys come all the time
				}
				key := fmt.Sprint("key", number)
				if rng.IntN(10) == 0 {
					faults := []Fault{{Close: 14}, {Status: 503}, {Close: 14, AfterIt: true}, {Close: 13}, {Close: 16, AfterIt: true}, {LoseAnswer: true}}
					paths := []string{api.PathReserve, api.PathCommit, api.PathRelease}
					managers[rng.IntN(len(managers))].FailNext(paths[rng.IntN(len(paths))], faults[rng.IntN(len(faults))])
				}
				if rng.IntN(20) == 0 {
					managers[rng.IntN(len(managers))].CutStreams(14)
				}
				x := rigs[rng.IntN(len(rigs))].Send(Request{Key: key, Worker: rng.IntN(hammerWorkers), Body: "the body of " + key})
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
}

// begunOrAnswered waits until upstream gets the request (true) or the client gets an
// answer (false).
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

// While shards are added, some gates have the old list and some have both. The managers get the new list one after
// another, and calls fail at any time. No key runs twice, whichever gate gets its retries.
func TestHammerWhileShardsAreAdded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const times = `"pending_ttl_seconds":31622400,"committed_ttl_seconds":31622400,"unknown_ttl_seconds":31622400,"pending_wait_timeout":2,"max_entries":8`
		s := newShards(t, guest, three...)
		s.workers = hammerWorkers
		s.managers["three"].BecomeShard("three", three...)
		rigs := []*Rig{s.gate(list("shards", before...), times), s.gate(during, times), s.gate(during, times)}
		managers := []*Manager{s.managers["one"], s.managers["two"], s.managers["three"]}
		hammer(t, rigs, managers, func(n int) {
			switch n {
			case 60:
				managers[0].BecomeShard("one", three...)
			case 120:
				managers[1].BecomeShard("two", three...)
			}
		})
		// On a busy machine few of the requests may have met a key that moved.
		for i := 0; rigs[1].Metric("oncegate_gate_call_moved_total") == 0; i++ {
			if i == 100 {
				t.Fatal("no key moved")
			}
			x := rigs[1].Send(Request{Key: fmt.Sprint("late", i)})
			if x.begunOrAnswered(t) {
				x.Answer(200, "")
			}
			x.Response()
		}
	})
}
