package object

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// writeDirectly writes the whole pages at the beginning of a large body to an empty file without a copy in the page cache,
// and returns how many bytes they are. It writes none when the body is small or not aligned, or the file system
// does not support such writes. The caller writes the rest in the ordinary way, which reports errors.
func writeDirectly(f *os.File, body []byte) int {
	if len(body) < DirectBytes || uintptr(unsafe.Pointer(unsafe.SliceData(body)))%Alignment != 0 {
		return 0
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return 0
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
		return 0
	}
	n, _ := f.WriteAt(body[:len(body)/Alignment*Alignment], 0)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, flags); err != nil {
		return 0
	}
	return n
}
