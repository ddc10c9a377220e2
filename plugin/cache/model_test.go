package cache

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"pgregory.net/rapid"
)

// modelEntry is an entry of the model, as a map with TTL and LRU would hold it.
type modelEntry struct {
	state   api.State
	sole    bool
	token   Token
	expires int64
	lastUse int64
	body    []byte // nil: not kept
	waiters []uint32
}

// model is a plain description of the table. Each bucket has at most Ways entries.
// The least recently used ones are evicted, pending ones last, and those without a
// ledger never. Which entries were evicted for other entries' bytes, the model
// learns from the table.
type model struct {
	largest int // bytes of a value
	buckets map[int]map[Hash]*modelEntry
}

func (m *model) bucket(b int) map[Hash]*modelEntry {
	if m.buckets[b] == nil {
		m.buckets[b] = map[Hash]*modelEntry{}
	}
	return m.buckets[b]
}

// oldest returns the least recently used live entry that ok accepts.
func oldest(entries map[Hash]*modelEntry, now int64, ok func(*modelEntry) bool) (h Hash, found bool) {
	var best int64
	for k, e := range entries {
		if e.expires > now && ok(e) && (!found || e.lastUse < best) {
			h, best, found = k, e.lastUse, true
		}
	}
	return h, found
}

// room makes room for one more entry and returns the waiters of the evicted one.
// No entry may have expired (see drop).
func room(entries map[Hash]*modelEntry, now int64, pending bool) (wake []uint32, ok bool) {
	if len(entries) < Ways {
		return nil, true
	}
	h, found := oldest(entries, now, func(e *modelEntry) bool { return e.state.Terminal() && !e.sole })
	if !found && pending {
		h, found = oldest(entries, now, func(e *modelEntry) bool { return !e.sole })
	}
	if !found {
		return nil, false
	}
	wake = entries[h].waiters
	delete(entries, h)
	return wake, true
}

// sync removes the entries that the table evicted for an operation that needed
// room, except that of keep. In each bucket they must be those used longest ago.
// noRoom: the operation got no room, so no entry that could make room may be left.
func (m *model) sync(t *rapid.T, tab *Table, keep Hash, noRoom bool, now int64) {
	left := uint64(0)
	for b, entries := range m.buckets {
		oldest, gone := int64(1<<62), int64(0)
		for h, e := range entries {
			if h == keep {
				continue
			}
			if tab.has(&h) {
				if e.state.Terminal() && !e.sole && e.body != nil && e.expires > now {
					oldest = min(oldest, e.lastUse)
				}
				continue
			}
			if !e.state.Terminal() || e.sole || e.body == nil {
				t.Fatalf("%+v of bucket %d left for others' bytes", e, b)
			}
			gone = max(gone, e.lastUse)
			left++
			delete(entries, h)
		}
		if gone > oldest {
			t.Fatalf("an entry used at %d left bucket %d, one used at %d did not", gone, b, oldest)
		}
		if noRoom && oldest < 1<<62 {
			t.Fatalf("there is no room, but an entry of bucket %d could have left", b)
		}
	}
	if left > 0 && tab.Stats().Evictions == 0 {
		t.Fatalf("%d entries left, nothing was counted", left)
	}
}

// run drives two VMs' tables over one host and the model through random
// operations and compares every answer.
func run(t *rapid.T, r rules, o Options) {
	h := newHost(r)
	o.TouchInterval = -1
	tabs := []*Table{newTable(h, o), newTable(h, o)}
	m := &model{largest: tabs[0].largest, buckets: map[int]map[Hash]*modelEntry{}}
	buckets := tabs[0].buckets
	now := int64(1000)
	tokens := 0
	issued := map[Hash][]Token{}
	spent := map[Token]bool{} // it has recorded an answer

	pick := func() (Hash, int) {
		// Mostly one bucket, so that it gets full.
		b := max(rapid.IntRange(-6, buckets-1).Draw(t, "bucket"), 0)
		return hashOf(b, rapid.IntRange(1, 12).Draw(t, "id")), b
	}
	tab := func() *Table { return tabs[rapid.IntRange(0, 1).Draw(t, "vm")] }
	fresh := func(h Hash) Token {
		tokens++
		issued[h] = append(issued[h], tokenOf(tokens))
		return tokenOf(tokens)
	}
	someToken := func(h Hash) Token {
		if len(issued[h]) > 0 && rapid.IntRange(0, 9).Draw(t, "known token") > 0 {
			n := len(issued[h])
			token := issued[h][max(0, n-1-rapid.IntRange(0, 1).Draw(t, "back"))]
			have := m.bucket(int(h[7]))[h]
			if !spent[token] || (have != nil && have.token == token) {
				return token
			}
		}
		return fresh(h)
	}
	sameQueues := func(what string, got, want []uint32) {
		got, want = slices.Clone(got), slices.Clone(want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%s woke %v, want %v", what, got, want)
		}
	}
	// drop removes expired entries from the model. In the table they stay until their
	// way is needed, but their waiters must be woken. So the table is swept if there
	// are waiters, and at random.
	drop := func(sweep bool) {
		var want []uint32
		for _, entries := range m.buckets {
			for k, e := range entries {
				if e.expires <= now {
					want = append(want, e.waiters...)
					delete(entries, k)
				}
			}
		}
		if len(want) == 0 && !sweep {
			return
		}
		// Two calls: the first may begin in the middle.
		var got []uint32
		vm := tabs[tokens%2]
		for i := 0; i < 2; i++ {
			got = append(got, vm.Sweep(1<<20, now)...)
		}
		sameQueues("Sweep", got, want)
	}

	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			now++
			drop(false)
			checkHeld(t, h, tabs[0])
			if h.peak > max(o.MaxBytes, minBytes) {
				t.Fatalf("%d bytes were stored, the bound is %d", h.peak, o.MaxBytes)
			}
		},
		"time": func(t *rapid.T) {
			now += int64(rapid.IntRange(1, 300).Draw(t, "step"))
			drop(rapid.Bool().Draw(t, "sweep"))
		},
		"lookup": func(t *rapid.T) {
			hash, b := pick()
			entries := m.bucket(b)
			want := entries[hash]
			var e Entry
			vm := tab()
			got := vm.Lookup(&hash, now, &e)
			if got != (want != nil) {
				t.Fatalf("Lookup = %v, the model has %+v", got, want)
			}
			if !got {
				return
			}
			want.lastUse = now
			if e.State != want.state || e.Expires != want.expires || e.CacheOnly != want.sole || (e.Token != want.token && want.state == api.StatePending) {
				t.Fatalf("Lookup = %+v, the model has %+v", e, want)
			}
			m.compareBody(t, vm, &e, want)
		},
		"reserve": func(t *rapid.T) {
			hash, b := pick()
			entries := m.bucket(b)
			var token Token
			if rapid.Bool().Draw(t, "again") {
				token = someToken(hash)
			} else {
				token = fresh(hash)
			}
			res := Reservation{Hash: hash, Token: token, Owner: 7, Expires: now + int64(rapid.IntRange(1, 400).Draw(t, "ttl")), CacheOnly: rapid.IntRange(0, 3).Draw(t, "sole") == 0}
			var e Entry
			vm := tab()
			refused := vm.Stats().Refused
			got, wake := vm.Reserve(&res, now, &e)
			if have := entries[hash]; have != nil {
				want := Existing
				if have.state == api.StatePending && have.token == token {
					want = Created
				}
				if got != want || e.State != have.state {
					t.Fatalf("Reserve = %d %+v, want %d, the model has %+v", got, e, want, have)
				}
				sameQueues("Reserve", wake, nil)
				return
			}
			before := maps.Clone(entries)
			woken, ok := room(entries, now, true)
			var gone Hash
			var leaving *modelEntry
			for h, e := range before {
				if entries[h] == nil {
					gone, leaving = h, e
				}
			}
			if !ok {
				if got != Full {
					t.Fatalf("Reserve = %d, want Full", got)
				}
				return
			}
			if got == Full && vm.Stats().Refused > refused {
				// The entry whose way it wanted is still there.
				entries[gone] = leaving
				if leaving == nil {
					delete(entries, gone)
				}
				m.sync(t, vm, hash, true, now)
				return
			}
			if got != Created {
				t.Fatalf("Reserve = %d, want Created", got)
			}
			m.sync(t, vm, hash, false, now)
			sameQueues("Reserve", wake, woken)
			entries[hash] = &modelEntry{state: api.StatePending, sole: res.CacheOnly, token: token, expires: res.Expires, lastUse: now}
		},
		"wait": func(t *rapid.T) {
			hash, b := pick()
			queue := uint32(rapid.IntRange(1, 5).Draw(t, "queue"))
			got := tab().AddWaiter(&hash, queue, now)
			have := m.bucket(b)[hash]
			if have == nil || have.state != api.StatePending {
				if got != Ended {
					t.Fatalf("AddWaiter = %d, want Ended", got)
				}
				return
			}
			if got != Waiting {
				t.Fatalf("AddWaiter = %d, want Waiting", got)
			}
			if !slices.Contains(have.waiters, queue) {
				have.waiters = append(have.waiters, queue)
			}
		},
		"release": func(t *rapid.T) {
			hash, b := pick()
			token := someToken(hash)
			got, wake := tab().Release(&hash, &token, now)
			entries := m.bucket(b)
			have := entries[hash]
			want := Gone
			var woken []uint32
			switch {
			case have == nil && got == Done:
				want = Done // it was over, but still there
			case have == nil:
			case !have.state.Terminal() && have.token == token:
				want, woken = Done, have.waiters
				delete(entries, hash)
			default:
				want = NotOwner
			}
			if got != want {
				t.Fatalf("Release = %d, want %d", got, want)
			}
			sameQueues("Release", wake, woken)
		},
		"renew": func(t *rapid.T) {
			hash, b := pick()
			token := someToken(hash)
			expires := now + int64(rapid.IntRange(1, 900).Draw(t, "ttl"))
			vm := tab()
			got := vm.Renew(&hash, &token, expires, now)
			have := m.bucket(b)[hash]
			switch {
			case have == nil && got == Done: // it was over, but still there
				vm.load(&vm.own, b)
				rec := &vm.own.rec
				slot := rec.find(&hash)
				w := rec.ways[slot]
				m.bucket(b)[hash] = &modelEntry{
					state: w.state, sole: w.cacheOnly, token: w.token, expires: w.expires, lastUse: w.lastUse, waiters: rec.takeWaiters(slot, nil),
				}
			case have == nil:
				if got != Gone {
					t.Fatalf("Renew = %d, want Gone", got)
				}
			case have.state == api.StatePending && have.token == token:
				if got != Done {
					t.Fatalf("Renew = %d, want Done", got)
				}
				have.expires = expires
			default:
				if got != NotOwner {
					t.Fatalf("Renew = %d, want NotOwner", got)
				}
			}
		},
		"settle": func(t *rapid.T) {
			hash, b := pick()
			token := someToken(hash)
			until := now + rapid.Int64Range(-1, 200).Draw(t, "until")
			got, want := tab().Settle(&hash, &token, until, now), Gone
			entries := m.bucket(b)
			have := entries[hash]
			switch {
			case have == nil && got == Done:
				want = Done // it was over, but still there
			case have == nil:
			case have.state.Terminal() && have.token == token:
				want = Done
				have.sole, have.expires = false, min(have.expires, until)
				if have.body == nil || have.expires <= now {
					delete(entries, hash)
				}
			default:
				want = NotOwner
			}
			if got != want {
				t.Fatalf("Settle = %d, want %d", got, want)
			}
		},
		"finish": func(t *rapid.T) {
			hash, b := pick()
			entries := m.bucket(b)
			oc := Outcome{
				Hash:      hash,
				Token:     someToken(hash),
				State:     rapid.SampledFrom([]api.State{api.StateCommitted, api.StateRejected, api.StateUnknown}).Draw(t, "state"),
				Expires:   now + int64(rapid.IntRange(1, 900).Draw(t, "ttl")),
				CacheOnly: rapid.IntRange(0, 3).Draw(t, "sole") == 0,
				Learned:   rapid.Bool().Draw(t, "learned"),
			}
			size := rapid.SampledFrom([]int{-1, 0, 1, 500, 3000, m.largest / 9, m.largest / 4, m.largest / 3, m.largest - valueHeader, m.largest - valueHeader + 1}).Draw(t, "size")
			if oc.State == api.StateUnknown {
				size = -1
			}
			if size >= 0 {
				oc.Raw = bytes.Repeat([]byte(fmt.Sprintf("%x", oc.Token[12:])), size/8+1)[:size]
			}
			vm := tab()
			unkept := vm.Stats().AnswersDropped
			got, wake := vm.Finish(&oc, now)
			have := entries[hash]
			var woken []uint32
			want := Done
			switch {
			case have == nil:
				ok := false
				if woken, ok = room(entries, now, false); !ok {
					want = Full
				}
			case have.token == oc.Token:
				if have.body != nil {
					if got != Done {
						t.Fatalf("second Finish = %d, want Done", got)
					}
					sameQueues("Finish", wake, nil)
					return
				}
				woken = have.waiters
			case have.state == api.StatePending, !oc.Learned, have.body != nil, have.sole:
				want = NotOwner
			}
			if got != want {
				t.Fatalf("Finish = %d, want %d; the model has %+v", got, want, have)
			}
			if want != Done {
				sameQueues("Finish", wake, nil)
				return
			}
			sameQueues("Finish", wake, woken)
			delete(entries, hash)
			noRoom := vm.Stats().AnswersDropped > unkept
			tooLarge := size+valueHeader > m.largest
			if tooLarge && !noRoom {
				t.Fatalf("%d bytes were kept, at most %d may be", size, m.largest)
			}
			m.sync(t, vm, hash, noRoom && !tooLarge, now)
			kept := oc.Raw != nil && !noRoom
			if !kept && !oc.CacheOnly {
				return
			}
			e := &modelEntry{state: oc.State, sole: oc.CacheOnly, token: oc.Token, expires: oc.Expires, lastUse: now}
			if kept {
				spent[oc.Token] = true
				e.body = append([]byte{}, oc.Raw...)
			}
			entries[hash] = e
		},
	})
}

// compareBody fails unless the table and the model agree whether there is an answer.
func (m *model) compareBody(t *rapid.T, tab *Table, e *Entry, want *modelEntry) {
	got, ok := tab.Body(e)
	if ok != (want.body != nil) || !bytes.Equal(got, want.body) {
		t.Fatalf("Body = %d bytes %.20q, %v, the model has %d bytes %.20q", len(got), got, ok, len(want.body), want.body)
	}
}

// TestMain makes the runs of the property test long enough to fill a bucket
// several times; -rapid.steps and -rapid.checks still change it.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.steps", "150"); err != nil {
		panic(err)
	}
	if err := flag.Set("rapid.checks", "50"); err != nil {
		panic(err)
	}
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	m.Run()
}

// TestTableBehavesAsAMapWithTTLAndLRU: the table is a map with TTL and LRU per bucket, on every host.
func TestTableBehavesAsAMapWithTTLAndLRU(t *testing.T) {
	for _, r := range usableHosts {
		t.Run(r.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				run(t, r, Options{MaxEntries: 16, MaxBytes: minBytes, MaxResultBytes: 12000})
			})
		})
		t.Run(r.name+", large answers", func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				run(t, r, Options{MaxEntries: 16, MaxBytes: minBytes, MaxResultBytes: 40000})
			})
		})
	}
}

// checkHeld: no value is larger than its record says, no bucket holds more than
// its share, and the shares are within the budgets.
func checkHeld(t interface{ Fatalf(string, ...any) }, h *host, tab *Table) {
	for n := 0; n < tab.regions; n++ {
		g, _ := tab.loadRegion(n)
		used := 0
		for i := 0; i < tab.span; i++ {
			used += g.share(i)
			set := n*tab.span + i
			v, ok := h.m[tab.recordKey(set)]
			if !ok {
				continue
			}
			var r record
			if !r.decode(v.data) {
				t.Fatalf("the record of bucket %d cannot be read: %x", set, v.data)
			}
			for slot := range r.ways {
				held := int(r.ways[slot].valueBytes)
				if n := len(h.m[tab.valueKey(set, slot)].data); n > max(held, len(scratch)) {
					t.Fatalf("bucket %d, way %d holds %d bytes, its record says %+v", set, slot, n, r.ways[slot])
				}
			}
			if units := tab.units(r.valueBytes(-1)); units > g.share(i) {
				t.Fatalf("bucket %d holds %d units, its share is %d", set, units, g.share(i))
			}
		}
		if used != g.used() || used > tab.budget {
			t.Fatalf("region %d: the shares are %d, the record says %d, the budget is %d", n, used, g.used(), tab.budget)
		}
	}
}
