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

// view is a bucket's record while an operation works on it: what load read, how
// to store it back, and which values are to be cleared after that.
type view struct {
	bucket   int
	rec      record
	cas      uint32
	exists   bool
	units    int // that the record, as it was read, accounts for
	freed    [Ways]bool
	freedCAS [Ways]uint32
}

// load reads a bucket's record. False: the host failed or the table cannot be
// used.
func (t *Table) load(v *view, bucket int) bool {
	if !t.sem.Usable {
		return false
	}
	value, cas, st := t.sd.Get(t.recordKey(bucket))
	return t.accept(v, bucket, value, cas, st)
}

func (t *Table) accept(v *view, bucket int, value []byte, cas uint32, st Status) bool {
	v.bucket, v.cas, v.exists, v.units = bucket, cas, st == OK, 0
	v.freed = [Ways]bool{}
	switch st {
	case NotFound:
		v.rec = record{}
		return true
	case OK:
		if cas == 0 && t.sem.ZeroOverwrites {
			return false // storing it back would not compare anything
		}
		if !v.rec.decode(value) {
			// No record tells whose the values are.
			t.stats.Foreign++
			v.rec = record{}
			v.freed = [Ways]bool{true, true, true, true, true, true, true, true}
		}
		v.units = t.units(v.rec.held(-1))
		return true
	}
	return false
}

// store writes the record back if nobody else changed it since load, and clears
// the values in v.freed.
func (t *Table) store(v *view) Status {
	t.inspectFreed(v)
	t.buf = v.rec.append(t.buf[:0])
	cas, ok := t.number(v.cas, v.exists)
	if !ok {
		return Failed
	}
	st := t.compareAndSet(t.recordKey(v.bucket), t.buf, cas)
	if st == OK {
		t.clearFreed(v)
	}
	return st
}

// number returns the CAS number with which a value is stored if nobody else has
// written the key since it was read.
func (t *Table) number(cas uint32, exists bool) (uint32, bool) {
	if exists {
		return cas, true
	}
	return t.createCAS()
}

func (t *Table) compareAndSet(key string, value []byte, cas uint32) Status {
	st := t.sd.Set(key, value, cas)
	if st == CASMismatch {
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
func (t *Table) put(bucket, slot int, h *Hash, token *Token, raw []byte) bool {
	t.val = appendValue(t.val[:0], h, token, raw)
	ok := t.overwrite(bucket, slot)
	if cap(t.val) > maxKeptBuffer {
		t.val = nil
	}
	return ok
}

func (t *Table) overwrite(bucket, slot int) bool {
	key := t.valueKey(bucket, slot)
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

// retract clears the value of a way if it is the answer of the attempt, and
// tells whether it did.
func (t *Table) retract(bucket, slot int, h *Hash, token *Token) bool {
	key := t.valueKey(bucket, slot)
	value, cas, st := t.sd.Get(key)
	return st == OK && valueOf(value, h, token) && t.sd.Set(key, scratch, cas) == OK
}

// erase removes an entry whose answer makes room, the answer first: so its bytes
// are accounted for until they are gone. When the record is not stored after
// that, the entry is without its answer; hence no entry that must keep it may be
// erased. An answer that is not there stays accounted for, as waste.
func (t *Table) erase(v *view, slot int) {
	w := &v.rec.ways[slot]
	if w.body && t.retract(v.bucket, slot, &w.hash, &w.token) {
		w.held = 0
	}
	w.clear()
}

// inspectFreed looks at the values of nobody's in v.freed, before the record is
// stored, and clearFreed clears them after that. In between the record may not
// have changed, or the store fails; and a VM that takes the way over after that
// writes the value later than we read it, so the compare fails. Hence clearing
// destroys no answer that belongs to anybody. The record accounts for the bytes
// until the next look finds them gone.
func (t *Table) inspectFreed(v *view) {
	for slot := range v.freed {
		if !v.freed[slot] {
			continue
		}
		value, cas, st := t.sd.Get(t.valueKey(v.bucket, slot))
		w := &v.rec.ways[slot]
		switch {
		case st == Failed:
			v.freed[slot] = false
		case st == NotFound || len(value) <= len(scratch):
			v.freed[slot] = false
			if w.waste() {
				w.held = 0
			}
		default:
			w.held = max(w.held, uint32(len(value)))
			v.freedCAS[slot] = cas
			// Otherwise the owner has just put it there and is about to finish.
			v.freed[slot] = !valueOf(value, &w.hash, &w.token)
		}
	}
}

func (t *Table) clearFreed(v *view) {
	for slot := range v.freed {
		if v.freed[slot] {
			t.sd.Set(t.valueKey(v.bucket, slot), scratch, v.freedCAS[slot])
		}
	}
}

// victim picks the slot for a new entry: a free one, else one that is over,
// else, of those with a ledger behind them, the terminal entry used longest ago,
// else (only if pending may go) the oldest pending entry. -1: none.
func (r *record) victim(now int64, pending bool) int {
	terminal, oldest := -1, -1
	for i := range r.ways {
		if r.ways[i].state == api.StateNone {
			return i
		}
	}
	for i := range r.ways {
		w := &r.ways[i]
		switch {
		case !w.live(now):
			return i
		case w.sole:
		case w.state.Terminal():
			if terminal < 0 || w.lastUse < r.ways[terminal].lastUse {
				terminal = i
			}
		case pending:
			if oldest < 0 || w.lastUse < r.ways[oldest].lastUse {
				oldest = i
			}
		}
	}
	if terminal >= 0 {
		return terminal
	}
	return oldest
}
