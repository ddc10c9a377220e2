package cache

import (
	"bytes"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// TestFinishWakesAWaiterThatJoinsLate lets another VM change the bucket between the
// finisher's read and its write: a waiter that joins then must be woken.
func TestFinishWakesAWaiterThatJoinsLate(t *testing.T) {
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

// TestLateAnswerDoesNotHarmAnother: between the finisher's answer and its record, the
// entry is evicted and its way is another's. The answer must not stay in the
// other's way, and the other's own answer must not be harmed.
func TestLateAnswerDoesNotHarmAnother(t *testing.T) {
	for _, r := range usableHosts {
		for _, beforeValue := range []bool{false, true} {
			h := newHost(r)
			owner, other := newTable(h, small), newTable(h, small)
			hash := hashOf(1, 1)
			mustReserve(t, owner, hash, 1, 1)
			key := bucketKey(owner, hash)
			if beforeValue {
				key = strings.Clone(owner.valueKey(owner.bucket(&hash), 0))
			}
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
}

// TestLateAnswerMovesToAFreeWay: as TestLateAnswerDoesNotHarmAnother, but there is a terminal entry whose way
// the late outcome may take. Its answer is then in that way, and in no other.
func TestLateAnswerMovesToAFreeWay(t *testing.T) {
	for _, r := range usableHosts {
		for _, beforeValue := range []bool{false, true} {
			h := newHost(r)
			owner, other := newTable(h, small), newTable(h, small)
			hash := hashOf(1, 1)
			mustReserve(t, owner, hash, 1, 1)
			key := bucketKey(owner, hash)
			if beforeValue {
				key = strings.Clone(owner.valueKey(owner.bucket(&hash), 0))
			}
			done := false
			h.before = func(op, k string) Status {
				if op == "set" && k == key && !done {
					done = true
					for i := 2; i < 2+Ways; i++ {
						mustReserve(t, other, hashOf(1, i), i, 2)
					}
					mustFinish(t, other, hashOf(1, 4), 4, "mine", 3)
				}
				return OK
			}
			mustFinish(t, owner, hash, 1, "moved", 4)
			if body, _, _ := answer(owner, hash, 5); body != "moved" {
				t.Errorf("%s: the answer is %q", r.name, body)
			}
			copies := 0
			for _, v := range h.m {
				if bytes.Contains(v.data, []byte("moved")) {
					copies++
				}
			}
			if copies != 1 {
				t.Errorf("%s: %d values hold the answer", r.name, copies)
			}
		}
	}
}

// TestBytesOfADeadOwnerAreFreed: a VM that traps between writing its answer and recording it
// leaves a pending entry and bytes for which no record accounts. The entry ends by
// its expiry. The sweep or the next owner of the way clears the bytes.
func TestBytesOfADeadOwnerAreFreed(t *testing.T) {
	for _, r := range usableHosts {
		for _, swept := range []bool{false, true} {
			h := newHost(r)
			dead, alive := newTable(h, small), newTable(h, small)
			hash := hashOf(1, 1)
			mustReserve(t, dead, hash, 1, 1)
			if res := alive.AddWaiter(&hash, 8, 2); res != Waiting {
				t.Fatal(res)
			}
			if !dead.put(dead.bucket(&hash), 0, &hash, &[]Token{tokenOf(1)}[0], []byte("half done")) {
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

// TestSweepSparesAnAnswerBeingWritten: a sweep that comes between a finisher's answer and
// its record leaves the answer alone, and accounts for it.
func TestSweepSparesAnAnswerBeingWritten(t *testing.T) {
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

// TestSweepThatLosesABucketWakesNobody: a sweep that loses the race for a bucket wakes no waiter;
// the winner does.
func TestSweepThatLosesABucketWakesNobody(t *testing.T) {
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

// TestLearnedOutcomeSparesItsVictim: an outcome from the ledger that needs another entry's
// way, but loses the race for it, does not touch that entry's answer.
func TestLearnedOutcomeSparesItsVictim(t *testing.T) {
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

// TestContentionIsReported: if every set loses, each operation gives up after a bounded
// number of calls, reports that, and leaves no answer.
func TestContentionIsReported(t *testing.T) {
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

// TestShareOfAnAnswerIsNotLost: another VM looks for room, or sweeps, at every step of an
// answer's way to its share and its record. The bytes stay accounted for, and
// the answer is there.
func TestShareOfAnAnswerIsNotLost(t *testing.T) {
	o := Options{MaxEntries: 24, MaxBytes: minBytes, MaxResultBytes: 30000}
	for _, r := range usableHosts {
		for _, sweep := range []bool{false, true} {
			for step, raced := 0, true; raced; step++ {
				h := newHost(r)
				owner, other := newTable(h, o), newTable(h, o)
				third := strings.Repeat("x", owner.budget*owner.unit/3-valueHeader-owner.unit)
				for i := 1; i <= 3; i++ {
					mustReserve(t, owner, hashOf(i, i), i, int64(i))
					mustFinish(t, owner, hashOf(i, i), i, third, int64(i))
				}
				mustReserve(t, owner, hashOf(1, 9), 9, 9)
				mustReserve(t, other, hashOf(2, 10), 10, 9)
				calls := 0
				raced = false
				h.before = func(string, string) Status {
					if calls++; calls == step+1 {
						raced = true
						if sweep {
							other.Sweep(100, 9)
							other.Sweep(100, 9)
						} else {
							mustFinish(t, other, hashOf(2, 10), 10, third, 11)
						}
					}
					return OK
				}
				mustFinish(t, owner, hashOf(1, 9), 9, third, 10)
				h.before = nil
				other.Sweep(100, 12)
				other.Sweep(100, 12)
				checkHeld(t, h, owner)
				if h.peak > minBytes {
					t.Errorf("%s, sweep %v, step %d: %d bytes were stored", r.name, sweep, step, h.peak)
				}
				if body, ok, _ := answer(owner, hashOf(1, 9), 12); !ok || body != third {
					t.Errorf("%s, sweep %v, step %d: the answer has %d bytes, %v", r.name, sweep, step, len(body), ok)
				}
			}
		}
	}
}
