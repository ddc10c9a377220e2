package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

const (
	formatVersion = 1

	// Segment header: magic 8, version 4, crc 4, id 16, number 8, first 8,
	// capacity 8, zero 8.
	segmentHeaderSize = 64
	// Record header: length 4, crc 4, seq 8, ahead 4.
	recordHeaderSize = 20

	segmentSuffix  = ".wal"
	snapshotSuffix = ".snap"
	tempSuffix     = ".tmp"
	lockName       = "lock"
)

var (
	segmentMagic = [8]byte{'O', 'N', 'C', 'E', 'W', 'A', 'L', '\n'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	le           = binary.LittleEndian
)

// logID is drawn at random when a log is created, and every file of the log contains it. It seeds the checksums, so a
// mix of files from different logs is always noticed.
type logID [16]byte

func (id logID) seed() uint32 { return crc32.Checksum(id[:], castagnoli) }

// segmentHeader starts every segment that is in use. A segment that is only
// prepared has zeros there.
type segmentHeader struct {
	id       logID
	number   uint64 // the number in the file's name
	first    uint64 // sequence number of the first record
	capacity int64  // size of the file when it was created
}

func (h segmentHeader) append(dst []byte) []byte {
	return appendHeader(dst, segmentMagic, h.id, [3]uint64{h.number, h.first, uint64(h.capacity)})
}

// appendHeader encodes the header of a segment or snapshot, which have the same form and other fields.
func appendHeader(dst []byte, magic [8]byte, id logID, fields [3]uint64) []byte {
	start := len(dst)
	dst = append(dst, magic[:]...)
	dst = le.AppendUint32(dst, formatVersion)
	dst = le.AppendUint32(dst, 0)
	dst = append(dst, id[:]...)
	for _, f := range fields {
		dst = le.AppendUint64(dst, f)
	}
	dst = le.AppendUint64(dst, 0)
	le.PutUint32(dst[start+12:], headerCRC(dst[start:]))
	return dst
}

// headerCRC is the checksum of the 64-byte header of a segment or snapshot. Its offset and extent are the same in every
// format version, so a file of another version is not taken for a damaged one.
func headerCRC(b []byte) uint32 {
	c := crc32.Checksum(b[:12], castagnoli)
	return crc32.Update(c, castagnoli, b[16:segmentHeaderSize])
}

// errVersion is completed with the version that was found.
var errVersion = fmt.Errorf("this program reads format version %d, the file has version", formatVersion)

// parseHeader is the inverse of appendHeader. The error says what is wrong with b as the header of what.
func parseHeader(b []byte, magic [8]byte, what string) (id logID, fields [3]uint64, err error) {
	if len(b) < segmentHeaderSize {
		return id, fields, fmt.Errorf("%d bytes are too few for a %s header of %d", len(b), what, segmentHeaderSize)
	}
	b = b[:segmentHeaderSize]
	if !bytes.Equal(b[:8], magic[:]) {
		return id, fields, fmt.Errorf("no %s header: magic is %x", what, b[:8])
	}
	if got, want := le.Uint32(b[12:]), headerCRC(b); got != want {
		return id, fields, fmt.Errorf("%s header checksum is %08x, computed %08x", what, got, want)
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return id, fields, fmt.Errorf("%w %d", errVersion, v)
	}
	for i := range fields {
		fields[i] = le.Uint64(b[32+8*i:])
	}
	return logID(b[16:32]), fields, nil
}

// parseSegmentHeader returns an error that says what is wrong with b as a segment header.
func parseSegmentHeader(b []byte) (segmentHeader, error) {
	id, fields, err := parseHeader(b, segmentMagic, "segment")
	if err != nil {
		return segmentHeader{}, err
	}
	number, first, capacity := fields[0], fields[1], fields[2]
	if first == 0 || capacity < minSegmentBytes || capacity > maxSegmentBytes {
		return segmentHeader{}, fmt.Errorf("segment header has first sequence %d and capacity %d", first, capacity)
	}
	return segmentHeader{id, number, first, int64(capacity)}, nil
}

// record is a parsed record or mark.
type record struct {
	seq   uint64
	ahead uint32
	body  []byte // nil for a mark
}

// durableBefore is a sequence number: all records before it were synced before this one was written.
func (r record) durableBefore() uint64 { return r.seq - uint64(r.ahead) }

func (r record) isMark() bool { return len(r.body) == 0 }

func (r record) size() int { return recordHeaderSize + len(r.body) }

// appendRecord encodes a record or, without a body, a mark. bodyCRC is bodyChecksum(seed, body). The checksum covers
// the body first, so that Append can compute this part outside its lock.
func appendRecord(dst []byte, bodyCRC uint32, seq uint64, ahead uint32, body []byte) []byte {
	n := len(dst)
	dst = append(dst, emptyRecordHeader[:]...)
	h := dst[n:]
	le.PutUint32(h[0:], uint32(len(body)))
	le.PutUint64(h[8:], seq)
	le.PutUint32(h[16:], ahead)
	le.PutUint32(h[4:], headerChecksum(bodyCRC, h))
	return append(dst, body...)
}

var emptyRecordHeader [recordHeaderSize]byte

func bodyChecksum(seed uint32, body []byte) uint32 {
	return crc32.Update(seed, castagnoli, body)
}

// headerChecksum continues bodyCRC over length, seq and ahead.
func headerChecksum(bodyCRC uint32, h []byte) uint32 {
	c := crc32.Update(bodyCRC, castagnoli, h[0:4])
	return crc32.Update(c, castagnoli, h[8:recordHeaderSize])
}

// parseRecord reads the record or mark at the start of b. The body aliases b. The error says what is wrong.
func parseRecord(b []byte, seed uint32) (record, error) {
	if len(b) < recordHeaderSize {
		return record{}, fmt.Errorf("%d bytes are too few for a record header of %d", len(b), recordHeaderSize)
	}
	length := le.Uint32(b)
	if int64(length) > int64(len(b)-recordHeaderSize) {
		return record{}, fmt.Errorf("record length is %d, the segment has %d bytes left", length, len(b)-recordHeaderSize)
	}
	body := b[recordHeaderSize : recordHeaderSize+int(length)]
	if got, want := le.Uint32(b[4:]), headerChecksum(bodyChecksum(seed, body), b); got != want {
		return record{}, fmt.Errorf("record checksum is %08x, computed %08x", got, want)
	}
	r := record{seq: le.Uint64(b[8:]), ahead: le.Uint32(b[16:]), body: body}
	if r.seq == 0 || uint64(r.ahead) >= r.seq {
		return record{}, fmt.Errorf("record has sequence number %d and %d records ahead of it", r.seq, r.ahead)
	}
	return r, nil
}

// Names are zero-padded, so that they sort in the order of their numbers.
func segmentName(number uint64) string { return fmt.Sprintf("%020d%s", number, segmentSuffix) }
func snapshotName(seq uint64) string   { return fmt.Sprintf("%020d%s", seq, snapshotSuffix) }

// parseName is the inverse of segmentName and snapshotName.
func parseName(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}
