package wal

import (
	"bytes"
	"fmt"
)

// scanEnd is where a walk over the records of a segment stopped.
type scanEnd struct {
	off     int64  // offset of the first place without the expected record
	next    uint64 // sequence number expected there
	batch   int64  // offset at which the last batch begins in this segment
	records int
	marked  bool  // there is a mark
	why     error // what is wrong there; nil at a mark, and where all is zero
}

// scanRecords walks the records in b, a whole segment file, from off on. The
// first one must have sequence number first. An error of fn ends the walk and
// is returned.
func scanRecords(b []byte, off int64, first uint64, seed uint32, fn func(off int64, r record) error) (scanEnd, error) {
	end := scanEnd{off: off, next: first, batch: off}
	for end.off < int64(len(b)) {
		r, err := parseRecord(b[end.off:], seed)
		if err == nil && r.seq != end.next {
			err = fmt.Errorf("sequence number is %d", r.seq)
		}
		if err != nil {
			if !blankHeader(b[end.off:]) {
				end.why = err
			}
			return end, nil
		}
		if r.isMark() {
			end.marked = true
			return end, nil
		}
		if r.ahead == 0 {
			end.batch = end.off
		}
		if fn != nil {
			if err := fn(end.off, r); err != nil {
				return end, err
			}
		}
		end.off += int64(r.size())
		end.next++
		end.records++
	}
	return end, nil
}

// blankHeader tells whether b starts with a record header of zeros, or is too
// short for one and all zeros.
func blankHeader(b []byte) bool {
	return usedLength(b[:min(len(b), recordHeaderSize)]) == 0
}

// findRecord looks, at every offset of b from off on, for a valid record or
// mark that accept likes. Only sequence numbers from seq up to the largest
// that can follow in b are considered, which makes checksums of random bytes
// rare.
func findRecord(b []byte, off int64, seq uint64, seed uint32, accept func(record) bool) (int64, record, bool) {
	limit := seq + uint64(len(b))/recordHeaderSize + 1
	for ; off+recordHeaderSize <= int64(len(b)); off++ {
		if s := le.Uint64(b[off+8:]); s < seq || s > limit {
			continue
		}
		if r, err := parseRecord(b[off:], seed); err == nil && accept(r) {
			return off, r, true
		}
	}
	return 0, record{}, false
}

// findProof looks behind off for a record or mark which proves that the record
// seq, which should be at off, had been synced.
func findProof(b []byte, off int64, seq uint64, seed uint32) (int64, record, bool) {
	return findRecord(b, off+1, seq, seed, func(r record) bool { return r.durableBefore() > seq })
}

// trim cuts the zeros off that follow the last record or mark, whose own last
// bytes may be zeros as well. It is empty when all of b is zero.
func trim(b []byte) []byte {
	used := usedLength(b)
	if used == 0 {
		return nil
	}
	return b[:min(int64(len(b)), used+recordHeaderSize)]
}

// usedLength is the length of b without trailing zeros.
func usedLength(b []byte) int64 {
	n := len(b)
	const step = 4 << 10
	for n >= step && bytes.Equal(b[n-step:n], zeros[:step]) {
		n -= step
	}
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return int64(n)
}
