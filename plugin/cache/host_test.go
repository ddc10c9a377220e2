package cache

import (
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// rules are a host's rules for set.
type rules struct {
	name string
	// zeroOverwrites: a zero CAS overwrites a present key; otherwise it is
	// compared like any other number.
	zeroOverwrites bool
	// absentCompares: on an absent key, a non-zero CAS mismatches; otherwise
	// anything creates.
	absentCompares bool
	// perKey: every key has its own counter, which starts from the CAS that the
	// key was created with; otherwise one counter serves all keys and skips 0.
	perKey bool
}

var (
	envoy     = rules{name: "envoy", zeroOverwrites: true}
	strict    = rules{name: "strict", absentCompares: true}
	proxytest = rules{name: "proxytest", perKey: true} // of the Go SDK
	// On this kind of host, which is not known to exist, zero overwrites and every key has its own counter.
	ownCounters = rules{name: "own counters", zeroOverwrites: true, perKey: true}

	usableHosts = []rules{envoy, strict, proxytest, ownCounters}
)

type hostValue struct {
	data []byte
	cas  uint32
}

// host is a shared-data store with exactly these rules, safe for concurrent use.
type host struct {
	rules
	mu      sync.Mutex
	m       map[string]hostValue
	counter uint32 // next CAS number of the common counter
	bytes   int
	peak    int
	gets    int
	sets    int

	// before, if set, runs before a call takes effect, without the lock, so that
	// a test can let another VM go first. A status other than OK becomes the
	// call's result.
	before func(op, key string) Status
}

func newHost(r rules) *host { return &host{rules: r, m: map[string]hostValue{}, counter: 1} }

func (h *host) hook(op, key string) Status {
	if h.before == nil {
		return OK
	}
	return h.before(op, strings.Clone(key))
}

func (h *host) Get(key string, room []byte) ([]byte, uint32, Status) {
	if st := h.hook("get", key); st != OK {
		return nil, 0, st
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gets++
	v, ok := h.m[key]
	if !ok {
		return nil, 0, NotFound
	}
	return append(room[:0], v.data...), v.cas, OK
}

func (h *host) Set(key string, value []byte, cas uint32) Status {
	if st := h.hook("set", key); st != OK {
		return st
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sets++
	v, ok := h.m[key]
	switch {
	case ok && cas == 0 && h.zeroOverwrites:
	case ok && cas != v.cas:
		return CASMismatch
	case !ok && cas != 0 && h.absentCompares:
		return CASMismatch
	}
	next := hostValue{data: append([]byte(nil), value...)}
	switch {
	case h.perKey && ok:
		next.cas = v.cas + 1
	case h.perKey:
		next.cas = cas + 1
	default:
		next.cas = h.counter
		if h.counter++; h.counter == 0 {
			h.counter = 1
		}
	}
	h.bytes += len(value) - len(v.data)
	h.peak = max(h.peak, h.bytes)
	h.m[strings.Clone(key)] = next
	return OK
}

// hashOf makes a hash of the bucket that a test wants.
func hashOf(bucket, id int) (h Hash) {
	h[7] = byte(bucket)
	h[6] = byte(bucket >> 8)
	h[15] = byte(id)
	h[14] = byte(id >> 8)
	h[13] = byte(id >> 16)
	return h
}

func tokenOf(n int) (t Token) {
	t[0] = 1
	t[14] = byte(n >> 8)
	t[15] = byte(n)
	t[13] = byte(n >> 16)
	return t
}

func newTable(h *host, o Options) *Table { return New(h, Probe(h, o.Prefix), o) }

func TestProbeTellsHostsApart(t *testing.T) {
	for _, r := range usableHosts {
		t.Run(r.name, func(t *testing.T) {
			h := newHost(r)
			want := Semantics{ZeroOverwrites: r.zeroOverwrites, Usable: true}
			for i := 0; i < 3; i++ { // also with what an earlier probe left
				if got := Probe(h, ""); got != want {
					t.Fatalf("probe %d = %+v, want %+v", i, got, want)
				}
			}
			if len(h.m) != 1 {
				t.Errorf("the probe left %d keys", len(h.m))
			}
		})
	}
}

// A scratch key that was created in another way must not mislead the probe: on a
// host that compares zero like any other number, a key may have the number 0.
func TestProbeIsNotMisledByNumberZero(t *testing.T) {
	h := newHost(proxytest)
	if st := h.Set(defaultPrefix+scratchSuffix, []byte{7}, 1<<32-1); st != OK {
		t.Fatal(st)
	}
	if _, cas, _ := h.Get(defaultPrefix+scratchSuffix, nil); cas != 0 {
		t.Fatalf("the test wants number 0, the host gave %d", cas)
	}
	if got, want := Probe(h, ""), (Semantics{Usable: true}); got != want {
		t.Errorf("probe = %+v, want %+v", got, want)
	}
}

func TestConcurrentProbesAgree(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		want := Semantics{ZeroOverwrites: r.zeroOverwrites, Usable: true}
		var wg sync.WaitGroup
		for i := 0; i < 8; i++ {
			wg.Go(func() {
				for j := 0; j < 50; j++ {
					if got := Probe(h, ""); got != want {
						t.Errorf("%s: probe = %+v, want %+v", r.name, got, want)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestUnusableHostsAreReported: if shared data fails, or offers no create-if-absent, every
// operation reports that. Reserve never claims to have reserved.
func TestUnusableHostsAreReported(t *testing.T) {
	failing := newHost(envoy)
	failing.before = func(string, string) Status { return Failed }
	readOnly := newHost(envoy)
	readOnly.before = func(op, _ string) Status {
		if op == "set" {
			return Failed
		}
		return OK
	}
	noCreate := newHost(rules{zeroOverwrites: true, absentCompares: true})
	for name, h := range map[string]*host{"failing": failing, "read-only": readOnly, "no create": noCreate} {
		tab := newTable(h, Options{})
		var e Entry
		hash, token := hashOf(1, 1), tokenOf(1)
		if res, _ := tab.Reserve(&Reservation{Hash: hash, Token: token, Expires: 100}, 1, &e); res != Contended {
			t.Errorf("%s: Reserve = %d, want Contended", name, res)
		}
		if tab.Lookup(&hash, 1, &e) {
			t.Errorf("%s: Lookup found something", name)
		}
		if res, _ := tab.Finish(&Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: 100, Raw: []byte("x")}, 1); res != Contended {
			t.Errorf("%s: Finish = %d, want Contended", name, res)
		}
		if res, _ := tab.Release(&hash, &token, 1); res != Contended && res != Gone {
			t.Errorf("%s: Release = %d, want Contended or Gone", name, res)
		}
		if wake := tab.Sweep(100, 1); len(wake) != 0 {
			t.Errorf("%s: Sweep woke %v", name, wake)
		}
	}
}

// TestOnlyOneVMCreatesAnEntry lets a second VM reserve, and change its bucket a few times, at
// every step between the first VM's look at an absent bucket and its set, for many
// values of the host's counter. Only one VM may have created the entry.
func TestOnlyOneVMCreatesAnEntry(t *testing.T) {
	starts := []uint32{1, 2, 1000, 1<<31 - 20, 1 << 31, 1<<32 - 40}
	for d := uint32(0); d < 16; d++ {
		starts = append(starts, 1<<31-8+d, 1<<32-16+d)
	}
	const firstCalls = 4 // bucket, scratch, scratch, bucket
	for _, r := range usableHosts {
		for _, start := range starts {
			for step := range firstCalls {
				for changes := range 3 {
					createRace(t, r, start, step, changes)
				}
			}
		}
	}
}

func createRace(t *testing.T, r rules, start uint32, step, changes int) {
	t.Helper()
	h := newHost(r)
	first, second := newTable(h, Options{}), newTable(h, Options{})
	h.counter = max(start, 1)
	hash := hashOf(3, 1)
	reserve := func(tab *Table, token int) (Result, Entry) {
		var e Entry
		res, _ := tab.Reserve(&Reservation{Hash: hash, Token: tokenOf(token), Expires: 100}, 1, &e)
		return res, e
	}
	secondRes, calls, raced := Contended, 0, false
	h.before = func(string, string) Status {
		if calls++; calls != step+1 || raced {
			return OK
		}
		raced = true
		secondRes, _ = reserve(second, 2)
		for i := range changes {
			second.AddWaiter(&hash, uint32(i+1), 1)
		}
		return OK
	}
	firstRes, e := reserve(first, 1)
	if !raced {
		return // this host needs fewer calls
	}
	if secondRes != Created || firstRes != Existing || e.Token != tokenOf(2) {
		t.Errorf("%s, counter from %d, at call %d, %d changes: the first VM got %d (token %v), the second %d; want Existing and Created",
			r.name, start, step, changes, firstRes, e.Token, secondRes)
	}
}
