package cache

import (
	"encoding/binary"
	"strconv"
	"time"
	"unsafe"
)

const (
	minBytes = 64 << 10
	// bucketOverhead is the bytes that a bucket takes besides its answers: its
	// record, its share in its region's record, and one byte for each cleared value.
	bucketOverhead = maxRecord + shareSize + Ways
	// fixedBytes is room for the sweep's state, the scratch value and the list of VMs.
	fixedBytes = 128 + 1 + maxAlive*aliveSize

	// A region has room for several of the largest answers, because it cannot use
	// room that is smaller than one. It has only as many buckets as that needs,
	// because every answer that takes room rewrites the region's record.
	regionAnswers = 12
	regionBuckets = 1024
	// A region's bytes are counted in units, which are small compared to the bytes of
	// a bucket.
	minUnit  = 64
	maxUnits = 1<<16 - 1

	defaultEntries     = 100000
	defaultBytes       = 64 << 20
	defaultResultBytes = 576 << 10
	defaultTouch       = int64(time.Second)
)

// layout holds the sizes of the table's parts.
type layout struct {
	buckets int
	regions int
	span    int // buckets in a region
	unit    int // bytes
	budget  int // units of a region's answers
	largest int // bytes of the largest value
}

// newLayout sizes the table so that all records and values together stay within
// maxBytes.
func newLayout(maxEntries, maxBytes, maxResult int) layout {
	l := layout{buckets: max(maxEntries/Ways, 1)}
	l.buckets = max(min(l.buckets, maxBytes/2/bucketOverhead), 1)
	rest := maxBytes - l.buckets*bucketOverhead - fixedBytes
	l.regions = max(min(l.buckets/regionBuckets, rest/(regionAnswers*(maxResult+valueHeader))), 1)
	l.span = (l.buckets + l.regions - 1) / l.regions
	l.regions = (l.buckets + l.span - 1) / l.span
	bytes := (rest - l.regions*regionHeader) / l.regions
	for l.unit = minUnit; bytes/l.unit > maxUnits; l.unit *= 2 {
	}
	l.budget = bytes / l.unit
	l.largest = min(maxResult+valueHeader, l.budget*l.unit)
	return l
}

// units returns how many units the bytes take.
func (l *layout) units(bytes int) int { return (bytes + l.unit - 1) / l.unit }

// bucket returns the bucket of an entry.
func (l *layout) bucket(h *Hash) int {
	return int(binary.BigEndian.Uint64(h[:8]) % uint64(l.buckets))
}

// recordKey returns the key of a bucket's record. Every key is valid only until the
// next one is made.
func (t *Table) recordKey(bucket int) string {
	b := append(append(t.key[:0], t.prefix...), ".0."...)
	return t.keyString(strconv.AppendInt(b, int64(bucket), 10))
}

// valueKey returns the key of the value of a way.
func (t *Table) valueKey(bucket, slot int) string {
	b := append(append(t.key[:0], t.prefix...), ".0."...)
	b = strconv.AppendInt(b, int64(bucket), 10)
	return t.keyString(append(b, '.', byte('0'+slot)))
}

// regionKey returns the key of a region's record.
func (t *Table) regionKey(region int) string {
	b := append(append(t.key[:0], t.prefix...), ".r."...)
	return t.keyString(strconv.AppendInt(b, int64(region), 10))
}

func (t *Table) sweepKey() string {
	return t.keyString(append(append(t.key[:0], t.prefix...), ".s"...))
}

func (t *Table) aliveKey() string {
	return t.keyString(append(append(t.key[:0], t.prefix...), ".v"...))
}

func (t *Table) scratchKey() string {
	return t.keyString(append(append(t.key[:0], t.prefix...), scratchSuffix...))
}

// keyString returns the key buffer as a string without a copy, because SharedData
// does not keep keys.
func (t *Table) keyString(b []byte) string {
	t.key = b
	return unsafe.String(unsafe.SliceData(b), len(b))
}
