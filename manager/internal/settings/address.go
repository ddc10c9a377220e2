package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is what the system takes for the path of a socket, in bytes.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// SocketPath returns the path of the Unix socket that an address names.
func SocketPath(address string) (path string, ok bool) { return strings.CutPrefix(address, "unix:") }

// checkAddress says what is wrong with the form of an address, "" if nothing. Whether a
// host is there is not known before somebody listens.
func checkAddress(address string) string {
	path, ok := SocketPath(address)
	if !ok {
		if _, port, err := net.SplitHostPort(address); err == nil {
			if _, err := net.LookupPort("tcp", port); err == nil {
				return ""
			}
		}
		return "must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH"
	}
	switch {
	case path == "" || path[0] == '@' || strings.IndexByte(path, 0) >= 0:
		return "must be unix: and the path of a file"
	case len(path) > maxSocketPath:
		return fmt.Sprintf("the path must have at most %d bytes, it has %d", maxSocketPath, len(path))
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return "the path must be in a directory that exists" + because(err)
	}
	return ""
}

// socketMode parses the permissions of a Unix socket.
func socketMode(name, usage, initial string, to *fs.FileMode) setting {
	return setting{name: name, usage: usage, initial: initial, parse: func(v string) error {
		n, err := strconv.ParseUint(v, 8, 32)
		if err != nil || n > 0o777 {
			return errors.New("must be an octal number from 0 to 777")
		}
		*to = fs.FileMode(n)
		return nil
	}}
}
