// Package vfs is the file system as the write-ahead log sees it: the one seam
// at which tests put a disk that fails, fills up, tears writes or loses what
// was never synced. OS is the real one; package faultfs has the other.
//
// The interfaces are as narrow as the log's needs, because each method is a
// promise that a fault-injecting implementation has to be able to break.
package vfs

import (
	"errors"
	"fmt"
	"io"
)

// ErrNotSupported is returned by File.Allocate where the file system cannot
// reserve space. The caller then reserves by writing.
var ErrNotSupported = errors.New("vfs: not supported by this file system")

// FS is a directory tree. Paths are slash-separated and used as they are.
type FS interface {
	// MkdirAll creates a directory and its missing parents.
	MkdirAll(dir string) error
	// List returns the names (not paths) of the regular files in dir, in no
	// particular order.
	List(dir string) ([]string, error)
	// Create creates a file that must not exist and opens it for reading and
	// writing. The new name is durable only after SyncDir.
	Create(path string) (File, error)
	// Open opens an existing file, for reading only or for reading and
	// writing. errors.Is(err, fs.ErrNotExist) when it is not there.
	Open(path string, write bool) (File, error)
	// Rename replaces newPath by oldPath; durable only after SyncDir.
	Rename(oldPath, newPath string) error
	// Remove deletes a file; durable only after SyncDir.
	Remove(path string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on the file at path, creating it
	// when needed, without waiting. A *LockedError tells who holds it. The
	// lock ends with Close, or with the process.
	Lock(path string) (io.Closer, error)
	// ProbeLock tells whether some process holds the lock at path, and writes
	// nothing: a *LockedError when it is held, nil when it is not.
	ProbeLock(path string) error
}

// File is an open regular file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the length of the file in bytes.
	Size() (int64, error)
	// Allocate reserves disk space for the first size bytes and makes the file
	// at least that long; bytes never written read as zeros.
	Allocate(size int64) error
	// Writeback asks for the bytes from off to off+n to be written soon, so
	// that a later Datasync finds little to do. It waits for nothing, promises
	// nothing, and reports no errors of the disk.
	Writeback(off, n int64)
	// Datasync makes the file's content and length durable.
	Datasync() error
}

// LockedError says that another holder has the lock.
type LockedError struct {
	Path string
	// PID of the holder, 0 when it left none.
	PID int
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}
