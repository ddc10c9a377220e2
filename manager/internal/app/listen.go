package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/internal/filelock"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// listen opens the listener of a flag's address. mode is for a Unix socket, whose file is
// removed when the listener is closed.
func listen(ctx context.Context, flag, address string, mode fs.FileMode) (net.Listener, error) {
	path, ok := settings.SocketPath(address)
	if !ok {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return ln, nil
	}
	ln, err := listenUnix(ctx, path, mode)
	switch {
	case errors.Is(err, errSocketTaken), errors.Is(err, errNoSocket):
		return nil, settings.Usagef("--%s %q: %v", flag, address, err)
	case err != nil:
		return nil, fmt.Errorf("--%s %q: %w", flag, address, err)
	}
	return ln, nil
}

// listenAddress is the address in the form of the flags.
func listenAddress(ln net.Listener) string {
	if ln.Addr().Network() == "unix" {
		return "unix:" + ln.Addr().String()
	}
	return ln.Addr().String()
}

// reachable reports whether other machines may reach a listener.
func reachable(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

var (
	errSocketTaken = errors.New("a program listens there already")
	errNoSocket    = errors.New("must be the path of a new file, or of a socket that nobody uses; something else is there")
)

// unixListener removes its file when it is closed, unless another file has replaced it.
type unixListener struct {
	*net.UnixListener
	path   string
	file   fs.FileInfo
	remove sync.Once
}

func (l *unixListener) Close() error {
	l.remove.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(l.file, now) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// listenUnix replaces a socket that a killed program left.
func listenUnix(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	// Of two managers that start at once, one must not remove the other's new socket.
	lock, err := lockDirectory(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := removeUnused(ctx, path); err != nil {
		return nil, err
	}
	// The mode is set before the socket has a name: nobody connects who must not. The
	// system takes the process's umask off it, which the second change undoes.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), uint32(mode)) })
	}}
	ln, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l := &unixListener{UnixListener: ln.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false)
	if l.file, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		_ = os.Remove(path)
		_ = l.UnixListener.Close()
		return nil, err
	}
	return l, nil
}

// removeUnused removes a socket that nobody listens on.
func removeUnused(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errNoSocket
	}
	dialer := net.Dialer{Timeout: socketPatience}
	c, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return errSocketTaken
	case errors.Is(err, syscall.EAGAIN): // its backlog is full
		return errSocketTaken
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist): // its owner has just removed it
		return nil
	case errors.Is(err, syscall.EPROTOTYPE):
		return errNoSocket
	}
	return err
}

// socketPatience bounds the wait for another manager that starts in the same directory.
const socketPatience = 10 * time.Second

// lockDirectory keeps other managers from making sockets in a directory. The lock needs no
// file of its own and ends with the process.
func lockDirectory(ctx context.Context, dir string) (*filelock.Lock, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, socketPatience)
	defer cancel()
	lock, err := filelock.Wait(ctx, f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return lock, nil
}
