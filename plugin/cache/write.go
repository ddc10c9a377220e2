package cache

import "github.com/oncegate/oncegate/manager/api"

// Reserve makes a pending entry: Created, Existing (a copy in e), Full or
// Contended. A second call with the same token is the same reservation.
//
// wake are the waiters of a pending entry that was over or had to make room:
// they shall look again.
func (t *Table) Reserve(r *Reservation, now int64, e *Entry) (res Result, wake []uint32) {
	set := t.set(0, &r.Hash)
	for try := 0; try < maxTries; try++ {
		if !t.load(0, set) {
			break
		}
		slot := t.rec.find(&r.Hash)
		if slot >= 0 && t.rec.ways[slot].live(now) {
			w := &t.rec.ways[slot]
			t.entry(e, set, slot, w)
			if w.state == api.StatePending && w.token == r.Token {
				return Created, nil
			}
			return Existing, nil
		}
		if slot < 0 {
			slot = t.victim(now, true)
		}
		if slot < 0 {
			return Full, nil
		}
		w := &t.rec.ways[slot]
		evicted := w.live(now)
		// An owner that is gone may have left an answer that it did not get
		// to account for.
		abandoned := w.state == api.StatePending
		t.wake = t.rec.takeWaiters(slot, t.wake[:0])
		t.freed[slot] = abandoned
		*w = way{
			state:   api.StatePending,
			sole:    r.Sole,
			owner:   r.Owner,
			hash:    r.Hash,
			token:   r.Token,
			print:   r.Fingerprint,
			expires: r.Expires,
			lastUse: now,
			held:    w.held,
		}
		switch t.store(0, set) {
		case OK:
			if evicted {
				t.stats.Evictions++
			}
			t.entry(e, set, slot, w)
			return Created, t.wake
		case CASMismatch:
			continue
		}
		break
	}
	t.stats.Contended++
	return Contended, nil
}

// AddWaiter adds a VM's queue to a pending entry: Waiting, Ended,
// TooManyWaiters or Contended. After Waiting, whoever ends the entry gets the
// queue; after anything else nobody will wake it.
func (t *Table) AddWaiter(h *Hash, queue uint32, now int64) Result {
	set := t.set(0, h)
	for try := 0; try < maxTries; try++ {
		if !t.load(0, set) {
			break
		}
		slot := t.rec.find(h)
		if slot < 0 || !t.rec.ways[slot].live(now) || t.rec.ways[slot].state != api.StatePending {
			return Ended
		}
		mine := waiter{uint8(slot), queue}
		for _, w := range t.rec.waiters[:t.rec.n] {
			if w == mine {
				return Waiting
			}
		}
		if t.rec.n == MaxWaiters {
			return TooManyWaiters
		}
		t.rec.waiters[t.rec.n] = mine
		t.rec.n++
		switch t.store(0, set) {
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

// Release removes the attempt's pending entry and returns the waiters to wake:
// Done, NotOwner, Gone or Contended. After Contended the entry ends by its
// expiry.
func (t *Table) Release(h *Hash, token *Token, now int64) (res Result, wake []uint32) {
	set := t.set(0, h)
	for try := 0; try < maxTries; try++ {
		if !t.load(0, set) {
			break
		}
		slot := t.rec.find(h)
		if slot < 0 {
			return Gone, nil
		}
		w := &t.rec.ways[slot]
		if w.token != *token || w.state != api.StatePending {
			if !w.live(now) {
				return Gone, nil
			}
			return NotOwner, nil
		}
		t.wake = t.rec.takeWaiters(slot, t.wake[:0])
		w.clear()
		switch t.store(0, set) {
		case OK:
			return Done, t.wake
		case CASMismatch:
			continue
		}
		break
	}
	t.stats.Contended++
	return Contended, nil
}

// Finish records the outcome: Done, NotOwner (another attempt's live entry
// stays as it is), Full or Contended. After Contended the pending entry ends by
// its expiry. wake are waiters to wake, whatever the result.
//
// It is also how an outcome that was learned from the ledger gets in, with a
// fresh token: without an entry one is made (never at the cost of a pending
// one: Full), and an entry whose answer was evicted gets it back.
//
// An answer that is not kept (Raw is nil, or there is no room for its size)
// leaves no entry, because a duplicate has to ask the ledger anyway; with Sole
// it leaves one without body.
func (t *Table) Finish(o *Outcome, now int64) (res Result, wake []uint32) {
	t.wake = t.wake[:0]
	f := finishing{set: t.set(0, &o.Hash), keep: o.Raw != nil && o.Expires > now, written: -1}
	res = Contended
	for try := 0; try < maxTries; try++ {
		var done bool
		if res, done = t.finish(o, now, &f); done {
			break
		}
	}
	if f.written >= 0 && !f.kept {
		t.retract(0, f.set, f.written, &o.Hash, &o.Token)
	}
	if res == Contended {
		t.stats.Contended++
	}
	return res, t.wake
}

// finishing is the state of one Finish over its tries.
type finishing struct {
	set     int
	keep    bool // the answer is or will be in one of the two places below
	written int  // the slot of the bucket whose value has the answer, or -1
	kept    bool // the record says so too
	// The answer's place in another area; area is 0 before it was placed.
	area, place int
}

// finish is one try. done is false when the record is to be read again.
func (t *Table) finish(o *Outcome, now int64, f *finishing) (res Result, done bool) {
	if !t.load(0, f.set) {
		return Contended, true
	}
	slot, res := t.finishSlot(o, now)
	if slot < 0 {
		return res, true
	}
	size := valueHeader + len(o.Raw)
	own := size <= t.areas[0].budget
	if f.keep && !own && f.area == 0 {
		f.area, f.place = t.place(o, size, now)
		f.keep = f.area > 0
		return Contended, false // place has used t.rec
	}
	w := &t.rec.ways[slot]
	mine := w.hash == o.Hash && w.token == o.Token && w.live(now)
	evicted := w.live(now) && w.hash != o.Hash
	abandoned := w.state == api.StatePending && !mine
	waiting := len(t.wake)
	t.wake = t.rec.takeWaiters(slot, t.wake)
	*w = way{
		state:   o.State,
		sole:    o.Sole,
		hash:    o.Hash,
		token:   o.Token,
		print:   o.Fingerprint,
		expires: o.Expires,
		lastUse: now,
		held:    w.held,
	}
	t.freed[slot] = abandoned
	done = true
	switch {
	case !f.keep:
		if !o.Sole || o.Expires <= now {
			w.clear()
		}
	case !own:
		w.body, w.area, w.place = true, uint8(f.area), uint8(f.place)
	case !mine:
		// The way is taken over without an answer first: nobody writes to the
		// value of a way whose entry is not theirs.
		done = false
	default:
		if f.written != slot {
			if f.written >= 0 {
				t.retract(0, f.set, f.written, &o.Hash, &o.Token)
			}
			if !t.put(0, f.set, slot, &o.Hash, &o.Token, o.Raw) {
				t.wake = t.wake[:waiting]
				return Contended, true
			}
			f.written = slot
		}
		w.body, w.held = true, uint32(size)
		t.makeRoom(0, slot, size, now)
	}
	switch t.store(0, f.set) {
	case OK:
		if evicted {
			t.stats.Evictions++
		}
		f.kept = w.ownBody()
		return Done, done
	case CASMismatch:
		t.wake = t.wake[:waiting]
		return Contended, false
	}
	t.wake = t.wake[:waiting]
	return Contended, true
}

// finishSlot finds the slot in which the outcome belongs; when there is none
// (-1), res is the answer.
func (t *Table) finishSlot(o *Outcome, now int64) (slot int, res Result) {
	slot = t.rec.find(&o.Hash)
	if slot < 0 {
		if slot = t.victim(now, false); slot < 0 {
			return -1, Full
		}
		return slot, Done
	}
	w := &t.rec.ways[slot]
	switch {
	case !w.live(now):
	case w.token == o.Token:
		if w.ownBody() || (w.sole && w.body) {
			return -1, Done // an earlier call did it
		}
	case !o.Learned || w.state == api.StatePending || w.ownBody() || w.sole:
		return -1, NotOwner
	}
	return slot, Done
}

// place puts a large answer into the first area whose sets have room for it and
// returns the area and the slot there, or 0.
func (t *Table) place(o *Outcome, size int, now int64) (a, slot int) {
	for a = 1; a < t.n && t.areas[a].budget < size; a++ {
	}
	if a == t.n {
		return 0, 0
	}
	set := t.set(a, &o.Hash)
	for try := 0; try < maxTries; try++ {
		if !t.load(a, set) {
			return 0, 0
		}
		if slot = t.rec.find(&o.Hash); slot < 0 {
			slot = t.victim(now, false)
		}
		if slot < 0 {
			return 0, 0 // pending entries: not a record of ours
		}
		w := &t.rec.ways[slot]
		evicted := w.live(now) && w.hash != o.Hash
		*w = way{
			state:   api.StateCommitted,
			body:    true,
			hash:    o.Hash,
			token:   o.Token,
			expires: o.Expires,
			lastUse: now,
		}
		t.makeRoom(a, slot, size, now)
		w.held = uint32(size)
		switch t.store(a, set) {
		case OK:
		case CASMismatch:
			continue
		default:
			return 0, 0
		}
		if evicted {
			t.stats.Evictions++
		}
		if !t.put(a, set, slot, &o.Hash, &o.Token, o.Raw) {
			return 0, 0
		}
		// Nobody refers to the place yet, so it may have been taken again; then
		// what was put there is accounted for by nobody.
		if t.load(a, set) {
			if w := &t.rec.ways[slot]; w.state != api.StateNone && w.hash == o.Hash && w.token == o.Token {
				return a, slot
			}
		}
		t.retract(a, set, slot, &o.Hash, &o.Token)
		return 0, 0
	}
	return 0, 0
}
