package jobs

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

// idSource makes job ids of 26 characters that sort by the time at which they were made: a 48-bit Unix time in
// milliseconds, then 80 bits that start randomly in each millisecond and grow, in lower-case Crockford base 32. The ids
// of one source are strictly increasing, even if the clock stands still or steps back. So jobs that one manager
// enqueues at the same instant keep their order.
type idSource struct {
	mu sync.Mutex
	ms uint64
	hi uint16
	lo uint64
}

const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

func (s *idSource) next() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	now := uint64(time.Now().UnixMilli())

	s.mu.Lock()
	if now > s.ms {
		s.ms = now
		s.hi = binary.BigEndian.Uint16(b[:]) >> 1 // room to grow within the millisecond
		s.lo = binary.BigEndian.Uint64(b[2:])
	} else {
		step := uint64(binary.BigEndian.Uint32(b[:])) + 1
		if s.lo+step < s.lo {
			if s.hi++; s.hi == 0 {
				s.ms++
			}
		}
		s.lo += step
	}
	ms, hi, lo := s.ms, s.hi, s.lo
	s.mu.Unlock()

	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], ms<<16|uint64(hi))
	binary.BigEndian.PutUint64(raw[8:], lo)
	return encodeID(raw)
}

// encodeID writes 128 bits as 26 digits of 5 bits, the first of 3.
func encodeID(raw [16]byte) string {
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	var out [26]byte
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = idAlphabet[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(out[:])
}

// newToken returns 128 random bits in hexadecimal.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
