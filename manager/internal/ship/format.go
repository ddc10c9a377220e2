package ship

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
)

// An object that holds records is
//
//	magic    8 bytes
//	length   uint32, of the header
//	crc      uint32, CRC-32C of the header
//	header   JSON, see header
//	records  each its length as a uvarint and its bytes
//
// little-endian. The header has the SHA-256 of the records.

const (
	objectMagic  = "ONCESHP\x01"
	objectPrefix = len(objectMagic) + 8
	// maxHeader bounds the header of an object that is read.
	maxHeader = 1 << 20
	// targetBytes is how large an object becomes unless one record is larger.
	targetBytes = 8 << 20
	// smallBytes is the size below which runs are merged.
	smallBytes = 1 << 20
	// maxTimes is how many points in time a run remembers at most.
	maxTimes = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kinds of objects.
const (
	kindRun      = "run"
	kindSnapshot = "snapshot"
)

// point says that whatever was durable at a time, in Unix milliseconds of the manager's clock,
// is among the records up to Sequence.
type point struct {
	Time     int64  `json:"t"`
	Sequence uint64 `json:"s"`
}

// segment is where records of a run were in the log.
type segment struct {
	Number   uint64 `json:"number"`
	First    uint64 `json:"first"`
	Capacity int64  `json:"capacity"`
}

// header tells what an object holds.
type header struct {
	Kind string `json:"kind"`
	Log  string `json:"log"`
	// First and Last are sequence numbers of a run, and running numbers of a
	// snapshot's records.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Segment and Points are of a run. Points are ascending.
	Segment *segment `json:"segment,omitempty"`
	Points  []point  `json:"points,omitempty"`
	// Snapshot is the sequence number that a snapshot covers.
	Snapshot uint64 `json:"snapshot,omitempty"`

	SHA256 string `json:"sha256"`
}

// appendBody adds a record to an object's.
func appendBody(dst, body []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}

// encode writes an object over dst, and returns it with the digest of its records, by which a manifest names its
// content.
func encode(dst []byte, h header, records []byte) (object []byte, digest string) {
	sum := sha256.Sum256(records)
	h.SHA256 = hex.EncodeToString(sum[:])
	head, err := json.Marshal(h)
	if err != nil {
		panic(err) // it has nothing that could fail
	}
	b := append(slices.Grow(dst[:0], objectPrefix+len(head)+len(records)), objectMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(head, castagnoli))
	b = append(b, head...)
	return append(b, records...), h.SHA256
}

// decode checks an object and returns what it holds.
func decode(b []byte) (h header, records []byte, err error) {
	if len(b) < objectPrefix || string(b[:len(objectMagic)]) != objectMagic {
		return h, nil, fmt.Errorf("no header of a shipped object in its %d bytes", len(b))
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n > maxHeader || int(n) > len(b)-objectPrefix {
		return h, nil, fmt.Errorf("header of %d bytes, the object has %d", n, len(b))
	}
	head, records := b[objectPrefix:objectPrefix+int(n)], b[objectPrefix+int(n):]
	if got, want := binary.LittleEndian.Uint32(b[12:]), crc32.Checksum(head, castagnoli); got != want {
		return h, nil, fmt.Errorf("header checksum is %08x, computed %08x", got, want)
	}
	if err := json.Unmarshal(head, &h); err != nil {
		return h, nil, fmt.Errorf("header: %w", err)
	}
	if sum := sha256.Sum256(records); h.SHA256 != hex.EncodeToString(sum[:]) {
		return h, nil, fmt.Errorf("SHA-256 of the records is %s, computed %x", h.SHA256, sum)
	}
	if h.Kind != kindRun && h.Kind != kindSnapshot {
		return h, nil, fmt.Errorf("kind %q", h.Kind)
	}
	if h.Kind == kindRun && (h.Segment == nil || h.First == 0 || h.First > h.Last || len(h.Points) == 0 || h.Points[len(h.Points)-1].Sequence != h.Last) {
		return h, nil, fmt.Errorf("header of a run from %d to %d without segment or times", h.First, h.Last)
	}
	return h, records, nil
}

// each calls fn for the records of an object, which must have as many as its header
// says.
func each(h header, records []byte, fn func(seq uint64, body []byte) error) error {
	for seq := h.First; seq <= h.Last; seq++ {
		n, k := binary.Uvarint(records)
		if k <= 0 || n > uint64(len(records)-k) {
			return fmt.Errorf("record %d is cut off", seq)
		}
		if err := fn(seq, records[k:k+int(n)]); err != nil {
			return err
		}
		records = records[k+int(n):]
	}
	if len(records) > 0 {
		return fmt.Errorf("%d bytes follow record %d", len(records), h.Last)
	}
	return nil
}

// thin leaves out points when there are too many, never the last one.
func thin(points []point) []point {
	for len(points) > maxTimes {
		kept := points[:0:0]
		for i, p := range points {
			if (len(points)-1-i)%2 == 0 {
				kept = append(kept, p)
			}
		}
		points = kept
	}
	return points
}

// Names of objects, below the name of the log.

func tailPrefix(term uint64) string      { return fmt.Sprintf("%010d/t", term) }
func tailName(term, index uint64) string { return fmt.Sprintf("%s%010d", tailPrefix(term), index) }
func headName(term uint64) string        { return fmt.Sprintf("%010d/h", term) }
func runName(term, index uint64) string  { return fmt.Sprintf("%010d/r%010d", term, index) }
func snapName(term, index uint64, part int) string {
	return fmt.Sprintf("%010d/s%010d-%06d", term, index, part)
}

// termOf reads the term out of a name, without the name of the log.
func termOf(name string) (term uint64, ok bool) {
	n, err := fmt.Sscanf(name, "%010d/", &term)
	return term, n == 1 && err == nil && bytes.IndexByte([]byte(name), '/') == 10
}
