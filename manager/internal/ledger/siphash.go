package ledger

import (
	"encoding/binary"
	"math/bits"
)

// sipHash is SipHash-2-4. A caller that does not know the seed cannot choose scopes that share their cells, and the hash is
// the same in all processes.
func sipHash(seed [2]uint64, s string) uint64 {
	v0, v1 := seed[0]^0x736f6d6570736575, seed[1]^0x646f72616e646f6d
	v2, v3 := seed[0]^0x6c7967656e657261, seed[1]^0x7465646279746573
	last := uint64(len(s)) << 56
	for ; len(s) >= 8; s = s[8:] {
		var b [8]byte
		copy(b[:], s)
		m := binary.LittleEndian.Uint64(b[:])
		v3 ^= m
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= m
	}
	for i := range len(s) {
		last |= uint64(s[i]) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= last
	v2 ^= 0xff
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
