package cache

import (
	"encoding/binary"
	"math"
)

// A region is a run of buckets that share their bytes. Its record:
//
//	region := 'o' 'r' version typical(4) used(4) cursor(4) share(2)*
//
// share is each bucket's part of the region's bytes, in units; used is the sum of
// the shares. typical is about the size of the larger recent answers: so many bytes
// are set aside for an answer that must be kept. cursor is the bucket that was looked
// at last when answers had to leave.
//
// No bucket's record accounts for more than its share. An operation that needs more
// first raises the share, then changes the record. To lower a share, it changes the
// record first. An operation that has raised the share and not changed its bucket
// yet must not lose the share in between. So a share shrinks in this order: read the
// region, read the bucket, store the bucket (even if nothing changes in it), store
// the region. The third step fails the store of any operation that read the bucket
// before. The fourth step fails if an operation that read the bucket later has
// raised a share.
//
// An answer is written before its record says so. While one may be on its way, the
// share keeps the bytes that it has beyond the record. A VM that dies in between
// leaves a share that is too large; the sweep corrects it when the reservation is
// over.
const (
	regionVersion = 1
	regionHeader  = 3 + 4 + 4 + 4
	shareSize     = 2

	// samples is how many buckets are compared before answers of one of them leave.
	// With three, the entry used longest ago among them comes close to the region's.
	samples = 3
	// maxLooks bounds the buckets that are looked at to make room for one answer,
	// maxFruitless those of them that have nothing to give.
	maxLooks     = 256
	maxFruitless = 16
)

type region struct {
	n      int
	data   []byte
	cas    uint32
	exists bool
	dirty  bool
}

func (g *region) get(at int) int { return int(binary.BigEndian.Uint32(g.data[at:])) }
func (g *region) put(at, n int) {
	binary.BigEndian.PutUint32(g.data[at:], uint32(n))
	g.dirty = true
}

func (g *region) typical() int     { return g.get(3) }
func (g *region) setTypical(n int) { g.put(3, n) }
func (g *region) used() int        { return g.get(7) }

func (g *region) share(i int) int {
	return int(binary.BigEndian.Uint16(g.data[regionHeader+shareSize*i:]))
}

func (g *region) setShare(i, units int) {
	units = min(units, maxUnits)
	g.put(7, g.used()+units-g.share(i))
	binary.BigEndian.PutUint16(g.data[regionHeader+shareSize*i:], uint16(units))
}

// next moves the cursor to the next bucket with a share of at least least units, and
// returns it. -1: there is none.
func (g *region) next(least int) int {
	n := (len(g.data) - regionHeader) / shareSize
	i := g.get(11)
	for range n {
		if i++; i >= n {
			i = 0
		}
		if g.share(i) >= least {
			g.put(11, i)
			return i
		}
	}
	return -1
}

// loadRegion reads a region's record. A value that is not such a record counts as
// empty; the sweep finds out what the buckets hold.
func (t *Table) loadRegion(n int) (*region, bool) {
	g := &t.region
	size := regionHeader + shareSize*t.span
	if t.regionRoom == nil {
		t.regionRoom = make([]byte, size)
	}
	value, cas, st := t.sd.Get(t.regionKey(n), t.regionRoom)
	*g = region{n: n, data: value, cas: cas, exists: st == OK}
	if st == Failed || st == OK && cas == 0 && t.sem.ZeroOverwrites {
		return g, false
	}
	if len(value) != size || string(value[:3]) != "or\x01" {
		if t.blank == nil {
			t.blank = make([]byte, size)
		}
		clear(t.blank)
		copy(t.blank, "or\x01")
		g.data = t.blank
	}
	return g, true
}

func (t *Table) storeRegion(g *region) Status {
	if !g.dirty {
		return OK
	}
	cas, ok := t.number(g.cas, g.exists)
	if !ok {
		return Failed
	}
	return t.compareAndSet(t.regionKey(g.n), g.data, cas)
}

// claim is the result of a claim for bytes.
type claim uint8

const (
	claimed claim = iota
	refused       // there is no room, and none can be made
	changed       // the bucket itself was changed: read it again
)

// claim raises the share of v's bucket so that the value of slot may hold size
// bytes; with size -1, an answer of typical size. It returns those bytes in held. To
// make room it evicts answers of the region's other entries.
func (t *Table) claim(v *view, slot, size int, now int64) (c claim, held int) {
	for try := 0; try < maxTries; try++ {
		g, ok := t.loadRegion(v.bucket / t.span)
		if !ok {
			return refused, 0
		}
		if held = size; held < 0 {
			held = max(g.typical(), int(v.rec.ways[slot].valueBytes))
		}
		units := t.units(v.rec.valueBytes(slot) + held)
		if units <= v.units {
			return claimed, held
		}
		i := v.bucket % t.span
		units = max(units, g.share(i))
		if over := g.used() + units - g.share(i) - t.budget; over > 0 {
			left, own := t.collect(g, v.bucket, over, now)
			if left > 0 || own {
				t.storeRegion(g)
				if left > 0 {
					return refused, 0
				}
				return changed, 0
			}
		}
		g.setShare(i, units)
		g.setTypical(max(g.typical(), size))
		switch t.storeRegion(g) {
		case OK:
			return claimed, held
		case CASMismatch:
			continue
		}
		break
	}
	return refused, 0
}

// recount corrects the sum of the shares.
func (g *region) recount() {
	sum := 0
	for i := range (len(g.data) - regionHeader) / shareSize {
		sum += g.share(i)
	}
	if sum != g.used() {
		g.put(7, sum)
	}
}

// shrink takes from a bucket's share the units for which its record no longer
// accounts. The record must have been stored since g was read.
func (t *Table) shrink(g *region, v *view) {
	i := v.bucket % t.span
	g.setShare(i, max(g.share(i)-max(v.units-t.units(v.rec.valueBytes(-1)), 0), 0))
}

// giveBack returns the bytes that were set aside for an answer and are not needed.
func (t *Table) giveBack(g *region, v *view, size int) {
	t.shrink(g, v)
	if typical := g.typical(); size < typical {
		g.setTypical(typical - (typical-size+7)/8)
	}
	t.storeRegion(g)
}

// collect frees over units in a region. It clears values without an owner and
// expired entries first, then evicts by last use. It returns how many units are
// still missing, and whether it has changed the bucket own.
func (t *Table) collect(g *region, own, over int, now int64) (left int, touched bool) {
	first := g.n * t.span
	// For a large answer, look only at buckets with much to give.
	least := max(over/samples/4, 1)
	fruitless := 0
	for looks := 0; over > 0 && looks < maxLooks && fruitless < maxFruitless; {
		best, oldest, second := -1, int64(math.MaxInt64), int64(math.MaxInt64)
		n := 0
		for ; n < samples && over > 0; n++ {
			i := g.next(least)
			if i < 0 {
				break
			}
			before := g.share(i)
			c := t.cleanBucket(g, first+i, now, false)
			over -= before - g.share(i)
			touched = touched || c.stored && first+i == own
			switch {
			case i == best:
			case c.oldest < oldest:
				best, oldest, second = i, c.oldest, oldest
			default:
				second = min(second, c.oldest)
			}
		}
		looks += n
		if over <= 0 {
			break
		}
		if best < 0 {
			if n < samples && least == 1 {
				break
			}
			fruitless += n
			least = 1
			continue
		}
		before := g.share(best)
		if t.evict(g, first+best, over, second, now) {
			over -= before - g.share(best)
			touched = touched || first+best == own
		}
	}
	return over, touched
}

// evict removes entries of a bucket, the one used longest ago first, until it has
// freed units. It keeps entries whose last use is later than until.
func (t *Table) evict(g *region, bucket, units int, until, now int64) bool {
	v := &t.other
	if !t.load(v, bucket) {
		return false
	}
	for v.units-t.units(v.rec.valueBytes(-1)) < units {
		slot := v.rec.oldest(now)
		if slot < 0 || v.rec.ways[slot].lastUse > until {
			break
		}
		t.stats.Evictions++
		t.erase(v, slot)
	}
	if t.store(v) != OK {
		return false
	}
	t.shrink(g, v)
	return true
}

// oldest returns the slot of the entry used longest ago whose answer may be evicted;
// -1: there is none.
func (r *record) oldest(now int64) int {
	found := -1
	for i := range r.ways {
		w := &r.ways[i]
		if w.body && !w.cacheOnly && w.live(now) && (found < 0 || w.lastUse < r.ways[found].lastUse) {
			found = i
		}
	}
	return found
}

// census is what cleanBucket found in a bucket.
type census struct {
	entries, bytes uint64
	oldest         int64 // last use of the entry that would be evicted first
	stored         bool
}

// cleanBucket removes expired entries from a bucket, clears values without an owner, and
// sets the bucket's share to what is left. Only the sweep ends pending entries,
// because only it can wake their waiters.
func (t *Table) cleanBucket(g *region, bucket int, now int64, sweep bool) (c census) {
	v := &t.other
	i := bucket % t.span
	// The first pass clears values of unknown owners. The second finds them gone.
	for range 2 {
		if !t.load(v, bucket) {
			return c
		}
		c = census{oldest: math.MaxInt64, stored: c.stored}
		before := len(t.wake)
		// The units that the share has beyond the record, and whether an answer needs them.
		spare, coming := g.share(i)-v.units, false
		change := v.freed[0]
		for slot := range v.rec.ways {
			w := &v.rec.ways[slot]
			if pending := w.pending(); w.over(now) && (sweep || !pending) {
				if sweep {
					t.wake = v.rec.takeWaiters(slot, t.wake)
				}
				t.erase(v, slot)
				// A dead owner may have left an answer.
				v.freed[slot], change = pending, true
			}
			if w.hasUnneededBytes() {
				v.freed[slot], change = true, true
			}
			if w.exists() {
				c.entries++
				coming = coming || !w.body && (w.pending() || !w.cacheOnly)
			}
			if w.body {
				c.bytes += uint64(w.valueBytes)
			}
		}
		if slot := v.rec.oldest(now); slot >= 0 {
			c.oldest = v.rec.ways[slot].lastUse
		}
		if !coming || spare < 0 {
			change = change || spare != 0
			spare = 0
		}
		if !change {
			return c
		}
		if t.store(v) != OK {
			// Another operation changed the bucket; a later pass will clean it.
			t.wake = t.wake[:before]
			return c
		}
		c.stored = true
		g.setShare(i, t.units(v.rec.valueBytes(-1))+spare)
		if v.freed == [Ways]bool{} {
			return c
		}
	}
	return c
}
