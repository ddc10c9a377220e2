package ship

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func packedRun(t *testing.T, memory []byte, bodies ...string) *packed {
	t.Helper()
	p := newPacker(memory)
	for _, b := range bodies {
		p.add([]byte(b))
	}
	last := uint64(len(bodies))
	points := make([]point, maxTimes)
	for i := range points { // the longest header that there is
		points[i] = point{1<<63 - 1, last}
	}
	return p.seal(header{Kind: kindRun, Log: strings.Repeat("0", 32), First: 1, Last: last, Segment: &segment{1, 1, 1 << 20}, Points: points})
}

// TestObjectKeepsItsRecords: an object has the records that were put into it, also in memory that was used before,
// and no byte of it can change unnoticed.
func TestObjectKeepsItsRecords(t *testing.T) {
	large := strings.Repeat("large", sumBytes)
	memory := packedRun(t, nil, strings.Repeat("x", 3*sumBytes)).memory
	for _, bodies := range [][]string{{"one"}, {"one", "", large, "two"}} {
		o := packedRun(t, memory, bodies...)
		h, records, err := decode(o.body)
		if err != nil || h.CRC64 != o.sum || o.sum == "" {
			t.Fatalf("sum %q, read %q: %v", o.sum, h.CRC64, err)
		}
		got, err := split(h, records)
		if err != nil || fmt.Sprintf("%s", got) != fmt.Sprint(bodies) {
			t.Errorf("%d records of %d: %v", len(got), len(bodies), err)
		}
		for _, at := range []int{0, 9, objectPrefix, len(o.body) - len(records), len(o.body) - 1} {
			damaged := bytes.Clone(o.body)
			damaged[at] ^= 4
			if _, _, err := decode(damaged); err == nil {
				t.Errorf("byte %d of %d changed unnoticed", at, len(o.body))
			}
		}
	}
}

// TestMemoryOfObjectsIsBounded: memory of objects is used again, and only so much of it is kept.
func TestMemoryOfObjectsIsBounded(t *testing.T) {
	var f buffers
	for range 3 * maxFree {
		f.put(make([]byte, 10))
	}
	f.put(make([]byte, 2*targetBytes+1))
	n := 0
	for f.get() != nil {
		n++
	}
	if n != maxFree {
		t.Errorf("%d are kept, %d may be", n, maxFree)
	}
}
