package cache

import "github.com/oncegate/oncegate/manager/api"

const scratchSuffix = ".p"

// scratch is the scratch key's value and that of a cleared answer.
var scratch = []byte{0}

// probe looks at what set with a zero CAS does to a key that is there. That
// decides everything: where it does not overwrite, it creates. A present key's
// number is never 0 on a host where zero overwrites (its counter skips 0);
// elsewhere it may be, and then the set below counts it up.
func probe(sd SharedData, prefix string) Semantics {
	if prefix == "" {
		prefix = defaultPrefix
	}
	key := prefix + scratchSuffix
	for try := 0; try < maxTries; try++ {
		_, cas, st := sd.Get(key)
		if st != OK && st != NotFound {
			break
		}
		set := sd.Set(key, scratch, 0)
		switch {
		case set == Failed:
			return Semantics{}
		case st == NotFound || cas == 0:
			// Now it is there, with a number: look again.
		default:
			return Semantics{ZeroOverwrites: set == OK, Usable: true}
		}
	}
	return Semantics{}
}

// load reads a set's record into t.rec and remembers how to store it back.
// False: the host failed or the table cannot be used.
func (t *Table) load(a, set int) bool {
	if !t.sem.Usable {
		return false
	}
	value, cas, st := t.sd.Get(t.recordKey(a, set))
	return t.accept(a, value, cas, st)
}

func (t *Table) accept(a int, value []byte, cas uint32, st Status) bool {
	t.cas, t.exists = cas, st == OK
	t.freed = [Ways]bool{}
	switch st {
	case NotFound:
		t.rec = record{}
		return true
	case OK:
		if cas == 0 && t.sem.ZeroOverwrites {
			return false // storing it back would not compare anything
		}
		if !t.rec.decode(value) {
			t.stats.Foreign++
			t.rec.foreign(uint32(t.areas[a].budget))
		}
		return true
	}
	return false
}

// store writes t.rec back if nobody else changed the record since load, and
// clears the values in t.freed.
func (t *Table) store(a, set int) Status {
	t.inspectFreed(a, set)
	t.buf = t.rec.append(t.buf[:0])
	cas := t.cas
	if !t.exists {
		var ok bool
		if cas, ok = t.createCAS(); !ok {
			return Failed
		}
	}
	st := t.sd.Set(t.recordKey(a, set), t.buf, cas)
	switch st {
	case OK:
		t.clearFreed(a, set)
	case CASMismatch:
		t.stats.Retries++
	}
	return st
}

// createSteps is the distance between the numbers that createCAS returns.
const createSteps = 1 << 15

// createCAS returns the number with which set creates an absent key and fails
// on a present one.
//
// Where zero overwrites, any other number creates an absent key, so it has to
// be one that the key cannot have if another VM has just created it. On Envoy
// one counter gives all keys their numbers. The scratch key, written now, shows
// where it is; about half the range away lies a number that no key gets within
// the next two thousand million writes, also while the counter wraps around. (A
// constant such as 0xFFFFFFFF is a number like all others on a proxy that runs
// for days.)
//
// On a host where every key has a counter of its own, which may start from the
// number that the key was created with, the numbers of two creators must not be
// neighbors: the second one's would be what the first one's key has by now.
// Multiples of createSteps are not, unless the key is written createSteps-1
// times between our look at it and our set.
func (t *Table) createCAS() (cas uint32, ok bool) {
	if !t.sem.ZeroOverwrites {
		return 0, true
	}
	if t.sd.Set(t.scratchKey(), scratch, 0) != OK {
		return 0, false
	}
	_, now, st := t.sd.Get(t.scratchKey())
	if st != OK {
		return 0, false
	}
	return max((now^1<<31)&^(createSteps-1), createSteps), true
}

// put stores an answer in the value of a way, whatever is there.
func (t *Table) put(a, set, slot int, h *Hash, token *Token, raw []byte) bool {
	t.val = appendValue(t.val[:0], h, token, raw)
	ok := t.overwrite(a, set, slot)
	if cap(t.val) > maxKeptBuffer {
		t.val = nil
	}
	return ok
}

func (t *Table) overwrite(a, set, slot int) bool {
	key := t.valueKey(a, set, slot)
	if t.sem.ZeroOverwrites {
		return t.sd.Set(key, t.val, 0) == OK
	}
	for try := 0; try < maxTries; try++ {
		_, cas, st := t.sd.Get(key)
		if st == Failed {
			return false
		}
		if st == NotFound {
			cas = 0
		}
		switch t.sd.Set(key, t.val, cas) {
		case OK:
			return true
		case CASMismatch:
			t.stats.Retries++
		default:
			return false
		}
	}
	return false
}

// retract clears the value of a way if it is the answer of the attempt.
func (t *Table) retract(a, set, slot int, h *Hash, token *Token) {
	key := t.valueKey(a, set, slot)
	value, cas, st := t.sd.Get(key)
	if st == OK && valueOf(value, h, token) {
		t.sd.Set(key, scratch, cas)
	}
}

// inspectFreed looks at the values that t.rec, about to be stored, no longer
// accounts for, and clearFreed clears them after the store. In between the
// record may not have changed, or the store fails; and who takes the way over
// after it writes the value later than we read it, so the compare fails. Hence
// clearing destroys no answer that belongs to anybody.
func (t *Table) inspectFreed(a, set int) {
	for slot := range t.freed {
		if !t.freed[slot] {
			continue
		}
		value, cas, st := t.sd.Get(t.valueKey(a, set, slot))
		w := &t.rec.ways[slot]
		switch {
		case st != OK || len(value) <= len(scratch):
			t.freed[slot] = false
		case valueOf(value, &w.hash, &w.token):
			// The owner has just put it there and is about to finish.
			t.freed[slot] = false
			w.held = uint32(len(value))
		default:
			t.freedCAS[slot] = cas
		}
	}
}

func (t *Table) clearFreed(a, set int) {
	for slot := range t.freed {
		if t.freed[slot] {
			t.sd.Set(t.valueKey(a, set, slot), scratch, t.freedCAS[slot])
		}
	}
}

// makeRoom frees values of other slots until size bytes fit into slot, which
// shall be at most the budget: first what nobody owns, then by last use. It only
// changes t.rec and notes what is to be cleared in t.freed.
func (t *Table) makeRoom(a, slot, size int, now int64) {
	sum := int64(size)
	for i := range t.rec.ways {
		if i != slot {
			sum += int64(t.rec.ways[i].held)
		}
	}
	for sum > int64(t.areas[a].budget) {
		victim := -1
		for i := range t.rec.ways {
			w := &t.rec.ways[i]
			if i == slot || w.held == 0 {
				continue
			}
			if !w.ownBody() || !w.live(now) {
				victim = i
				break
			}
			if victim < 0 || w.lastUse < t.rec.ways[victim].lastUse {
				victim = i
			}
		}
		if victim < 0 {
			return
		}
		w := &t.rec.ways[victim]
		sum -= int64(w.held)
		w.held = 0
		t.freed[victim] = true
		switch {
		case !w.ownBody():
		case !w.live(now):
			w.clear()
		case w.sole:
			t.stats.Evictions++
			// That it ran must not be forgotten with the answer. The token
			// goes, because the value is nobody's now.
			w.body, w.token = false, Token{}
		default:
			t.stats.Evictions++
			w.clear()
		}
	}
}

// victim picks the slot for a new entry: a free one, else one that is over,
// else the terminal entry used longest ago, else (only if pending may go) the
// oldest pending entry that has a ledger behind it. -1: none.
func (t *Table) victim(now int64, pending bool) int {
	terminal, oldest := -1, -1
	for i := range t.rec.ways {
		if t.rec.ways[i].state == api.StateNone {
			return i
		}
	}
	for i := range t.rec.ways {
		w := &t.rec.ways[i]
		switch {
		case !w.live(now):
			return i
		case w.state.Terminal():
			if terminal < 0 || w.lastUse < t.rec.ways[terminal].lastUse {
				terminal = i
			}
		case pending && !w.sole:
			if oldest < 0 || w.lastUse < t.rec.ways[oldest].lastUse {
				oldest = i
			}
		}
	}
	if terminal >= 0 {
		return terminal
	}
	return oldest
}
