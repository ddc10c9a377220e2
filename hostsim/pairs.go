package hostsim

import (
	"encoding/binary"
	"strings"
)

// Limits on a header map that a guest passes to the host. A larger map is read as empty, without an error.
const (
	maxPairs      = 1024
	maxPairsBytes = 1 << 20
)

// pairsSize is the length of the serialized form: a count, two lengths per pair,
// and every name and value followed by a zero byte, all integers little endian
// and 32 bits wide.
func pairsSize(h Headers) int {
	n := 4
	for i := range h {
		n += 8 + len(h[i][0]) + 1 + len(h[i][1]) + 1
	}
	return n
}

// marshalPairs writes the serialized form into b, which must have pairsSize bytes.
func marshalPairs(h Headers, b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(len(h)))
	sizes, data := 4, 4+8*len(h)
	for i := range h {
		binary.LittleEndian.PutUint32(b[sizes:], uint32(len(h[i][0])))
		binary.LittleEndian.PutUint32(b[sizes+4:], uint32(len(h[i][1])))
		sizes += 8
		for _, s := range h[i] {
			data += copy(b[data:], s)
			b[data] = 0
			data++
		}
	}
}

// MarshalPairs returns the serialized form of a header map, as guests see it. It has no limits, unlike UnmarshalPairs.
func MarshalPairs(h Headers) []byte {
	b := make([]byte, pairsSize(h))
	marshalPairs(h, b)
	return b
}

// UnmarshalPairs reads a serialized header map and copies it, with names in lower case. As in Envoy, input that is
// malformed, has extra bytes, or exceeds the limits (1024 pairs, 1 MiB) is read as an empty map.
func UnmarshalPairs(b []byte) Headers {
	if len(b) < 4 || len(b) > maxPairsBytes {
		return nil
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > maxPairs || 4+8*n > len(b) {
		return nil
	}
	sizes, data := b[4:4+8*n], b[4+8*n:]
	h := make(Headers, n)
	for i := range h {
		for j := range h[i] {
			size := uint64(binary.LittleEndian.Uint32(sizes[8*i+4*j:]))
			if size+1 > uint64(len(data)) || data[size] != 0 {
				return nil
			}
			h[i][j] = string(data[:size])
			data = data[size+1:]
		}
		h[i][0] = strings.ToLower(h[i][0])
	}
	if len(data) != 0 {
		return nil
	}
	return h
}
