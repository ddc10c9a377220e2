package ship

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
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
		if err != nil || h.sum() != o.sum || o.sum == "" {
			t.Fatalf("sum %q, read %q: %v", o.sum, h.sum(), err)
		}
		var got []string
		if err := each(h, records, func(_ uint64, body []byte) error {
			got = append(got, string(body))
			return nil
		}); err != nil || fmt.Sprint(got) != fmt.Sprint(bodies) {
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

// TestObjectsWithSHA256AreRead: earlier versions put a SHA-256 of the records into the header.
func TestObjectsWithSHA256AreRead(t *testing.T) {
	records := []byte("\x03one\x03two")
	object := func(sum string) []byte {
		head, err := json.Marshal(map[string]any{"kind": "run", "log": "l", "first": 1, "last": 2, "sha256": sum,
			"segment": segment{1, 1, 1 << 20}, "points": []point{{1, 2}}})
		if err != nil {
			t.Fatal(err)
		}
		b := binary.LittleEndian.AppendUint32([]byte(objectMagic), uint32(len(head)))
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(head, castagnoli))
		return append(append(b, head...), records...)
	}
	right := fmt.Sprintf("%x", sha256.Sum256(records))
	if h, got, err := decode(object(right)); err != nil || h.sum() != right || !bytes.Equal(got, records) {
		t.Errorf("sum %q, records %q: %v", h.sum(), got, err)
	}
	for _, wrong := range []string{"", strings.Repeat("0", 64)} {
		if _, _, err := decode(object(wrong)); err == nil {
			t.Errorf("the sum %q was taken", wrong)
		}
	}
}

// TestMemoryOfObjectsIsBounded: memory of objects is used again, and only so much of it is kept.
func TestMemoryOfObjectsIsBounded(t *testing.T) {
	var f buffers
	for range 3 * shipAtOnce {
		f.put(make([]byte, 10))
	}
	f.put(make([]byte, 2*targetBytes+1))
	n := 0
	for f.get() != nil {
		n++
	}
	if n != shipAtOnce {
		t.Errorf("%d are kept, %d may be", n, shipAtOnce)
	}
}
