package app

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// TestOneOfManyTakesASocket: however many managers find the socket of a killed one, one
// of them gets it.
func TestOneOfManyTakesASocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	for range 20 {
		leaveSocket(t, path)
		got, taken := make(chan net.Listener, 8), new(atomic.Int32)
		for range cap(got) {
			go func() {
				ln, err := listen(t.Context(), "listen", "unix:"+path, 0o600)
				if err != nil {
					if strings.Contains(err.Error(), errSocketTaken.Error()) {
						taken.Add(1)
					} else {
						t.Error(err)
					}
					ln = nil
				}
				got <- ln
			}()
		}
		var owner net.Listener
		for range cap(got) {
			if ln := <-got; ln != nil {
				owner = ln
			}
		}
		if n := taken.Load(); int(n) != cap(got)-1 {
			t.Fatalf("%d of %d got the error that it is taken", n, cap(got))
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("the owner is not reached: %v", err)
		}
		_ = c.Close()
		_ = owner.Close()
		if _, err := os.Lstat(path); err == nil {
			t.Fatal("the socket is still there")
		}
	}
}

// leaveSocket leaves what a killed manager leaves.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
}

func TestSocketHasItsModeWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666, 0o777} {
		ln, err := listen(t.Context(), "listen", "unix:"+path, mode)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v: %v %v", mode, info.Mode(), err)
		}
		_ = ln.Close()
	}
}

// TestOthersSocketStays: a manager that stops removes its own file only.
func TestOthersSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := listen(t.Context(), "listen", "unix:"+path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := listen(t.Context(), "listen", "unix:"+path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_ = ln.Close()
	_ = ln.Close() // engines do
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// TestLongestSocketPath: the bound is the system's.
func TestLongestSocketPath(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const longest = len(syscall.RawSockaddrUnix{}.Path) - 1
	path := dir + "/" + strings.Repeat("x", longest-len(dir)-1)
	noEnv := func(string) (string, bool) { return "", false }
	if _, err := settings.Parse(noEnv, []string{"--store", "memory", "--listen", "unix:" + path}); err != nil {
		t.Error(err)
	}
	ln, err := listen(t.Context(), "listen", "unix:"+path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
}

// TestDirectoryLockHasAnEnd: a program that holds the directory's lock does not hang a start.
func TestDirectoryLockHasAnEnd(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDirectory(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := listen(ctx, "listen", "unix:"+dir+"/s", 0o600); err == nil || !strings.Contains(err.Error(), "another program holds the lock") {
		t.Error(err)
	}
}
