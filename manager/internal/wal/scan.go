package wal

import (
	"bytes"
	"fmt"
)

// scanEnd says where a scan of a segment's records stopped.
type scanEnd struct {
	off    int64  // first offset without the expected record
	next   uint64 // sequence number expected there
	batch  int64  // offset at which the last batch begins in this segment
	marked bool   // there is a mark
	why    error  // what is wrong there; nil at a mark, and where all is zero
}

// scanRecords calls fn for the records in b, a whole segment file, from offset off on. The first record must have
// sequence number first. An error of fn stops the scan and is returned.
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
		if err := fn(end.off, r); err != nil {
			return end, err
		}
		end.off += int64(r.size())
		end.next++
	}
	return end, nil
}

// blankHeader reports whether b starts with a record header of zeros, or is shorter than a header and all zeros.
func blankHeader(b []byte) bool {
	return usedLength(b[:min(len(b), recordHeaderSize)]) == 0
}

// findRecord searches b at every offset from off on for a valid record or mark that accept returns true for. It
// considers only sequence numbers from seq up to the largest one that b has room for, so random bytes rarely reach the
// checksum.
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

// findProof searches after off for a record or mark that proves that record seq, expected at off, was synced.
func findProof(b []byte, off int64, seq uint64, seed uint32) (int64, record, bool) {
	return findRecord(b, off+1, seq, seed, func(r record) bool { return r.durableBefore() > seq })
}

// trim removes the zeros after the last record or mark. It keeps up to recordHeaderSize of them, because the last bytes
// of the record or mark may be zeros. The result is empty when all of b is zero.
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
