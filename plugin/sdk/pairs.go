package sdk

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// Header maps as the ABI numbers them.
const (
	mapRequestHeaders   = 0
	mapResponseHeaders  = 2
	mapResponseTrailers = 3
	mapCallHeaders      = 6
	mapCallTrailers     = 7
)

// A header map crosses the ABI as
//
//	count(4) [name length(4) value length(4)]* [name 0 value 0]*
//
// with little-endian integers. The SDK's functions for it make a new list and a new block
// for each use. These would be most of what a hit allocates.

// parsePairs appends the headers in b to dst. They are views of b, so b must not be
// written to after that. A malformed b counts as no headers.
func parsePairs(dst [][2]string, b []byte) [][2]string {
	if len(b) < 4 {
		return dst
	}
	// An int has 32 bits in the wasm build.
	count := binary.LittleEndian.Uint32(b)
	if uint64(count)*10 > uint64(len(b)-4) {
		return dst
	}
	sizes, text := b[4:4+8*count], b[4+8*count:]
	was := len(dst)
	for ; len(sizes) > 0; sizes = sizes[8:] {
		name, value := uint64(binary.LittleEndian.Uint32(sizes)), uint64(binary.LittleEndian.Uint32(sizes[4:]))
		if name+value+2 > uint64(len(text)) {
			return dst[:was]
		}
		dst = append(dst, [2]string{view(text[:name]), view(text[name+1:][:value])})
		text = text[name+value+2:]
	}
	return dst
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendPairs appends the serialized form of headers.
func appendPairs(dst []byte, headers [][2]string) []byte {
	size := 4
	for i := range headers {
		size += 8 + len(headers[i][0]) + len(headers[i][1]) + 2
	}
	start := len(dst)
	dst = slices.Grow(dst, size)[:start+size]
	sizes, text := dst[start+4:], dst[start+4+8*len(headers):]
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(headers)))
	for i := range headers {
		for _, s := range headers[i] {
			binary.LittleEndian.PutUint32(sizes, uint32(len(s)))
			sizes = sizes[4:]
			text[copy(text, s)] = 0
			text = text[len(s)+1:]
		}
	}
	return dst
}
