//go:build unix && !linux

package httpd

import "golang.org/x/sys/unix"

// hungUp reports whether the other side has closed its end. It cannot see
// that behind data that nobody has read yet.
func hungUp(fd uintptr) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		return err != nil || n == 0
	}
}
