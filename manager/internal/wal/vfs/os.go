package vfs

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/filelock"
)

// OS is the operating system's file system.
func OS() FS { return osFS{} }

type osFS struct{}

// Records may be confidential, so only the owner can read them.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, dirMode) }

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (osFS) Create(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Open(path string, write bool) (File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(oldPath, newPath string) error { return os.Rename(oldPath, newPath) }

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// The process id in the file only names the holder.
func (osFS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	lock, err := try(f, true)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	// Best effort: a full disk must not prevent a start.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return lock, nil
}

func (osFS) ProbeLock(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lock, err := try(f, false)
	if err != nil {
		_ = f.Close()
		return err
	}
	return lock.Close()
}

func try(f *os.File, exclusive bool) (*filelock.Lock, error) {
	lock, err := filelock.Try(f, exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		err = &LockedError{Path: f.Name(), PID: readPID(f)}
	}
	return lock, err
}

func readPID(f *os.File) int {
	buf := make([]byte, 32)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f osFile) Allocate(size int64) error { return allocate(f.File, size) }
func (f osFile) Writeback(off, n int64)    { writeback(f.File, off, n) }
func (f osFile) Datasync() error           { return datasync(f.File) }
