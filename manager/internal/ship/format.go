package ship

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/minio/crc64nvme"
)

// An object that holds records is
//
//	magic    8 bytes
//	length   uint32, of the header
//	crc      uint32, CRC-32C of the header
//	header   JSON, see header; padded with spaces when the object is large, so that it begins with a page of memory
//	header   JSON, see header
//
// little-endian. The header has the CRC-64/NVME of the records.

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
	// headRoom is the space that a packer leaves before the records. maxTimes points take 27 kB at most.
	headRoom = 32 << 10
	// packedBytes is the memory of an object of targetBytes. A packer takes all of it for objects above roomyBytes.
	packedBytes = headRoom + targetBytes + binary.MaxVarintLen64
	roomyBytes  = 256 << 10
	// maxFree bounds the memory of objects that waits to be used again: a run, a merged one and a part need it at a time.
	maxFree = 4
	// sumBytes is how many bytes of records a packer sums at once, while they are in the processor's cache.
	sumBytes = 64 << 10
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

// header describes the records of an object.
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
	// Writer is that of the manifest to whose tail the run belongs.
	Writer string `json:"writer,omitempty"`
	// Snapshot is the sequence number that a snapshot covers.
	Snapshot uint64 `json:"snapshot,omitempty"`

	// CRC64 is the sum of the records, by which a manifest names an object's content.
	CRC64 string `json:"crc64nvme"`
}

// packer makes an object of records. The object is the only copy that it makes of them.
type packer struct {
	b      []byte // headRoom, and the records
	summed int    // the records up to here are in crc
	crc    uint64
	sealed bool
}

// packed is an object that is ready to be written.
type packed struct {
	body   []byte
	sum    string
	memory []byte // of which body is a part
}

func (o *packed) ref(name string) ref { return ref{name, int64(len(o.body)), o.sum} }

// newPacker uses the memory of b, whose content it overwrites.
func newPacker(b []byte) *packer {
	b = slices.Grow(b[:0], headRoom)[:headRoom]
	return &packer{b: b, summed: headRoom}
}

// size is how many bytes the records take.
func (p *packer) size() int { return len(p.b) - headRoom }

func (p *packer) add(body []byte) {
	if n := len(p.b) + binary.MaxVarintLen64 + len(body); n > cap(p.b) && n > roomyBytes && n <= packedBytes {
		p.b = append(make([]byte, 0, packedBytes), p.b...) // large enough for any other object, too
	}
	p.b = binary.AppendUvarint(p.b, uint64(len(body)))
	p.b = append(p.b, body...)
	if len(p.b)-p.summed >= sumBytes {
		p.sum()
	}
}

func (p *packer) sum() {
	p.crc = crc64nvme.Update(p.crc, p.b[p.summed:])
	p.summed = len(p.b)
}

// seal puts the header in front of the records. The packer is not used any more.
func (p *packer) seal(h header) *packed {
	p.sum()
	p.sealed = true
	h.CRC64 = fmt.Sprintf("%016x", p.crc)
	head, err := json.Marshal(h)
	if err != nil {
		panic(err) // it has nothing that could fail
	}
	start := headRoom - objectPrefix - len(head)
	if start < 0 {
		panic(fmt.Sprintf("ship: a header of %d bytes", len(head))) // there are maxTimes points at most
	}
	b := append(p.b[start:start], objectMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(head, castagnoli))
	_ = append(b, head...) // in place
	return &packed{p.b[start:], h.CRC64, p.b}
}

// buffers are the memory of objects that were written, to be used for others.
type buffers struct {
	mu   sync.Mutex
	free [][]byte
}

func (f *buffers) get() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.free) == 0 {
		return nil
	}
	b := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	return b
}

// put gives memory back that nothing reads any more. One large record does not keep its memory.
func (f *buffers) put(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cap(b) <= 2*targetBytes && len(f.free) < maxFree {
		f.free = append(f.free, b)
	}
}

// decode checks an object and returns its header and records.
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
	if computed := fmt.Sprintf("%016x", crc64nvme.Checksum(records)); h.CRC64 != computed {
		return h, nil, fmt.Errorf("CRC-64 of the records is %.64q, computed %s", h.CRC64, computed)
	}
	if h.Kind != kindRun && h.Kind != kindSnapshot {
		return h, nil, fmt.Errorf("kind %q", h.Kind)
	}
	if h.Kind == kindRun && (h.Segment == nil || h.First == 0 || h.First > h.Last || len(h.Points) == 0 || h.Points[len(h.Points)-1].Sequence != h.Last) {
		return h, nil, fmt.Errorf("header of a run from %d to %d without segment or times", h.First, h.Last)
	}
	return h, records, nil
}

// split returns the records of an object, which must have as many as its header says.
func split(h header, records []byte) (bodies [][]byte, err error) {
	for seq := h.First; seq <= h.Last; seq++ {
		n, k := binary.Uvarint(records)
		if k <= 0 || n > uint64(len(records)-k) {
			return nil, fmt.Errorf("record %d is cut off", seq)
		}
		bodies, records = append(bodies, records[k:k+int(n)]), records[k+int(n):]
	}
	if len(records) > 0 {
		return nil, fmt.Errorf("%d bytes follow record %d", len(records), h.Last)
	}
	return bodies, nil
}

// thin drops points when there are more than maxTimes, never the last one.
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

// Names of objects, without the prefix of the log.

func tailPrefix(term uint64) string      { return fmt.Sprintf("%010d/t", term) }
func tailName(term, index uint64) string { return fmt.Sprintf("%s%010d", tailPrefix(term), index) }
func headName(term uint64) string        { return fmt.Sprintf("%010d/h", term) }
func runName(term, index uint64) string  { return fmt.Sprintf("%010d/r%010d", term, index) }
func snapName(term, index uint64, part int) string {
	return fmt.Sprintf("%010d/s%010d-%06d", term, index, part)
}

// termOf reads the term from a name without the prefix of the log.
func termOf(name string) (term uint64, ok bool) {
	n, err := fmt.Sscanf(name, "%010d/", &term)
	return term, n == 1 && err == nil && bytes.IndexByte([]byte(name), '/') == 10
}
