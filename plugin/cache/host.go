package cache

import "github.com/oncegate/oncegate/manager/api"

const scratchSuffix = ".p"

// scratch is the value of the scratch key, and of a cleared answer.
var scratch = []byte{0}

// Probe finds out the host's semantics with a scratch key that begins with prefix.
// It may run at any time, and in several VMs at the same time.
//
// What counts is what set with a zero CAS does to a present key: if it does not
// overwrite, it creates. On a host where zero overwrites, a present key's number is
// never 0, because the counter skips 0. On other hosts it may be 0, and then the set
// below counts it up.
func Probe(sd SharedData, prefix string) Semantics {
	if prefix == "" {
		prefix = defaultPrefix
	}
	key := prefix + scratchSuffix
	for try := 0; try < maxTries; try++ {
		_, cas, st := sd.Get(key, nil)
		if st != OK && st != NotFound {
			break
		}
		set := sd.Set(key, scratch, 0)
		switch {
		case set == Failed:
			return Semantics{}
		case st == NotFound || cas == 0:
			// Now the key is there and has a number, so look again.
		default:
			return Semantics{ZeroOverwrites: set == OK, Usable: true}
		}
	}
	return Semantics{}
}

// view is a bucket's record while an operation works on it: what load read, how
// to store it back, and which values to clear after that.
type view struct {
	bucket   int
	rec      record
	cas      uint32
	exists   bool
	units    int // the units that the record accounted for when it was read
	freed    [Ways]bool
	freedCAS [Ways]uint32
}

// load reads a bucket's record. False: the host failed or the table cannot be
// used.
func (t *Table) load(v *view, bucket int) bool {
	if !t.sem.Usable {
		return false
	}
	value, cas, st := t.get(bucket)
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
			return false // a store with 0 would overwrite without comparing
		}
		if !v.rec.decode(value) {
			// Without a record it is unknown which entries the values belong to.
			t.stats.Foreign++
			v.rec = record{}
			v.freed = [Ways]bool{true, true, true, true, true, true, true, true}
		}
		v.units = t.units(v.rec.valueBytes(-1))
		return true
	}
	return false
}

// store writes the record back if it has not changed since load, and clears
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

// number returns the CAS number with which set stores a value only if the key was
// not written since it was read. False: there is none.
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
// Where zero overwrites, any other number creates an absent key. So the number
// must be one that the key cannot have if another VM has just created it. In Envoy
// one counter gives all keys their numbers. Writing the scratch key shows the
// counter's value. A number about half the range away is not reached within the
// next two thousand million writes, even while the counter wraps around. A constant
// would not do: on a proxy that runs for days the counter reaches it.
//
// On other hosts every key may have its own counter, which starts from the number
// that the key was created with. There the numbers of two creators must not be
// neighbors, because the second number could be what the first creator's key has
// by now. Multiples of createSteps are far enough apart, unless the key is written
// createSteps-1 times between this VM's look at it and its set.
func (t *Table) createCAS() (cas uint32, ok bool) {
	if !t.sem.ZeroOverwrites {
		return 0, true
	}
	if t.sd.Set(t.scratchKey(), scratch, 0) != OK {
		return 0, false
	}
	_, now, st := t.sd.Get(t.scratchKey(), t.scratchRoom)
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
		_, cas, st := t.sd.Get(key, nil)
		if st == Failed {
			return false
		}
		if st == NotFound {
			cas = 0
		}
		if st := t.compareAndSet(key, t.val, cas); st != CASMismatch {
			return st == OK
		}
	}
	return false
}

// retract clears the value of a way if it is the answer of the attempt. True: it
// did.
func (t *Table) retract(bucket, slot int, h *Hash, token *Token) bool {
	key := t.valueKey(bucket, slot)
	value, cas, st := t.sd.Get(key, nil)
	return st == OK && valueOf(value, h, token) && t.sd.Set(key, scratch, cas) == OK
}

// erase removes an entry to make room. It clears the answer first, so that the
// record accounts for its bytes until they are gone. If the record is not stored
// after that, the entry has lost its answer, so the caller must not erase an entry
// that must keep it. If clearing fails, the bytes stay accounted for, as waste.
func (t *Table) erase(v *view, slot int) {
	w := &v.rec.ways[slot]
	if w.body && t.retract(v.bucket, slot, &w.hash, &w.token) {
		w.valueBytes = 0
	}
	w.clear()
}

// inspectFreed reads the values in v.freed, which belong to no entry, before the
// record is stored. clearFreed clears them after that. If the record changes in
// between, the store fails. A VM that takes over the way later writes its value
// after this read, so the compare-and-set of clearFreed fails. So clearing never
// destroys an entry's answer. The record accounts for the bytes until the next look
// finds them gone.
func (t *Table) inspectFreed(v *view) {
	for slot := range v.freed {
		if !v.freed[slot] {
			continue
		}
		value, cas, st := t.sd.Get(t.valueKey(v.bucket, slot), nil)
		w := &v.rec.ways[slot]
		switch {
		case st == Failed:
			v.freed[slot] = false
		case st == NotFound || len(value) <= len(scratch):
			v.freed[slot] = false
			if w.hasUnneededBytes() {
				w.valueBytes = 0
			}
		default:
			w.valueBytes = max(w.valueBytes, uint32(len(value)))
			v.freedCAS[slot] = cas
			// If it is the entry's answer, its owner has just put it there and is about to finish.
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

// victim picks the slot for a new entry: a free one, else one that is over. Else it
// picks, among entries with a ledger, the terminal entry used longest ago, else the
// oldest pending entry if pending allows that. -1: none.
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
		case w.cacheOnly:
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
