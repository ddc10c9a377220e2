package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// TestHammerRunsEachKeyOnce: eight VMs run the same keys concurrently, as the gate does. Every
// key is executed exactly once more than it was released, and all VMs get the same
// answer. Every VM that waits is woken: a lost wake-up hangs the test.
func TestHammerRunsEachKeyOnce(t *testing.T) {
	const vms, keys, releases = 8, 40, 2
	for _, r := range usableHosts {
		t.Run(r.name, func(t *testing.T) {
			h := newHost(r)
			o := Options{MaxEntries: 128, MaxBytes: 1 << 20, MaxResultBytes: 4000}
			var executing, executed [keys]atomic.Int32
			var tokens atomic.Int32
			wake := make([]chan struct{}, vms)
			for i := range wake {
				wake[i] = make(chan struct{}, 1)
			}
			notify := func(queues []uint32) {
				for _, q := range queues {
					select {
					case wake[q] <- struct{}{}:
					default: // it is already asked to look
					}
				}
			}
			want := func(k int) string { return fmt.Sprintf("answer %d %s", k, strings.Repeat("x", k*20)) }
			deadline := time.After(2 * time.Minute)
			stop := make(chan struct{})
			var failed atomic.Bool
			fail := func(format string, args ...any) {
				t.Errorf(format, args...)
				if failed.CompareAndSwap(false, true) {
					close(stop)
				}
			}

			// one gets the answer of key k for VM vm.
			one := func(tab *Table, vm, k int) bool {
				// Five keys per bucket, so that no entry has to leave.
				hash := hashOf(k%8, k/8+1)
				token := tokenOf(int(tokens.Add(1)))
				for {
					var e Entry
					res, woken := tab.Reserve(&Reservation{Hash: hash, Token: token, Owner: uint32(vm), Expires: 1 << 40, CacheOnly: true}, 1, &e)
					notify(woken)
					switch {
					case res == Created:
						if n := executing[k].Add(1); n != 1 {
							fail("key %d is executed %d times at once", k, n)
						}
						runtime.Gosched()
						n := executed[k].Add(1)
						executing[k].Add(-1)
						for {
							var woken []uint32
							if n <= releases {
								res, woken = tab.Release(&hash, &token, 1)
							} else {
								res, woken = tab.Finish(&Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: 1 << 40, CacheOnly: true, Raw: []byte(want(k))}, 1)
							}
							notify(woken)
							if res != Contended {
								break
							}
						}
						if res != Done {
							fail("key %d: the owner could not end it: %d", k, res)
							return false
						}
						token = tokenOf(int(tokens.Add(1)))
					case res == Existing && e.State == api.StatePending:
						if res := tab.AddWaiter(&hash, uint32(vm), 1); res != Waiting {
							continue // it ended, or too many others write: look again
						}
						select {
						case <-wake[vm]:
						case <-stop:
							return false
						case <-deadline:
							fail("VM %d was not woken for key %d", vm, k)
							return false
						}
					case res == Existing:
						body, ok := tab.Body(&e)
						if !ok || string(body) != want(k) {
							fail("VM %d: key %d answers %.40q, %v", vm, k, body, ok)
						}
						return true
					case res == Contended:
						runtime.Gosched()
					default:
						fail("Reserve = %d", res)
						return false
					}
					select {
					case <-stop:
						return false
					default:
					}
				}
			}
			var wg sync.WaitGroup
			for vm := 0; vm < vms; vm++ {
				wg.Go(func() {
					tab := newTable(h, o)
					for _, k := range rand.New(rand.NewPCG(1, uint64(vm/2))).Perm(keys) {
						if !one(tab, vm, k) {
							return
						}
						notify(tab.Sweep(8, 1))
					}
				})
			}
			wg.Wait()
			for k := range executed {
				if n := executed[k].Load(); n != releases+1 && !failed.Load() {
					t.Errorf("key %d was executed %d times, want %d", k, n, releases+1)
				}
			}
		})
	}
}

// TestHammerOfAllOperations mixes all operations, sizes, expiries and evictions, with
// and without host failures. Nothing panics, no entry ever answers with another
// entry's body, and in the end everything is within its bounds.
func TestHammerOfAllOperations(t *testing.T) {
	const vms, rounds = 6, 1500
	for _, r := range usableHosts {
		for _, failures := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, failures %v", r.name, failures), func(t *testing.T) {
				h := newHost(r)
				o := Options{MaxEntries: 32, MaxBytes: minBytes, MaxResultBytes: 30000, TouchInterval: 5}
				var clock, tokens, calls atomic.Int64
				if failures {
					h.before = func(op, _ string) Status {
						switch n := calls.Add(1); {
						case n < 100: // the probes must succeed
						case n%97 == 0:
							return Failed
						case op == "set" && n%13 == 0:
							return CASMismatch
						}
						return OK
					}
				}
				// The body of an entry says whose it is.
				body := func(hash Hash, token Token, size int) []byte {
					return []byte((fmt.Sprintf("%x %x ", hash, token) + strings.Repeat("y", size)))
				}
				var wg sync.WaitGroup
				for vm := 0; vm < vms; vm++ {
					tab := newTable(h, o)
					wg.Go(func() {
						rnd := rand.New(rand.NewPCG(7, uint64(vm)))
						for i := 0; i < rounds; i++ {
							now := clock.Add(int64(rnd.IntN(3)))
							hash := hashOf(rnd.IntN(4), 1+rnd.IntN(12))
							token := tokenOf(int(tokens.Add(1)))
							var e Entry
							switch rnd.IntN(8) {
							case 0:
								tab.Sweep(rnd.IntN(10), now)
							case 1:
								tab.AddWaiter(&hash, uint32(vm), now)
							case 2, 3:
								if !tab.Lookup(&hash, now, &e) {
									continue
								}
								if e.Hash != hash {
									t.Errorf("Lookup(%x) = %+v", hash, e)
								}
								if got, ok := tab.Body(&e); ok && !strings.HasPrefix(string(got), fmt.Sprintf("%x %x ", e.Hash, e.Token)) {
									t.Errorf("entry %x of %x answers %.80q", e.Hash, e.Token, got)
								}
							default:
								res, _ := tab.Reserve(&Reservation{Hash: hash, Token: token, Owner: uint32(vm), Expires: now + 20 + int64(rnd.IntN(100)), CacheOnly: rnd.IntN(4) == 0}, now, &e)
								if res != Created && rnd.IntN(3) > 0 {
									continue
								}
								if rnd.IntN(5) == 0 {
									tab.Release(&hash, &token, now)
									continue
								}
								size := rnd.IntN(3000)
								if rnd.IntN(10) == 0 {
									size = rnd.IntN(30000)
								}
								tab.Finish(&Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: now + int64(rnd.IntN(200)),
									CacheOnly: rnd.IntN(4) == 0, Learned: rnd.IntN(2) == 0, Raw: body(hash, token, size)}, now)
							}
						}
					})
				}
				wg.Wait()
				if limit := 4*(Ways+1) + 3; len(h.m) > limit {
					t.Errorf("%d keys, the bound is %d", len(h.m), limit)
				}
				h.before = nil
				tab := newTable(h, o)
				if !failures && h.bytes > minBytes {
					t.Errorf("%d bytes are stored, the bound is %d", h.bytes, minBytes)
				}
				// A new life of every bucket: whatever failed calls left goes
				// with the next use, at the latest when all is over.
				end := clock.Load() + 1000
				for b := 0; b < tab.buckets; b++ {
					for id := 100; id < 100+2*Ways; id++ {
						hash, token := hashOf(b, id), tokenOf(int(tokens.Add(1)))
						var e Entry
						if res, _ := tab.Reserve(&Reservation{Hash: hash, Token: token, Expires: end + 10}, end, &e); res != Created {
							t.Fatalf("Reserve = %d", res)
						}
						raw := body(hash, token, 500)
						if res, _ := tab.Finish(&Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: end + 10, Raw: raw}, end); res != Done {
							t.Fatalf("Finish = %d", res)
						}
						if got, ok, _ := answer(tab, hash, end); !ok || got != string(raw) {
							t.Fatalf("answer = %.60q, %v", got, ok)
						}
					}
				}
				tab.Sweep(1<<20, end+5000)
				tab.Sweep(1<<20, end+5000)
				if h.bytes > minBytes {
					t.Errorf("after all is over %d bytes are stored", h.bytes)
				}
			})
		}
	}
}
