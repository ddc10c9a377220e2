package cache

import (
	"encoding/binary"

	"github.com/oncegate/oncegate/manager/api"
)

// The sweep's state, shared by all VMs:
//
//	sweep := version(1) sets(4) position(4) entries(8) bytes(8)
//	         last entries(8) last bytes(8)
//
// sets is the number of sets of all areas, position the next one to look at,
// entries and bytes what this round has seen so far.
const (
	sweepVersion = 1
	sweepSize    = 1 + 4 + 4 + 4*8
)

type sweepState struct {
	sets, position         uint32
	entries, bytes         uint64
	lastEntries, lastBytes uint64
}

func (s *sweepState) decode(b []byte) bool {
	if len(b) != sweepSize || b[0] != sweepVersion {
		return false
	}
	*s = sweepState{
		sets:        binary.BigEndian.Uint32(b[1:]),
		position:    binary.BigEndian.Uint32(b[5:]),
		entries:     binary.BigEndian.Uint64(b[9:]),
		bytes:       binary.BigEndian.Uint64(b[17:]),
		lastEntries: binary.BigEndian.Uint64(b[25:]),
		lastBytes:   binary.BigEndian.Uint64(b[33:]),
	}
	return s.position < s.sets
}

func (s *sweepState) append(dst []byte) []byte {
	dst = append(dst, sweepVersion)
	dst = binary.BigEndian.AppendUint32(dst, s.sets)
	dst = binary.BigEndian.AppendUint32(dst, s.position)
	dst = binary.BigEndian.AppendUint64(dst, s.entries)
	dst = binary.BigEndian.AppendUint64(dst, s.bytes)
	dst = binary.BigEndian.AppendUint64(dst, s.lastEntries)
	return binary.BigEndian.AppendUint64(dst, s.lastBytes)
}

// Sweep looks at up to n sets from where the last sweep of any VM ended, drops
// what has expired and clears the values that it leaves. wake are the waiters
// of expired pending entries.
//
// VMs that sweep at the same moment look at the same sets; the one that is
// later to write the position down throws its counts away, so the totals are
// those of one VM's look at every set.
func (t *Table) Sweep(n int, now int64) (wake []uint32) {
	t.wake = t.wake[:0]
	if !t.sem.Usable || n <= 0 {
		return nil
	}
	total := uint32(t.Sets())
	var s sweepState
	value, cas, st := t.sd.Get(t.sweepKey())
	if st == Failed {
		return nil
	}
	exists := st == OK
	if !exists || !s.decode(value) || s.sets != total {
		// The first sweep, or the table was sized differently: begin anew.
		s = sweepState{sets: total}
	}
	for ; n > 0 && s.position < total; n-- {
		a, set := 0, int(s.position)
		for set >= t.areas[a].sets {
			set -= t.areas[a].sets
			a++
		}
		entries, bytes := t.sweepSet(a, set, now)
		s.bytes += bytes
		if a == 0 {
			s.entries += entries
		}
		s.position++
	}
	if s.position == total {
		s.lastEntries, s.lastBytes = s.entries, s.bytes
		s.position, s.entries, s.bytes = 0, 0, 0
	}
	t.stats.Entries, t.stats.Bytes = int64(s.lastEntries), int64(s.lastBytes)
	if !exists {
		var ok bool
		if cas, ok = t.createCAS(); !ok {
			return t.wake
		}
	} else if cas == 0 && t.sem.ZeroOverwrites {
		return t.wake
	}
	t.buf = s.append(t.buf[:0])
	if t.sd.Set(t.sweepKey(), t.buf, cas) == CASMismatch {
		t.stats.Retries++
	}
	return t.wake
}

// Sets returns how many sets a whole sweep looks at: the buckets, and the sets of
// the areas for larger answers.
func (t *Table) Sets() int {
	n := 0
	for a := 0; a < t.n; a++ {
		n += t.areas[a].sets
	}
	return n
}

// sweepSet drops what has expired in one set and returns what is left.
func (t *Table) sweepSet(a, set int, now int64) (entries, bytes uint64) {
	value, cas, st := t.sd.Get(t.recordKey(a, set))
	if st != OK {
		return 0, 0
	}
	if entries, bytes, clean := t.inspect(value, now); clean {
		return entries, bytes
	}
	if !t.accept(a, value, cas, st) {
		return 0, 0
	}
	before := len(t.wake)
	changed := false
	for slot := range t.rec.ways {
		w := &t.rec.ways[slot]
		abandoned := false
		if w.state != api.StateNone && !w.live(now) {
			abandoned = w.state == api.StatePending
			t.wake = t.rec.takeWaiters(slot, t.wake)
			w.clear()
			changed = true
		}
		if w.held > 0 && !w.ownBody() || abandoned {
			w.held = 0
			t.freed[slot] = true
			changed = true
		}
		if w.state != api.StateNone {
			entries++
		}
		bytes += uint64(w.held)
	}
	if !changed {
		return entries, bytes
	}
	if t.store(a, set) != OK {
		// Somebody is at work in it; the next round will do.
		t.wake = t.wake[:before]
		return entries, bytes
	}
	return entries, bytes
}

// inspect looks through a record in place, since there is nothing to sweep in most.
// clean is false when there may be.
func (t *Table) inspect(value []byte, now int64) (entries, bytes uint64, clean bool) {
	if !framed(value) {
		return 0, 0, false
	}
	w := &t.hit
	for b := value[headerSize:][:int(value[3])*waySize]; len(b) > 0; b = b[waySize:] {
		if _, ok := readWay(b, w); !ok || !w.live(now) || w.held > 0 && !w.ownBody() {
			return 0, 0, false
		}
		entries++
		bytes += uint64(w.held)
	}
	return entries, bytes, true
}
