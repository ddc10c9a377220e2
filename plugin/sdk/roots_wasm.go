//go:build tinygo

package sdk

import "unsafe"

// rodataEnd is between the module's constants and its variables: the linker orders its parts by such names.
//
//go:section .rodata_end
var rodataEnd uint32

// globalsStart is where TinyGo's collector begins to look for pointers.
//
//go:extern runtime.globalsStart
var globalsStart uintptr

// By default the collector begins with the constants, and takes each word that looks like an address for a pointer. Constants
// point to nothing on the heap, but such a word keeps a block of garbage, and the larger the blocks, the more.
func init() { globalsStart = uintptr(unsafe.Pointer(&rodataEnd)) }
