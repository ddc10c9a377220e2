package cache

import (
	"encoding/binary"

	"github.com/oncegate/oncegate/manager/api"
)

// A bucket's record:
//
//	record := 'o' 'g' version ways(1) waiters(1) way* waiter*
//	way    := slot(1) state(1) flags(1) owner(4) hash(16) token(16)
//	          fingerprint(16) expires(8) last use(8) value bytes(4)
//	waiter := slot(1) queue(4)
//
// Integers are big endian. Ways come in the order of their slots. Empty ways are
// left out.
const (
	recordVersion = 1
	headerSize    = 5
	waySize       = 75
	waiterSize    = 5
	maxRecord     = headerSize + Ways*waySize + MaxWaiters*waiterSize

	offState      = 1
	offFlags      = 2
	offOwner      = 3
	offHash       = 7
	offToken      = 23
	offPrint      = 39
	offExpires    = 55
	offLastUse    = 63
	offValueBytes = 71

	flagCacheOnly = 1
	flagBody      = 2
	flagLearned   = 4
)

// way is one slot of a bucket.
type way struct {
	state     api.State // StateNone: no entry
	cacheOnly bool
	body      bool // the way's value is the entry's answer
	learned   bool
	owner     uint32
	hash      Hash
	token     Token
	print     Fingerprint
	expires   int64
	lastUse   int64
	// valueBytes is how many bytes this way's value may hold: the entry's answer, the
	// answer of an entry that has left, or room that is set aside for the answer of
	// a pending entry. The sum over a bucket is always an upper bound.
	valueBytes uint32
}

func (w *way) live(now int64) bool { return w.exists() && w.expires > now }

func (w *way) exists() bool { return w.state != api.StateNone }

func (w *way) pending() bool { return w.state == api.StatePending }

// over reports whether the entry's time is over.
func (w *way) over(now int64) bool { return w.exists() && w.expires <= now }

// hasUnneededBytes reports whether the way accounts for bytes that no entry needs.
func (w *way) hasUnneededBytes() bool {
	return w.valueBytes > 0 && !w.body && w.state != api.StatePending
}

// clear removes the entry. The bytes of its value stay accounted for.
func (w *way) clear() { *w = way{valueBytes: w.valueBytes} }

type waiter struct {
	slot  uint8
	queue uint32
}

// record is a decoded bucket.
type record struct {
	ways    [Ways]way
	waiters [MaxWaiters]waiter
	n       int // number of waiters
}

// find returns the slot of an entry, live or not, or -1.
func (r *record) find(h *Hash) int {
	for i := range r.ways {
		if r.ways[i].state != api.StateNone && r.ways[i].hash == *h {
			return i
		}
	}
	return -1
}

// valueBytes returns how many bytes the values may hold, without the value of slot except.
func (r *record) valueBytes(except int) int {
	sum := 0
	for i := range r.ways {
		if i != except {
			sum += int(r.ways[i].valueBytes)
		}
	}
	return sum
}

// takeWaiters appends the queues that wait for a slot to dst and removes them from the record.
func (r *record) takeWaiters(slot int, dst []uint32) []uint32 {
	kept := 0
	for i := 0; i < r.n; i++ {
		if int(r.waiters[i].slot) == slot {
			dst = append(dst, r.waiters[i].queue)
			continue
		}
		r.waiters[kept] = r.waiters[i]
		kept++
	}
	r.n = kept
	return dst
}

// append encodes the record.
func (r *record) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, 'o', 'g', recordVersion, 0, byte(r.n))
	for i := range r.ways {
		w := &r.ways[i]
		if w.state == api.StateNone && w.valueBytes == 0 {
			continue
		}
		dst[start+3]++
		var flags byte
		if w.cacheOnly {
			flags |= flagCacheOnly
		}
		if w.body {
			flags |= flagBody
		}
		if w.learned {
			flags |= flagLearned
		}
		dst = append(dst, byte(i), byte(w.state), flags)
		dst = binary.BigEndian.AppendUint32(dst, w.owner)
		dst = append(dst, w.hash[:]...)
		dst = append(dst, w.token[:]...)
		dst = append(dst, w.print[:]...)
		dst = binary.BigEndian.AppendUint64(dst, uint64(w.expires))
		dst = binary.BigEndian.AppendUint64(dst, uint64(w.lastUse))
		dst = binary.BigEndian.AppendUint32(dst, w.valueBytes)
	}
	for i := 0; i < r.n; i++ {
		dst = append(dst, r.waiters[i].slot)
		dst = binary.BigEndian.AppendUint32(dst, r.waiters[i].queue)
	}
	return dst
}

// framed reports whether b has the frame of a record. If so, its ways can safely be
// read in place.
func framed(b []byte) bool {
	return len(b) >= headerSize && b[0] == 'o' && b[1] == 'g' && b[2] == recordVersion &&
		b[3] <= Ways && b[4] <= MaxWaiters &&
		len(b) == headerSize+int(b[3])*waySize+int(b[4])*waiterSize
}

// readWay decodes one way. ok is false if no table writes such values.
func readWay(b []byte, w *way) (slot int, ok bool) {
	slot = int(b[0])
	flags := b[offFlags]
	*w = way{
		state:      api.State(b[offState]),
		cacheOnly:  flags&flagCacheOnly != 0,
		body:       flags&flagBody != 0,
		learned:    flags&flagLearned != 0,
		owner:      binary.BigEndian.Uint32(b[offOwner:]),
		expires:    int64(binary.BigEndian.Uint64(b[offExpires:])),
		lastUse:    int64(binary.BigEndian.Uint64(b[offLastUse:])),
		valueBytes: binary.BigEndian.Uint32(b[offValueBytes:]),
	}
	copy(w.hash[:], b[offHash:])
	copy(w.token[:], b[offToken:])
	copy(w.print[:], b[offPrint:])
	if slot >= Ways || flags > flagCacheOnly|flagBody|flagLearned {
		return 0, false
	}
	switch w.state {
	case api.StateNone:
		return slot, w.valueBytes > 0 && !w.body
	case api.StatePending, api.StateUnknown:
		return slot, !w.body
	case api.StateCommitted, api.StateRejected:
		return slot, !w.body || w.valueBytes > 0
	}
	return 0, false
}

// decode reads a record. False: b is not a record of this version, and r is undefined.
func (r *record) decode(b []byte) bool {
	*r = record{}
	if !framed(b) {
		return false
	}
	ways, n := int(b[3]), int(b[4])
	b = b[headerSize:]
	last := -1
	for ; ways > 0; ways-- {
		var w way
		slot, ok := readWay(b, &w)
		if !ok || slot <= last || (w.state != api.StateNone && r.find(&w.hash) >= 0) {
			return false
		}
		last = slot
		r.ways[slot] = w
		b = b[waySize:]
	}
	for ; r.n < n; r.n++ {
		slot := b[0]
		if slot >= Ways || r.ways[slot].state != api.StatePending {
			return false
		}
		r.waiters[r.n] = waiter{slot, binary.BigEndian.Uint32(b[1:])}
		b = b[waiterSize:]
	}
	return true
}

// An answer's value: version(1) hash(16) token(16) answer. A cleared value
// is the single byte 0.
const (
	valueVersion = 1
	valueHeader  = 1 + len(Hash{}) + len(Token{})
)

func appendValue(dst []byte, h *Hash, t *Token, raw []byte) []byte {
	dst = append(dst, valueVersion)
	dst = append(dst, h[:]...)
	dst = append(dst, t[:]...)
	return append(dst, raw...)
}

// valueOf reports whether a value is the answer of the attempt t at h. Each attempt
// has a new token, so no other answer has both.
func valueOf(v []byte, h *Hash, t *Token) bool {
	return len(v) >= valueHeader && v[0] == valueVersion &&
		Hash(v[1:1+len(h)]) == *h && Token(v[1+len(h):valueHeader]) == *t
}
