package gate

import "unsafe"

// block holds copies of several strings, which cost one allocation together.
type block []byte

// newBlock returns a block for strings of size bytes in all.
func newBlock(size int) block { return make(block, 0, size) }

// add returns a copy of s. The block should have room for it.
func (b *block) add(s string) string {
	at := len(*b)
	*b = append(*b, s...)
	return unsafe.String(unsafe.SliceData((*b)[at:]), len(s))
}
