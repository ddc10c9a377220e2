package cache

import (
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// TestNotKept: an answer too large for the table leaves no entry where a
// ledger has it, and an entry without body where nobody else remembers that
// the request ran.
func TestNotKept(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	huge := strings.Repeat("x", minBytes)
	for _, sole := range []bool{false, true} {
		hash := hashOf(1, 1)
		if sole {
			hash = hashOf(1, 2)
		}
		r := reservation(hash, 1)
		r.Sole = sole
		var e Entry
		if res, _ := tab.Reserve(r, 1, &e); res != Created || e.Sole != sole {
			t.Fatal(res, e)
		}
		tab.AddWaiter(&hash, 4, 1)
		o := outcome(hash, 1, huge)
		o.Sole = sole
		if res, wake := tab.Finish(o, 2); res != Done || len(wake) != 1 {
			t.Errorf("Finish = %d, woken %v", res, wake)
		}
		_, hasBody, found := answer(tab, hash, 3)
		if hasBody || found != sole {
			t.Errorf("sole %v: found %v, body %v", sole, found, hasBody)
		}
	}
	if h.bytes > minBytes {
		t.Errorf("%d bytes are stored", h.bytes)
	}
}

// TestOverAtOnce: an outcome whose time is over already ends the reservation
// and leaves nothing.
func TestOverAtOnce(t *testing.T) {
	for _, sole := range []bool{false, true} {
		h := newHost(envoy)
		tab := newTable(h, small)
		hash := hashOf(1, 1)
		mustReserve(t, tab, hash, 1, 1)
		tab.AddWaiter(&hash, 4, 1)
		o := outcome(hash, 1, "answer")
		o.Expires, o.Sole = 2, sole
		calls := h.gets + h.sets
		if res, wake := tab.Finish(o, 2); res != Done || len(wake) != 1 {
			t.Errorf("Finish = %d, woken %v", res, wake)
		}
		if n := h.gets + h.sets - calls; n > 4 {
			t.Errorf("Finish made %d calls", n)
		}
		mustReserve(t, tab, hash, 2, 3)
	}
}

// TestEvictionOrder: the terminal entry used longest ago goes first, pending
// ones after all terminal ones, again the oldest first.
func TestEvictionOrder(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	for i := 1; i <= Ways; i++ {
		mustReserve(t, tab, hashOf(1, i), i, int64(i))
	}
	for _, i := range []int{3, 1, 2} {
		mustFinish(t, tab, hashOf(1, i), i, "x", int64(20+i))
	}
	used := hashOf(1, 1)
	var e Entry
	if !tab.Lookup(&used, 30, &e) { // the oldest of the three is now the youngest
		t.Fatal("lost")
	}
	for n, want := range []int{2, 3, 1, 4, 5} {
		mustReserve(t, tab, hashOf(1, 100+n), 100+n, int64(40+n))
		var gone []int
		for i := 1; i <= Ways; i++ {
			h := hashOf(1, i)
			if !tab.framedHas(&h) {
				gone = append(gone, i)
			}
		}
		if len(gone) != n+1 || !slices.Contains(gone, want) {
			t.Errorf("after %d evictions %v are gone, the last should be %d", n+1, gone, want)
		}
	}
	if got := tab.Stats().Evictions; got != 5 {
		t.Errorf("%d evictions were counted, want 5", got)
	}
}

// framedHas looks without counting as a use.
func (t *Table) framedHas(h *Hash) bool {
	return t.load(0, t.set(0, h)) && t.rec.find(h) >= 0
}

// TestBytesEvictionOrder: when an answer needs room, the answers used longest
// ago go.
func TestBytesEvictionOrder(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	third := strings.Repeat("x", tab.areas[0].budget/3-valueHeader)
	for i := 1; i <= 3; i++ {
		mustReserve(t, tab, hashOf(1, i), i, int64(i))
		mustFinish(t, tab, hashOf(1, i), i, third, int64(10-i)) // the third is the oldest
	}
	for n, want := range []int{3, 2, 1} {
		hash := hashOf(1, 10+n)
		mustReserve(t, tab, hash, 10+n, int64(20+n))
		mustFinish(t, tab, hash, 10+n, third, int64(20+n))
		for i := 1; i <= 3; i++ {
			h := hashOf(1, i)
			if found := tab.framedHas(&h); found != (i < want) {
				t.Errorf("after %d more answers, there is %d: %v", n+1, i, found)
			}
		}
	}
}

// TestSoleIsNotEvicted: without a ledger the table refuses rather than forget
// a request that runs.
func TestSoleIsNotEvicted(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	for i := 1; i <= Ways; i++ {
		r := reservation(hashOf(1, i), i)
		r.Sole = true
		var e Entry
		if res, _ := tab.Reserve(r, 1, &e); res != Created {
			t.Fatal(res)
		}
	}
	var e Entry
	if res, _ := tab.Reserve(reservation(hashOf(1, 99), 99), 2, &e); res != Full {
		t.Errorf("Reserve = %d, want Full", res)
	}
	if res, _ := tab.Finish(outcome(hashOf(1, 99), 99, "x"), 2); res != Full {
		t.Errorf("Finish = %d, want Full", res)
	}
	for i := 1; i <= Ways; i++ {
		h := hashOf(1, i)
		if !tab.Lookup(&h, 3, &e) {
			t.Errorf("entry %d is gone", i)
		}
	}
}

// TestLargeAnswers live in the other areas: found again, evicted there without
// harm to the entry's truth, restored by what the ledger says.
func TestLargeAnswers(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		tab := newTable(h, Options{MaxEntries: 64, MaxBytes: 256 << 10, MaxResultBytes: 100 << 10, TouchInterval: -1})
		if tab.n < 2 || tab.areas[0].budget > 20<<10 {
			t.Fatalf("not the areas that this test wants: %+v", tab.areas)
		}
		large := strings.Repeat("large", 12<<10)
		var hashes []Hash
		for i := 1; i <= 6; i++ {
			hash := hashOf(i, 1)
			hashes = append(hashes, hash)
			mustReserve(t, tab, hash, i, int64(i*10))
			mustFinish(t, tab, hash, i, large, int64(i*10+1))
			if body, ok, _ := answer(tab, hash, int64(i*10+2)); !ok || body != large {
				t.Fatalf("%s: answer %d has %d bytes, %v", r.name, i, len(body), ok)
			}
		}
		lost := 0
		for i, hash := range hashes {
			var e Entry
			if !tab.Lookup(&hash, 100, &e) || e.State != api.StateCommitted || !e.HasBody {
				t.Errorf("%s: entry %d = %+v", r.name, i+1, e)
				continue
			}
			if body, ok := tab.Body(&e); ok {
				if string(body) != large {
					t.Errorf("%s: entry %d has another answer", r.name, i+1)
				}
				continue
			}
			lost++
			refill := outcome(hash, 100+i, large)
			if res, _ := tab.Finish(refill, 101); res != NotOwner {
				t.Errorf("%s: another attempt's outcome changed a terminal entry (%d)", r.name, res)
			}
			refill.Learned = true
			if res, _ := tab.Finish(refill, 102); res != Done {
				t.Errorf("%s: the refill = %d", r.name, res)
			}
			if body, ok, _ := answer(tab, hash, 103); !ok || body != large {
				t.Errorf("%s: after the refill there are %d bytes, %v", r.name, len(body), ok)
			}
		}
		if lost == 0 {
			t.Errorf("%s: six answers of 60 KiB fit into 256 KiB", r.name)
		}
		if h.bytes > 256<<10 {
			t.Errorf("%s: %d bytes are stored", r.name, h.bytes)
		}
	}
}
