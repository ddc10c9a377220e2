package cache

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// small has four buckets and answers of up to 4000 bytes in them.
var small = Options{MaxEntries: 32, MaxBytes: minBytes, MaxResultBytes: 4000, TouchInterval: -1}

func reservation(h Hash, token int) *Reservation {
	return &Reservation{Hash: h, Token: tokenOf(token), Fingerprint: Fingerprint{1}, Owner: 9, Expires: 1000}
}

func outcome(h Hash, token int, raw string) *Outcome {
	return &Outcome{Hash: h, Token: tokenOf(token), Fingerprint: Fingerprint{1}, State: api.StateCommitted, Expires: 5000, Raw: []byte(raw)}
}

func mustReserve(t *testing.T, tab *Table, h Hash, token int, now int64) Entry {
	t.Helper()
	var e Entry
	if res, _ := tab.Reserve(reservation(h, token), now, &e); res != Created {
		t.Fatalf("Reserve = %d, want Created", res)
	}
	return e
}

func mustFinish(t *testing.T, tab *Table, h Hash, token int, raw string, now int64) []uint32 {
	t.Helper()
	res, wake := tab.Finish(outcome(h, token, raw), now)
	if res != Done {
		t.Fatalf("Finish = %d, want Done", res)
	}
	return wake
}

// answer returns the recorded answer of h, and whether there is an entry.
func answer(tab *Table, h Hash, now int64) (body string, hasBody, found bool) {
	var e Entry
	if !tab.Lookup(&h, now, &e) {
		return "", false, false
	}
	b, ok := tab.Body(&e)
	return string(b), ok, true
}

func bucketKey(tab *Table, h Hash) string {
	return strings.Clone(tab.recordKey(0, tab.set(0, &h)))
}

func TestReserveFinishReplay(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		first, second := newTable(h, small), newTable(h, small)
		hash := hashOf(1, 1)
		e := mustReserve(t, first, hash, 1, 10)
		if e.State != api.StatePending || e.Owner != 9 || e.Expires != 1000 || e.Token != tokenOf(1) {
			t.Errorf("%s: reserved %+v", r.name, e)
		}
		var dup Entry
		if res, _ := second.Reserve(reservation(hash, 2), 11, &dup); res != Existing || dup.State != api.StatePending || dup.Token != tokenOf(1) {
			t.Errorf("%s: the duplicate's Reserve = %d %+v", r.name, res, dup)
		}
		if !dup.Matches(Fingerprint{1}) || dup.Matches(Fingerprint{2}) || !dup.Matches(Fingerprint{}) {
			t.Errorf("%s: fingerprints are compared wrongly", r.name)
		}
		if res := second.AddWaiter(&hash, 42, 12); res != Waiting {
			t.Errorf("%s: AddWaiter = %d", r.name, res)
		}
		if wake := mustFinish(t, first, hash, 1, "answer", 13); len(wake) != 1 || wake[0] != 42 {
			t.Errorf("%s: Finish woke %v, want 42", r.name, wake)
		}
		if body, ok, _ := answer(second, hash, 14); !ok || body != "answer" {
			t.Errorf("%s: the duplicate got %q, %v", r.name, body, ok)
		}
		// At its expiry, not a nanosecond before.
		if _, _, found := answer(second, hash, 4999); !found {
			t.Errorf("%s: gone before its time", r.name)
		}
		if _, _, found := answer(second, hash, 5000); found {
			t.Errorf("%s: still there after its time", r.name)
		}
	}
}

// An empty answer is an answer, unlike one that is not kept.
func TestEmptyAnswer(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	hash := hashOf(1, 1)
	mustReserve(t, tab, hash, 1, 1)
	mustFinish(t, tab, hash, 1, "", 2)
	if body, ok, found := answer(tab, hash, 3); !found || !ok || body != "" {
		t.Errorf("answer = %q, %v, %v", body, ok, found)
	}
}

// A terminal entry is final: neither its own attempt, nor a late one, nor an
// outcome from the ledger changes it.
func TestTerminalIsFinal(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	hash, token := hashOf(1, 1), tokenOf(1)
	mustReserve(t, tab, hash, 1, 1)
	mustFinish(t, tab, hash, 1, "first", 2)
	mustFinish(t, tab, hash, 1, "again", 3)
	for _, learned := range []bool{false, true} {
		late := outcome(hash, 2, "late")
		late.Learned = learned
		if res, _ := tab.Finish(late, 4); res != NotOwner {
			t.Errorf("a late Finish = %d, want NotOwner", res)
		}
	}
	if res, _ := tab.Release(&hash, &token, 5); res != NotOwner {
		t.Errorf("Release after Finish = %d, want NotOwner", res)
	}
	if body, _, _ := answer(tab, hash, 6); body != "first" {
		t.Errorf("the answer is now %q", body)
	}
}

// A stale attempt may not touch the reservation that followed it.
func TestStaleAttempt(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	hash := hashOf(1, 1)
	mustReserve(t, tab, hash, 1, 1)
	again := reservation(hash, 2)
	again.Expires = 2000
	var e Entry
	if res, _ := tab.Reserve(again, 1000, &e); res != Created { // the first ran out
		t.Fatal(res)
	}
	if res, _ := tab.Finish(outcome(hash, 1, "stale"), 1001); res != NotOwner {
		t.Errorf("Finish = %d, want NotOwner", res)
	}
	token := tokenOf(1)
	if res, _ := tab.Release(&hash, &token, 1001); res != NotOwner {
		t.Errorf("Release = %d, want NotOwner", res)
	}
	if !tab.Lookup(&hash, 1002, &e) || e.Token != tokenOf(2) || e.State != api.StatePending {
		t.Errorf("the second reservation is now %+v", e)
	}
}

// TestFinishLosesBucketOnce lets another VM change the bucket between the
// finisher's read and its write: a waiter that joins then must be woken.
func TestFinishLosesBucketOnce(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		owner, other := newTable(h, small), newTable(h, small)
		hash := hashOf(1, 1)
		mustReserve(t, owner, hash, 1, 1)
		key := bucketKey(owner, hash)
		joined := false
		h.before = func(op, k string) Status {
			if op == "set" && k == key && !joined {
				joined = true
				if res := other.AddWaiter(&hash, 5, 2); res != Waiting {
					t.Errorf("%s: AddWaiter = %d", r.name, res)
				}
			}
			return OK
		}
		if wake := mustFinish(t, owner, hash, 1, "answer", 2); !joined || len(wake) != 1 || wake[0] != 5 {
			t.Errorf("%s: joined %v, woken %v, want 5", r.name, joined, wake)
		}
		if res := other.AddWaiter(&hash, 6, 3); res != Ended {
			t.Errorf("%s: AddWaiter after the end = %d, want Ended", r.name, res)
		}
		if owner.Stats().Retries == 0 {
			t.Errorf("%s: the lost race was not counted", r.name)
		}
	}
}

// TestFinishLosesEntry: between the finisher's answer and its record, the
// entry is evicted and its way is another's. The answer must not stay in the
// other's way, and the other's own answer must not be harmed.
func TestFinishLosesEntry(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		owner, other := newTable(h, small), newTable(h, small)
		hash := hashOf(1, 1)
		mustReserve(t, owner, hash, 1, 1)
		key := bucketKey(owner, hash)
		done := false
		h.before = func(op, k string) Status {
			if op == "set" && k == key && !done {
				done = true
				for i := 2; i < 2+Ways; i++ { // the last one evicts the first
					mustReserve(t, other, hashOf(1, i), i, 2)
				}
			}
			return OK
		}
		if res, _ := owner.Finish(outcome(hash, 1, "evicted"), 3); res != Full {
			t.Errorf("%s: Finish = %d, want Full", r.name, res)
		}
		for key, v := range h.m {
			if bytes.Contains(v.data, []byte("evicted")) {
				t.Errorf("%s: %s still holds the answer of an entry that is gone", r.name, key)
			}
		}
		for i := 2; i < 2+Ways; i++ {
			mustFinish(t, other, hashOf(1, i), i, "mine", 4)
		}
		for i := 2; i < 2+Ways; i++ {
			if body, _, _ := answer(other, hashOf(1, i), 5); body != "mine" {
				t.Errorf("%s: entry %d answers %q", r.name, i, body)
			}
		}
	}
}

// TestDeadOwner: a VM that traps between writing its answer and recording it
// leaves a pending entry, which ends by its expiry, and bytes nobody accounts
// for, which the sweep or the next owner of the way clears.
func TestDeadOwner(t *testing.T) {
	for _, r := range usableHosts {
		for _, swept := range []bool{false, true} {
			h := newHost(r)
			dead, alive := newTable(h, small), newTable(h, small)
			hash := hashOf(1, 1)
			mustReserve(t, dead, hash, 1, 1)
			if res := alive.AddWaiter(&hash, 8, 2); res != Waiting {
				t.Fatal(res)
			}
			if !dead.put(0, dead.set(0, &hash), 0, &hash, &[]Token{tokenOf(1)}[0], []byte("half done")) {
				t.Fatal("put failed")
			}
			var e Entry
			if res, _ := alive.Reserve(reservation(hash, 2), 999, &e); res != Existing || e.State != api.StatePending {
				t.Errorf("%s: before the expiry Reserve = %d %+v", r.name, res, e)
			}
			var wake []uint32
			if swept {
				wake = alive.Sweep(1000, 1000)
			} else {
				_, wake = alive.Reserve(reservation(hash, 3), 1000, &e)
			}
			if len(wake) != 1 || wake[0] != 8 {
				t.Errorf("%s, swept %v: woken %v, want 8", r.name, swept, wake)
			}
			for key, v := range h.m {
				if bytes.Contains(v.data, []byte("half done")) {
					t.Errorf("%s, swept %v: %s still holds the dead owner's answer", r.name, swept, key)
				}
			}
		}
	}
}

// TestSweepSparesFinisher: a sweep that comes between a finisher's answer and
// its record leaves the answer alone, and accounts for it.
func TestSweepSparesFinisher(t *testing.T) {
	h := newHost(envoy)
	owner, sweeper := newTable(h, small), newTable(h, small)
	hash := hashOf(1, 1)
	// The way held something before, so the sweep has a reason to clear it.
	mustReserve(t, owner, hash, 1, 1)
	mustFinish(t, owner, hash, 1, "old answer", 2)
	again := reservation(hash, 2)
	again.Expires = 9000
	var e Entry
	if res, _ := owner.Reserve(again, 5000, &e); res != Created {
		t.Fatal(res)
	}
	key := bucketKey(owner, hash)
	done := false
	h.before = func(op, k string) Status {
		if op == "set" && k == key && !done {
			done = true
			sweeper.Sweep(1000, 5001)
			sweeper.Sweep(1000, 5001)
			checkHeld(t, h, sweeper)
		}
		return OK
	}
	o := outcome(hash, 2, "new answer")
	o.Expires = 9000
	if res, _ := owner.Finish(o, 5001); res != Done || !done {
		t.Fatalf("Finish = %d, swept %v", res, done)
	}
	if body, ok, _ := answer(owner, hash, 5002); !ok || body != "new answer" {
		t.Errorf("the answer is %q, %v", body, ok)
	}
}

// TestSweepLosesBucket: a sweep that loses the race for a bucket wakes nobody;
// the one that wins does.
func TestSweepLosesBucket(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	hash := hashOf(1, 1)
	mustReserve(t, tab, hash, 1, 1)
	tab.AddWaiter(&hash, 3, 1)
	key := bucketKey(tab, hash)
	h.before = func(op, k string) Status {
		if op == "set" && k == key {
			return CASMismatch
		}
		return OK
	}
	if wake := tab.Sweep(1000, 2000); len(wake) != 0 {
		t.Errorf("woken %v though nothing changed", wake)
	}
	h.before = nil
	if wake := tab.Sweep(1000, 2000); len(wake) != 1 || wake[0] != 3 {
		t.Errorf("woken %v, want 3", wake)
	}
}

// TestFillSparesVictim: an outcome from the ledger that needs another entry's
// way, but loses the race for it, has not touched that entry's answer.
func TestFillSparesVictim(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	for i := 1; i <= Ways; i++ {
		mustReserve(t, tab, hashOf(1, i), i, 1)
		mustFinish(t, tab, hashOf(1, i), i, "mine", 2)
	}
	key := bucketKey(tab, hashOf(1, 1))
	h.before = func(op, k string) Status {
		if op == "set" && k == key {
			return CASMismatch
		}
		return OK
	}
	fill := outcome(hashOf(1, 99), 99, "fill")
	fill.Learned = true
	if res, _ := tab.Finish(fill, 3); res != Contended {
		t.Fatalf("Finish = %d, want Contended", res)
	}
	h.before = nil
	for i := 1; i <= Ways; i++ {
		if body, _, _ := answer(tab, hashOf(1, i), 4); body != "mine" {
			t.Errorf("entry %d answers %q", i, body)
		}
	}
	if res, _ := tab.Finish(fill, 5); res != Done {
		t.Errorf("Finish = %d, want Done", res)
	}
	if body, _, _ := answer(tab, hashOf(1, 99), 6); body != "fill" {
		t.Errorf("the fill answers %q", body)
	}
}

// TestContention: when every set is lost, each operation gives up after a
// bounded number of calls, says so and leaves no answer behind.
func TestContention(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, small)
	hash, token := hashOf(1, 1), tokenOf(1)
	mustReserve(t, tab, hash, 1, 1)
	key := bucketKey(tab, hash)
	calls := 0
	h.before = func(op, k string) Status {
		calls++
		if op == "set" && k == key {
			return CASMismatch
		}
		return OK
	}
	bounded := func(what string, res Result) {
		t.Helper()
		if res != Contended {
			t.Errorf("%s = %d, want Contended", what, res)
		}
		if calls > 8*maxTries {
			t.Errorf("%s made %d calls", what, calls)
		}
		calls = 0
	}
	var e Entry
	res, _ := tab.Reserve(reservation(hashOf(1, 2), 2), 2, &e)
	bounded("Reserve", res)
	bounded("AddWaiter", tab.AddWaiter(&hash, 5, 2))
	res, wake := tab.Finish(outcome(hash, 1, "answer"), 2)
	bounded("Finish", res)
	if len(wake) != 0 {
		t.Errorf("Finish woke %v", wake)
	}
	res, _ = tab.Release(&hash, &token, 2)
	bounded("Release", res)
	if !tab.Lookup(&hash, 2, &e) {
		t.Error("Lookup lost the entry")
	}
	if got := tab.Stats().Contended; got != 4 {
		t.Errorf("%d operations were counted as contended, want 4", got)
	}
	for key, v := range h.m {
		if bytes.Contains(v.data, []byte("answer")) {
			t.Errorf("%s holds the answer of an entry that could not be finished", key)
		}
	}
}

// TestForeignRecords: whatever lies under our keys, of an older version or of
// another filter, counts as empty, is overwritten and its bytes come back.
func TestForeignRecords(t *testing.T) {
	valid := func() []byte {
		h := newHost(envoy)
		tab := newTable(h, small)
		mustReserve(t, tab, hashOf(1, 7), 7, 1)
		tab.AddWaiter(&[]Hash{hashOf(1, 7)}[0], 3, 1)
		return h.m[bucketKey(tab, hashOf(1, 7))].data
	}
	mutate := func(at int, b byte) []byte { v := valid(); v[at] = b; return v }
	records := map[string][]byte{
		"empty":           {},
		"text":            []byte("somebody else's value"),
		"other version":   mutate(2, recordVersion+1),
		"too many ways":   mutate(3, Ways+1),
		"too short":       valid()[:40],
		"too long":        append(valid(), 0),
		"slot":            mutate(headerSize, Ways),
		"state":           mutate(headerSize+offState, 17),
		"flags":           mutate(headerSize+offFlags, 0xf0),
		"area":            mutate(headerSize+offArea, maxAreas),
		"place":           mutate(headerSize+offPlace, Ways),
		"waiter's slot":   mutate(headerSize+waySize, 5),
		"waiter's number": mutate(headerSize+waySize, Ways),
		"body of pending": mutate(headerSize+offFlags, flagBody),
	}
	for name, record := range records {
		for _, r := range usableHosts {
			h := newHost(r)
			tab := newTable(h, small)
			hash := hashOf(1, 1)
			set := tab.set(0, &hash)
			h.Set(tab.recordKey(0, set), record, 0)
			for slot := 0; slot < Ways; slot++ {
				h.Set(tab.valueKey(0, set, slot), bytes.Repeat([]byte("x"), 9000), 0)
			}
			var e Entry
			if tab.Lookup(&hash, 1, &e) {
				t.Errorf("%s: Lookup found something", name)
			}
			if res := tab.AddWaiter(&hash, 1, 1); res != Ended {
				t.Errorf("%s: AddWaiter = %d", name, res)
			}
			mustReserve(t, tab, hash, 1, 1)
			mustFinish(t, tab, hash, 1, "answer", 2)
			if body, _, _ := answer(tab, hash, 3); body != "answer" {
				t.Errorf("%s: the answer is %q", name, body)
			}
			if h.bytes > minBytes {
				t.Errorf("%s: %d bytes are still there", name, h.bytes)
			}
			if tab.Stats().Foreign == 0 {
				t.Errorf("%s: not counted", name)
			}
		}
	}
}

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

// TestBytesEvictionOrder: when an answer needs room, the answers used longest ago go.
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

// TestPlaceLosesSlot: two VMs place large answers into the same set at once;
// what the loser wrote is cleared again.
func TestPlaceLosesSlot(t *testing.T) {
	h := newHost(envoy)
	o := Options{MaxEntries: 64, MaxBytes: 256 << 10, MaxResultBytes: 100 << 10}
	first, second := newTable(h, o), newTable(h, o)
	a, b := hashOf(1, 1), hashOf(2, 1)
	if first.set(1, &a) != first.set(1, &b) {
		t.Fatal("the test wants one set for both")
	}
	mustReserve(t, first, a, 1, 1)
	mustReserve(t, second, b, 2, 1)
	prefix := strings.Clone(first.recordKey(1, first.set(1, &a))) + "." // of the set's values
	large := func(s string) string { return strings.Repeat(s, first.areas[1].budget-valueHeader) }
	done := false
	h.before = func(op, k string) Status {
		if op == "set" && strings.HasPrefix(k, prefix) && !done {
			done = true
			mustFinish(t, second, b, 2, large("b"), 3)
		}
		return OK
	}
	mustFinish(t, first, a, 1, large("a"), 2)
	if !done {
		t.Fatal("the second VM never came in between")
	}
	if body, ok, _ := answer(second, b, 4); !ok || body != large("b") {
		t.Errorf("the second VM's answer: %d bytes, %v", len(body), ok)
	}
	checkHeld(t, h, first)
	if h.bytes > 256<<10 {
		t.Errorf("%d bytes are stored", h.bytes)
	}
}

// TestWaiterLimits: a queue counts once per entry, and the bucket's list ends.
func TestWaiterLimits(t *testing.T) {
	tab := newTable(newHost(envoy), small)
	hash := hashOf(1, 1)
	mustReserve(t, tab, hash, 1, 1)
	for round := 0; round < 2; round++ {
		for q := uint32(1); q <= MaxWaiters; q++ {
			if res := tab.AddWaiter(&hash, q, 1); res != Waiting {
				t.Fatalf("queue %d: %d", q, res)
			}
		}
	}
	if res := tab.AddWaiter(&hash, MaxWaiters+1, 1); res != TooManyWaiters {
		t.Errorf("AddWaiter = %d, want TooManyWaiters", res)
	}
	if wake := mustFinish(t, tab, hash, 1, "x", 2); len(wake) != MaxWaiters {
		t.Errorf("%d queues were woken, want %d", len(wake), MaxWaiters)
	}
}

// TestTouch: a lookup writes the last use back only when it is stale, so a
// hot entry costs no writes.
func TestTouch(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, Options{MaxEntries: 32})
	hash := hashOf(1, 1)
	mustReserve(t, tab, hash, 1, 1)
	o := outcome(hash, 1, "x")
	o.Expires = 1 << 60
	tab.Finish(o, 2)
	sets := h.sets
	var e Entry
	for i := int64(0); i < 100; i++ {
		tab.Lookup(&hash, 2+i, &e)
	}
	if h.sets != sets {
		t.Errorf("%d writes for 100 lookups within a second", h.sets-sets)
	}
	tab.Lookup(&hash, 2+defaultTouch, &e)
	tab.Lookup(&hash, 2+defaultTouch, &e)
	if h.sets != sets+1 {
		t.Errorf("%d writes after a second, want 1", h.sets-sets)
	}
}
