package cache

import "encoding/binary"

// The sweep's state, shared by all VMs:
//
//	sweep := version(1) buckets(4) position(4) entries(8) bytes(8)
//	         last entries(8) last bytes(8)
//
// buckets is the number of all buckets. position is the next one to look at.
// entries and bytes are the counts of this round so far.
const (
	sweepVersion = 1
	sweepSize    = 1 + 4 + 4 + 4*8
)

type sweepState struct {
	buckets, position      uint32
	entries, bytes         uint64
	lastEntries, lastBytes uint64
}

func (s *sweepState) decode(b []byte) bool {
	if len(b) != sweepSize || b[0] != sweepVersion {
		return false
	}
	*s = sweepState{
		buckets:     binary.BigEndian.Uint32(b[1:]),
		position:    binary.BigEndian.Uint32(b[5:]),
		entries:     binary.BigEndian.Uint64(b[9:]),
		bytes:       binary.BigEndian.Uint64(b[17:]),
		lastEntries: binary.BigEndian.Uint64(b[25:]),
		lastBytes:   binary.BigEndian.Uint64(b[33:]),
	}
	return s.position < s.buckets
}

func (s *sweepState) append(dst []byte) []byte {
	dst = append(dst, sweepVersion)
	dst = binary.BigEndian.AppendUint32(dst, s.buckets)
	dst = binary.BigEndian.AppendUint32(dst, s.position)
	dst = binary.BigEndian.AppendUint64(dst, s.entries)
	dst = binary.BigEndian.AppendUint64(dst, s.bytes)
	dst = binary.BigEndian.AppendUint64(dst, s.lastEntries)
	return binary.BigEndian.AppendUint64(dst, s.lastBytes)
}

// sweepRun is how many buckets the sweep looks at before it stores their region's
// record. In a longer run another VM would mostly have changed that record meanwhile.
const sweepRun = 32

// Sweep looks at up to n buckets, from where the last sweep of any VM ended. It
// removes expired entries, clears their values, and gives the bytes back to the
// region. wake are the waiters of expired pending entries.
//
// VMs that sweep at the same time look at the same buckets. The VM that stores the
// position later drops its counts, so each bucket counts once in the totals.
func (t *Table) Sweep(n int, now int64) (wake []uint32) {
	t.wake = t.wake[:0]
	if !t.sem.Usable || n <= 0 {
		return nil
	}
	total := uint32(t.buckets)
	var s sweepState
	value, cas, st := t.sd.Get(t.sweepKey(), nil)
	if st == Failed {
		return nil
	}
	exists := st == OK
	if !exists || !s.decode(value) || s.buckets != total {
		// This is the first sweep, or the table had another size: start from the beginning.
		s = sweepState{buckets: total}
	}
	for n > 0 && s.position < total {
		first := int(s.position)
		region := first / t.span
		end := min(first+min(n, sweepRun), (region+1)*t.span, t.buckets)
		if !t.sweepBuckets(region, first, end, now, &s) {
			return t.wake
		}
		n -= end - first
		s.position = uint32(end)
	}
	if s.position == total {
		s.lastEntries, s.lastBytes = s.entries, s.bytes
		s.position, s.entries, s.bytes = 0, 0, 0
	}
	t.stats.Entries, t.stats.Bytes = int64(s.lastEntries), int64(s.lastBytes)
	if exists && cas == 0 && t.sem.ZeroOverwrites {
		return t.wake
	}
	if cas, ok := t.number(cas, exists); ok {
		t.buf = s.append(t.buf[:0])
		t.compareAndSet(t.sweepKey(), t.buf, cas)
	}
	return t.wake
}

// Buckets returns how many buckets a whole sweep looks at.
func (t *Table) Buckets() int { return t.buckets }

// sweepBuckets sweeps some buckets of one region. False: the host failed.
func (t *Table) sweepBuckets(region, first, end int, now int64, s *sweepState) bool {
	g, ok := t.loadRegion(region)
	if !ok {
		return false
	}
	g.recount()
	for bucket := first; bucket < end; bucket++ {
		value, _, st := t.get(bucket)
		entries, bytes, clean := t.inspect(value, st, g.share(bucket%t.span), now)
		if !clean {
			c := t.cleanBucket(g, bucket, now, true)
			entries, bytes = c.entries, c.bytes
		}
		s.entries += entries
		s.bytes += bytes
	}
	// If another VM was faster, the next round corrects the region.
	t.storeRegion(g)
	return true
}

// inspect looks through a record in place, which is enough for most records. clean
// is false if there may be something to sweep.
func (t *Table) inspect(value []byte, st Status, share int, now int64) (entries, bytes uint64, clean bool) {
	if st != OK {
		return 0, 0, st == NotFound && share == 0
	}
	if !framed(value) {
		return 0, 0, false
	}
	w, held := &t.hit, 0
	for b := value[headerSize:][:int(value[3])*waySize]; len(b) > 0; b = b[waySize:] {
		if _, ok := readWay(b, w); !ok || !w.live(now) || w.hasUnneededBytes() {
			return 0, 0, false
		}
		entries++
		held += int(w.valueBytes)
		if w.body {
			bytes += uint64(w.valueBytes)
		}
	}
	return entries, bytes, t.units(held) == share
}
