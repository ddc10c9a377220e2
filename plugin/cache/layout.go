package cache

import (
	"encoding/binary"
	"time"
	"unsafe"
)

const (
	// maxAreas bounds the areas: each has sets sixteen times larger than the
	// one before, and the first has sets of some hundred bytes.
	maxAreas   = 8
	areaGrowth = 16

	minBytes = 64 << 10
	// setOverhead is what a set takes beside its answers: its record, and one
	// octet for every cleared value.
	setOverhead = maxRecord + Ways
	// fixedBytes is room for the scratch value, the sweep's state and the list of VMs.
	fixedBytes = 128 + 1 + maxAlive*aliveSize

	defaultEntries     = 100000
	defaultBytes       = 64 << 20
	defaultResultBytes = 576 << 10
	defaultTouch       = int64(time.Second)
)

// area is a part of the table: sets of Ways ways, each set with a budget for
// the values of its ways.
type area struct {
	sets   int
	budget int
}

// layout sizes the areas so that all records and values together stay within
// maxBytes. Area 0 has the buckets.
func layout(maxEntries, maxBytes, maxResult int) (areas [maxAreas]area, n int) {
	buckets := max(maxEntries/Ways, 1)
	buckets = max(min(buckets, maxBytes/2/setOverhead), 1)
	rest := maxBytes - buckets*setOverhead - fixedBytes
	largest := maxResult + valueHeader
	if rest/buckets >= largest {
		areas[0] = area{buckets, rest / buckets}
		return areas, 1
	}
	half := rest / 2
	areas[0] = area{buckets, half / buckets}
	n = 1
	for b := areas[0].budget; b < largest && n < maxAreas; n++ {
		b = min(b*areaGrowth, largest)
		areas[n].budget = b
	}
	share := half / (n - 1)
	kept := 1
	for i := 1; i < n; i++ {
		budget := min(areas[i].budget, share-setOverhead)
		if budget <= areas[kept-1].budget {
			continue
		}
		areas[kept] = area{share / (budget + setOverhead), budget}
		kept++
	}
	for i := kept; i < maxAreas; i++ {
		areas[i] = area{}
	}
	return areas, kept
}

// set returns the set of an entry in an area. The bits that select the bucket
// are not those that select the sets of the other areas.
func (t *Table) set(a int, h *Hash) int {
	bits := h[:8]
	if a > 0 {
		bits = h[8:]
	}
	return int(binary.BigEndian.Uint64(bits) % uint64(t.areas[a].sets))
}

// recordKey returns the key of a set's record; like all keys it is valid until
// the next one is made.
func (t *Table) recordKey(a, set int) string {
	b := append(t.key[:0], t.prefix...)
	b = append(b, '.', byte('0'+a), '.')
	return t.keep(appendDecimal(b, set))
}

// valueKey returns the key of the value of a way.
func (t *Table) valueKey(a, set, slot int) string {
	b := append(t.key[:0], t.prefix...)
	b = append(b, '.', byte('0'+a), '.')
	b = appendDecimal(b, set)
	return t.keep(append(b, '.', byte('0'+slot)))
}

func (t *Table) sweepKey() string { return t.keep(append(append(t.key[:0], t.prefix...), ".s"...)) }

func (t *Table) aliveKey() string { return t.keep(append(append(t.key[:0], t.prefix...), ".v"...)) }

func (t *Table) scratchKey() string {
	return t.keep(append(append(t.key[:0], t.prefix...), scratchSuffix...))
}

// keep makes a string of the key buffer without a copy; SharedData promises
// not to hold on to keys.
func (t *Table) keep(b []byte) string {
	t.key = b
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func appendDecimal(dst []byte, n int) []byte {
	var buf [20]byte
	i := len(buf)
	for {
		i--
		buf[i] = byte('0' + n%10)
		n /= 10
		if n == 0 {
			return append(dst, buf[i:]...)
		}
	}
}
