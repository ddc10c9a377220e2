package cache

import (
	"slices"
	"strings"
	"testing"
)

// TestAnswerThatIsNotKeptLeavesNoEntry: an answer that is too large for the table leaves no entry if a
// ledger has it. If nothing else remembers that the request ran, it leaves an entry
// without body.
func TestAnswerThatIsNotKeptLeavesNoEntry(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	huge := strings.Repeat("x", minBytes)
	for _, sole := range []bool{false, true} {
		hash := hashOf(1, 1)
		if sole {
			hash = hashOf(1, 2)
		}
		r := reservation(hash, 1)
		r.CacheOnly = sole
		var e Entry
		if res, _ := tab.Reserve(r, 1, &e); res != Created || e.CacheOnly != sole {
			t.Fatal(res, e)
		}
		tab.AddWaiter(&hash, 4, 1)
		o := outcome(hash, 1, huge)
		o.CacheOnly = sole
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

// TestExpiredOutcomeLeavesNoEntry: an outcome that has expired already ends the reservation and
// leaves no entry.
func TestExpiredOutcomeLeavesNoEntry(t *testing.T) {
	for _, sole := range []bool{false, true} {
		h := newHost(envoy)
		tab := newTable(h, small)
		hash := hashOf(1, 1)
		mustReserve(t, tab, hash, 1, 1)
		tab.AddWaiter(&hash, 4, 1)
		o := outcome(hash, 1, "answer")
		o.Expires, o.CacheOnly = 2, sole
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

// The terminal entry used longest ago goes first, pending
// ones after all terminal ones, again the oldest first.
func TestOldestTerminalEntryIsEvictedFirst(t *testing.T) {
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
			if !tab.has(&h) {
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

// has looks without counting as a use.
func (t *Table) has(h *Hash) bool {
	return t.load(&t.own, t.bucket(h)) && t.own.rec.find(h) >= 0
}

// TestBytesEvictionOrder: if an answer needs room, the answers used longest ago
// are evicted, whichever bucket they are in.
func TestBytesEvictionOrder(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, Options{MaxEntries: 24, MaxBytes: minBytes, MaxResultBytes: 30000})
	third := strings.Repeat("x", tab.budget*tab.unit/3-valueHeader-tab.unit)
	for i := 1; i <= 3; i++ {
		mustReserve(t, tab, hashOf(i, i), i, int64(i))
		mustFinish(t, tab, hashOf(i, i), i, third, int64(10-i)) // the third is the oldest
	}
	for n, want := range []int{3, 2, 1} {
		hash := hashOf(n, 10+n)
		mustReserve(t, tab, hash, 10+n, int64(20+n))
		mustFinish(t, tab, hash, 10+n, third, int64(20+n))
		for i := 1; i <= 3; i++ {
			h := hashOf(i, i)
			if found := tab.has(&h); found != (i < want) {
				t.Errorf("after %d more answers, there is %d: %v", n+1, i, found)
			}
		}
	}
	if h.peak > minBytes {
		t.Errorf("%d bytes were stored", h.peak)
	}
}

// TestEntriesWithoutALedgerAreNotEvicted: without a ledger the table refuses a new request rather
// than forget one that runs.
func TestEntriesWithoutALedgerAreNotEvicted(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	for i := 1; i <= Ways; i++ {
		r := reservation(hashOf(1, i), i)
		r.CacheOnly = true
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

// TestReserveWithoutALedgerIsRefusedWhenFull: entries without a ledger are not evicted for other entries'
// bytes. A reservation is refused if there is no room for its answer, until an entry
// expires. Entries with a ledger are evicted.
func TestReserveWithoutALedgerIsRefusedWhenFull(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		tab := newTable(h, Options{MaxEntries: 128, MaxBytes: minBytes, MaxResultBytes: 30000})
		large := strings.Repeat("x", 10000)
		one := func(i int, sole bool) Result {
			t.Helper()
			res := reservation(hashOf(i, i), i)
			res.CacheOnly = sole
			var e Entry
			got, _ := tab.Reserve(res, int64(i), &e)
			if got != Created {
				return got
			}
			o := outcome(hashOf(i, i), i, large)
			o.CacheOnly = sole
			if res, _ := tab.Finish(o, int64(i)); res != Done {
				t.Fatalf("%s: Finish = %d", r.name, res)
			}
			return Created
		}
		for i := 1; i <= 2; i++ {
			one(i, false)
		}
		full := 0
		for i := 3; i <= 15; i++ {
			switch one(i, true) {
			case Full:
				full++
			case Created:
				if full > 0 {
					t.Errorf("%s: key %d got room after another was refused", r.name, i)
				}
			}
		}
		if full == 0 || tab.Stats().Refused != uint64(full) || tab.Stats().Evictions != 2 || tab.Stats().AnswersDropped != 0 {
			t.Errorf("%s: %d were refused, %+v", r.name, full, tab.Stats())
		}
		for i := 1; i <= 15; i++ {
			body, _, found := answer(tab, hashOf(i, i), 100)
			if want := i >= 3 && i <= 15-full; found != want || want && body != large {
				t.Errorf("%s: entry %d is there: %v, %d bytes", r.name, i, found, len(body))
			}
		}
		checkHeld(t, h, tab)
		if got := one(5000, true); got != Created { // all others are over
			t.Errorf("%s: Reserve = %d", r.name, got)
		}
	}
}

// TestUnusedBytesAreGivenBack: if an answer is far smaller than the bytes set aside for it, the rest
// is free for the next one, and the table expects smaller answers.
func TestUnusedBytesAreGivenBack(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, Options{MaxEntries: 128, MaxBytes: 2 * minBytes, MaxResultBytes: 50000})
	for i := 1; i <= 100; i++ {
		r := reservation(hashOf(i%16, i), i)
		r.CacheOnly = true
		var e Entry
		if res, _ := tab.Reserve(r, int64(i), &e); res != Created {
			t.Fatalf("Reserve %d = %d", i, res)
		}
		size := 20
		if i == 1 {
			size = 40000
		}
		o := outcome(hashOf(i%16, i), i, strings.Repeat("x", size))
		o.CacheOnly = true
		if res, _ := tab.Finish(o, int64(i)); res != Done {
			t.Fatalf("Finish %d = %d", i, res)
		}
	}
	if s := tab.Stats(); s.AnswersDropped+s.Refused > 0 {
		t.Errorf("%+v", s)
	}
	checkHeld(t, h, tab)
}

// TestBytesStayAccountedForIfAVMDies: a VM may die at any step while it makes room for an answer.
// The bytes stay accounted for. Bytes that it took and did not use are freed by the
// next round of the sweep after its reservation is over.
func TestBytesStayAccountedForIfAVMDies(t *testing.T) {
	o := Options{MaxEntries: 24, MaxBytes: minBytes, MaxResultBytes: 30000}
	for _, r := range usableHosts {
		for step, died := 0, true; died; step++ {
			h := newHost(r)
			dying, alive := newTable(h, o), newTable(h, o)
			third := strings.Repeat("x", alive.budget*alive.unit/3-valueHeader-alive.unit)
			for i := 1; i <= 3; i++ {
				mustReserve(t, alive, hashOf(i, i), i, int64(i))
				mustFinish(t, alive, hashOf(i, i), i, third, int64(i))
			}
			mustReserve(t, dying, hashOf(1, 9), 9, 9)
			died = false
			calls := 0
			h.before = func(op, key string) Status {
				if calls++; calls > step {
					died = true
					return Failed
				}
				return OK
			}
			dying.Finish(outcome(hashOf(1, 9), 9, third), 10)
			h.before = nil
			if h.peak > minBytes {
				t.Errorf("%s: step %d: %d bytes were stored", r.name, step, h.peak)
			}
			// An entry that is still there answers as before, or the ledger is asked.
			for i := 1; i <= 3; i++ {
				if body, ok, _ := answer(alive, hashOf(i, i), 11); ok && body != third {
					t.Errorf("%s: step %d: entry %d answers %d bytes", r.name, step, i, len(body))
				}
			}
			// Its reservation is over at 1000; the others at 5000.
			for range 2 {
				alive.Sweep(100, 2000)
			}
			checkHeld(t, h, alive)
			for range 2 {
				alive.Sweep(100, 6000)
			}
			checkHeld(t, h, alive)
			if g, _ := alive.loadRegion(0); g.used() != 0 {
				t.Errorf("%s: step %d: %d units are still taken", r.name, step, g.used())
			}
			for key, v := range h.m {
				if len(v.data) > 1000 {
					t.Errorf("%s: step %d: %s still holds %d bytes", r.name, step, key, len(v.data))
				}
			}
		}
	}
}

// TestLostAnswerIsRestoredFromTheLedger: an entry that lost its answer to a VM that died while it made
// room gets it back from the ledger.
func TestLostAnswerIsRestoredFromTheLedger(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	hash, token := hashOf(1, 1), tokenOf(1)
	mustReserve(t, tab, hash, 1, 1)
	mustFinish(t, tab, hash, 1, "first", 2)
	tab.retract(tab.bucket(&hash), 0, &hash, &token)
	if _, ok, found := answer(tab, hash, 3); ok || !found {
		t.Fatal("the answer is still there")
	}
	late := outcome(hash, 2, "first")
	if res, _ := tab.Finish(late, 4); res != NotOwner {
		t.Errorf("another attempt's outcome = %d", res)
	}
	late.Learned = true
	if res, _ := tab.Finish(late, 5); res != Done {
		t.Errorf("what the ledger knows = %d", res)
	}
	if body, ok, _ := answer(tab, hash, 6); !ok || body != "first" {
		t.Errorf("the answer is %q, %v", body, ok)
	}
}
