package cache

import "github.com/oncegate/oncegate/manager/api"

// Reserve makes a pending entry. It returns Created, Existing (with a copy in e),
// Full or Contended. A second call with the same token is the same reservation.
//
// wake are the waiters of a pending entry that was over or was evicted. They must
// look again.
func (t *Table) Reserve(r *Reservation, now int64, e *Entry) (res Result, wake []uint32) {
	bucket := t.bucket(&r.Hash)
	v := &t.own
	missed := !r.CacheOnly && t.loadLastMiss(v, bucket) // a claim for bytes must not start from an old record
	for try := 0; try < maxTries; try++ {
		old := missed && try == 0
		if !old && !t.load(v, bucket) {
			break
		}
		slot := v.rec.find(&r.Hash)
		if slot >= 0 && v.rec.ways[slot].live(now) {
			if old {
				continue
			}
			w := &v.rec.ways[slot]
			t.entry(e, bucket, slot, w)
			if w.state == api.StatePending && w.token == r.Token {
				return Created, nil
			}
			return Existing, nil
		}
		if slot < 0 {
			slot = v.rec.victim(now, true)
		}
		if slot < 0 && old {
			continue
		} else if slot < 0 {
			return t.full(r)
		}
		w := &v.rec.ways[slot]
		evicted := w.live(now)
		// A dead owner may have left an answer that its record does not account
		// for.
		abandoned := w.state == api.StatePending
		t.wake = v.rec.takeWaiters(slot, t.wake[:0])
		v.freed[slot] = v.freed[slot] || abandoned
		held := int(w.valueBytes)
		if r.CacheOnly {
			var c claim
			if c, held = t.claim(v, slot, -1, now); c == refused {
				return t.full(r)
			} else if c == changed {
				continue
			}
		}
		*w = way{
			state:      api.StatePending,
			cacheOnly:  r.CacheOnly,
			owner:      r.Owner,
			hash:       r.Hash,
			token:      r.Token,
			print:      r.Fingerprint,
			expires:    r.Expires,
			lastUse:    now,
			valueBytes: uint32(held),
		}
		switch t.store(v) {
		case OK:
			if evicted {
				t.stats.Evictions++
			}
			t.entry(e, bucket, slot, w)
			return Created, t.wake
		case CASMismatch:
			continue
		}
		break
	}
	t.stats.Contended++
	return Contended, nil
}

// full refuses a reservation. If there is a ledger, it can still decide, and the
// proxy only does not coalesce duplicates of that key.
func (t *Table) full(r *Reservation) (Result, []uint32) {
	if r.CacheOnly {
		t.stats.Refused++
	}
	return Full, nil
}

// AddWaiter adds a VM's queue to a pending entry. It returns Waiting, Ended,
// TooManyWaiters or Contended. After Waiting, the VM that ends the entry gets the
// queue. After any other result nothing will wake it.
func (t *Table) AddWaiter(h *Hash, queue uint32, now int64) Result {
	bucket := t.bucket(h)
	v := &t.own
	for try := 0; try < maxTries; try++ {
		if !t.load(v, bucket) {
			break
		}
		slot := v.rec.find(h)
		if slot < 0 || !v.rec.ways[slot].live(now) || v.rec.ways[slot].state != api.StatePending {
			return Ended
		}
		mine := waiter{uint8(slot), queue}
		for _, w := range v.rec.waiters[:v.rec.n] {
			if w == mine {
				return Waiting
			}
		}
		if v.rec.n == MaxWaiters {
			return TooManyWaiters
		}
		v.rec.waiters[v.rec.n] = mine
		v.rec.n++
		switch t.store(v) {
		case OK:
			return Waiting
		case CASMismatch:
			continue
		}
		break
	}
	t.stats.Contended++
	return Contended
}

// Release removes the attempt's entry if it is pending or its outcome is unknown. It
// returns Done, NotOwner, Gone or Contended, and the waiters to wake. After Contended
// the entry ends by its expiry.
func (t *Table) Release(h *Hash, token *Token, now int64) (res Result, wake []uint32) {
	t.wake = t.wake[:0]
	res = t.change(h, token, now, func(v *view, slot int) bool {
		w := &v.rec.ways[slot]
		if w.state.Terminal() {
			return false
		}
		t.wake = v.rec.takeWaiters(slot, t.wake[:0])
		w.clear()
		return true
	})
	if res != Done {
		return res, nil
	}
	return res, t.wake
}

// Renew moves the end of the attempt's pending entry. The entry may be over already if no
// other entry has replaced it. It returns Done, NotOwner, Gone or Contended.
func (t *Table) Renew(h *Hash, token *Token, expires, now int64) Result {
	return t.change(h, token, now, func(v *view, slot int) bool {
		w := &v.rec.ways[slot]
		if !w.pending() {
			return false
		}
		w.expires = expires
		return true
	})
}

// Settle says that the ledger has answered about the attempt's outcome, so its entry may be evicted
// like any other. It expires at until, if that is earlier than before. An entry that has expired then, or
// that lacks its answer, is removed. It returns Done, NotOwner, Gone or
// Contended. After Contended the entry stays as it was.
func (t *Table) Settle(h *Hash, token *Token, until, now int64) Result {
	return t.change(h, token, now, func(v *view, slot int) bool {
		w := &v.rec.ways[slot]
		if !w.state.Terminal() {
			return false
		}
		w.cacheOnly, w.expires = false, min(w.expires, until)
		if !w.body || w.expires <= now {
			w.clear()
		}
		return true
	})
}

// change changes the attempt's entry with f. It returns Done, NotOwner (f refused, or it is
// another attempt's), Gone or Contended.
func (t *Table) change(h *Hash, token *Token, now int64, f func(v *view, slot int) bool) Result {
	bucket := t.bucket(h)
	v := &t.own
	for try := 0; try < maxTries; try++ {
		if !t.load(v, bucket) {
			break
		}
		slot := v.rec.find(h)
		if slot < 0 {
			return Gone
		}
		w := &v.rec.ways[slot]
		if w.token != *token || !f(v, slot) {
			if !w.live(now) {
				return Gone
			}
			return NotOwner
		}
		switch t.store(v) {
		case OK:
			return Done
		case CASMismatch:
			continue
		}
		break
	}
	t.stats.Contended++
	return Contended
}

// Finish records the outcome. It returns Done, NotOwner (another attempt's live
// entry stays as it is), Full or Contended. After Contended the pending entry ends
// by its expiry. wake are the waiters to wake, whatever the result.
//
// It also records an outcome that was learned from the ledger. If there is no entry,
// it makes one, but never evicts a pending entry for it: the result is then Full. An
// entry whose answer was evicted gets it back.
//
// If the answer is not kept (Raw is nil, or there is no room for it), no entry
// stays, because a duplicate must ask the ledger anyway. With CacheOnly an entry
// without its answer stays.
func (t *Table) Finish(o *Outcome, now int64) (res Result, wake []uint32) {
	t.wake = t.wake[:0]
	size := valueHeader + len(o.Raw)
	f := finishing{bucket: t.bucket(&o.Hash), size: size, written: -1}
	f.keep = o.Raw != nil && o.Expires > now && size <= t.largest
	f.noRoom = o.Raw != nil && o.Expires > now && !f.keep
	res = Contended
	for try := 0; try < maxTries; try++ {
		var done bool
		if res, done = t.finish(o, now, &f); done {
			break
		}
	}
	if f.written >= 0 && !f.kept {
		t.retract(f.bucket, f.written, &o.Hash, &o.Token)
	}
	if res == Contended {
		t.stats.Contended++
	}
	if f.noRoom && res == Done {
		t.stats.AnswersDropped++
	}
	return res, t.wake
}

// finishing is the state of one Finish over its tries.
type finishing struct {
	bucket  int
	size    int  // bytes of the value
	keep    bool // there is an answer to keep, and there may be room
	noRoom  bool // there is an answer to keep, but no room
	written int  // the slot whose value has the answer; -1: none
	kept    bool // the record says that the value has the answer
}

// finish is one try. done is false if the record must be read again.
func (t *Table) finish(o *Outcome, now int64, f *finishing) (res Result, done bool) {
	v := &t.own
	if !t.load(v, f.bucket) {
		return Contended, true
	}
	slot, res := t.finishSlot(v, o, now)
	if slot < 0 {
		f.noRoom = false
		return res, true
	}
	w := &v.rec.ways[slot]
	mine := w.hash == o.Hash && w.token == o.Token && w.live(now)
	var back *region // the region that gets bytes back
	if f.keep && mine {
		switch c := t.makeRoom(v, slot, f, now, &back); c {
		case refused:
			f.keep, f.noRoom = false, true
			return Contended, false
		case changed:
			return Contended, false
		}
	}
	evicted := w.live(now) && w.hash != o.Hash
	abandoned := w.pending() && !mine
	waiting := len(t.wake)
	t.wake = v.rec.takeWaiters(slot, t.wake)
	*w = way{
		state:      o.State,
		cacheOnly:  o.CacheOnly,
		learned:    o.Learned,
		hash:       o.Hash,
		token:      o.Token,
		print:      o.Fingerprint,
		expires:    o.Expires,
		lastUse:    now,
		valueBytes: w.valueBytes,
	}
	v.freed[slot] = v.freed[slot] || abandoned
	done = true
	switch {
	case !f.keep:
		if !o.CacheOnly || o.Expires <= now {
			w.clear()
		}
	case !mine:
		// The first try takes the way over without an answer, because a VM may write
		// only to the value of a way whose entry is its own.
		done = false
	default:
		if f.written != slot {
			if f.written >= 0 {
				t.retract(f.bucket, f.written, &o.Hash, &o.Token)
			}
			if !t.put(f.bucket, slot, &o.Hash, &o.Token, o.Raw) {
				t.wake = t.wake[:waiting]
				return Contended, true
			}
			f.written = slot
		}
		w.body, w.valueBytes = true, uint32(f.size)
	}
	switch t.store(v) {
	case OK:
		if evicted {
			t.stats.Evictions++
		}
		f.kept = w.body
		if back != nil && f.kept {
			t.giveBack(back, v, f.size)
		}
		return Done, done
	case CASMismatch:
		t.wake = t.wake[:waiting]
		return Contended, false
	}
	t.wake = t.wake[:waiting]
	return Contended, true
}

// makeRoom claims the bytes that the answer needs in slot. If far more bytes were set
// aside, back is the region that gets the rest.
func (t *Table) makeRoom(v *view, slot int, f *finishing, now int64, back **region) claim {
	units := t.units(v.rec.valueBytes(slot) + f.size)
	if units > v.units {
		c, _ := t.claim(v, slot, f.size, now)
		return c
	}
	if int(v.rec.ways[slot].valueBytes) >= 2*f.size && units < v.units {
		if g, ok := t.loadRegion(f.bucket / t.span); ok {
			*back = g
		}
	}
	return claimed
}

// finishSlot finds the slot for the outcome. -1: there is none, and res says why.
func (t *Table) finishSlot(v *view, o *Outcome, now int64) (slot int, res Result) {
	slot = v.rec.find(&o.Hash)
	if slot < 0 {
		if slot = v.rec.victim(now, false); slot < 0 {
			return -1, Full
		}
		return slot, Done
	}
	w := &v.rec.ways[slot]
	switch {
	case !w.live(now):
	case w.token == o.Token:
		if w.body {
			return -1, Done // an earlier call recorded the outcome
		}
	case !o.Learned || w.pending() || w.cacheOnly || w.body && t.hasAnswer(v, slot):
		return -1, NotOwner
	}
	return slot, Done
}

// hasAnswer reports whether an entry's answer is still there. A VM that died while it made
// room may have cleared it.
func (t *Table) hasAnswer(v *view, slot int) bool {
	w := &v.rec.ways[slot]
	value, _, st := t.sd.Get(t.valueKey(v.bucket, slot), nil)
	return st != OK || valueOf(value, &w.hash, &w.token)
}
