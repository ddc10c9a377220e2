package cache

import (
	"bytes"
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
	return strings.Clone(tab.recordKey(tab.bucket(&h)))
}

// TestPartsOfFingerprints: a part counts if both have it. Each part ends where the next one begins.
func TestPartsOfFingerprints(t *testing.T) {
	base, length, body := [2]int{0, 7}, [2]int{8, 10}, [2]int{11, 15}
	of := func(at ...int) (f Fingerprint) {
		for i, p := range [][2]int{base, length, body} {
			if at[i] > 0 {
				f[p[0]], f[p[1]] = byte(at[i]), byte(at[i])
			}
		}
		return f
	}
	for _, c := range []struct {
		f, g []int
		same bool
	}{
		{[]int{1, 1, 1}, []int{1, 1, 1}, true},
		{[]int{1, 1, 1}, []int{1, 0, 0}, true},
		{[]int{1, 1, 1}, []int{1, 1, 0}, true},
		{[]int{1, 1, 1}, []int{1, 0, 1}, true},
		{[]int{1, 1, 0}, []int{1, 0, 1}, true},
		{[]int{1, 1, 1}, []int{0, 0, 0}, true},
		{[]int{0, 0, 0}, []int{0, 0, 0}, true},
		{[]int{1, 1, 1}, []int{2, 1, 1}, false},
		{[]int{1, 1, 1}, []int{1, 2, 1}, false},
		{[]int{1, 1, 1}, []int{1, 1, 2}, false},
		{[]int{1, 1, 1}, []int{2, 0, 0}, false},
		{[]int{1, 1, 1}, []int{1, 2, 0}, false},
		{[]int{1, 1, 1}, []int{1, 0, 2}, false},
	} {
		f, g := of(c.f...), of(c.g...)
		if f.Matches(&g) != c.same || g.Matches(&f) != c.same {
			t.Errorf("%v and %v match: %v, want %v", c.f, c.g, f.Matches(&g), c.same)
		}
		within := c.same
		for i := range c.f {
			within = within && (c.f[i] == 0 || c.g[i] == c.f[i])
		}
		if f.Within(&g) != within {
			t.Errorf("%v is within %v: %v, want %v", c.f, c.g, !within, within)
		}
	}
	// Every byte counts.
	one := of(1, 1, 1)
	for i := range one {
		g := one
		if g[i] += 2; one.Matches(&g) {
			t.Errorf("byte %d does not count", i)
		}
	}
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
		if dup.Fingerprint != (Fingerprint{1}) {
			t.Errorf("%s: the entry has the fingerprint %x", r.name, dup.Fingerprint)
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
func TestEmptyAnswerIsKept(t *testing.T) {
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

// A stale attempt must not touch the reservation that followed it.
func TestStaleAttemptChangesNothing(t *testing.T) {
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

// TestForeignRecordsCountAsEmpty: values of another version or another filter under the
// table's keys count as empty. They are overwritten, and their bytes are freed.
func TestForeignRecordsCountAsEmpty(t *testing.T) {
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
		"text":            []byte("another program's value"),
		"other version":   mutate(2, recordVersion+1),
		"too many ways":   mutate(3, Ways+1),
		"too short":       valid()[:40],
		"too long":        append(valid(), 0),
		"slot":            mutate(headerSize, Ways),
		"state":           mutate(headerSize+offState, 17),
		"flags":           mutate(headerSize+offFlags, 0xf0),
		"waiter's slot":   mutate(headerSize+waySize, 5),
		"waiter's number": mutate(headerSize+waySize, Ways),
		"body of pending": mutate(headerSize+offFlags, flagBody),
	}
	for name, record := range records {
		for _, r := range usableHosts {
			h := newHost(r)
			tab := newTable(h, small)
			hash := hashOf(1, 1)
			set := tab.bucket(&hash)
			h.Set(tab.recordKey(set), record, 0)
			for slot := 0; slot < Ways; slot++ {
				h.Set(tab.valueKey(set, slot), bytes.Repeat([]byte("x"), 9000), 0)
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

// TestWaitersAreBounded: a queue counts once for each entry, and the bucket's list is bounded.
func TestWaitersAreBounded(t *testing.T) {
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

// TestLookupStoresOnlyAStaleLastUse: a lookup writes the last use back only when it is stale, so a
// hot entry costs no writes.
func TestLookupStoresOnlyAStaleLastUse(t *testing.T) {
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
