// Package vfs is the write-ahead log's interface to the file system. Tests replace it to simulate a disk that fails,
// fills up, tears writes or loses what was never synced. OS is the real file system; package faultfs is the one for
// tests.
//
// The interfaces have only the methods that the log uses, because each method is a promise that a fault-injecting
// implementation must be able to break.
package vfs

import (
	"errors"
	"fmt"
	"io"
)

// ErrNotSupported is returned by File.Allocate if the file system cannot reserve space. The caller then reserves by
// writing.
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
	// Open opens an existing file, for reading only or for reading and writing. A missing file gives an error that
	// matches fs.ErrNotExist.
	Open(path string, write bool) (File, error)
	// Rename renames oldPath to newPath and replaces a file of that name; durable only after SyncDir.
	Rename(oldPath, newPath string) error
	// Remove deletes a file; durable only after SyncDir.
	Remove(path string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on the file at path without waiting, and creates the file if necessary. If
	// it is locked, the error is a *LockedError that names the holder. The lock ends with Close, or with the process.
	Lock(path string) (io.Closer, error)
	// ProbeLock returns a *LockedError if another process holds the lock at path, and nil if none does. It writes
	// nothing.
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
	// Writeback asks for the bytes from off to off+n to be written soon, so that a later Datasync has little to do. It
	// does not wait, guarantees nothing, and reports no errors of the disk.
	Writeback(off, n int64)
	// Datasync makes the file's content and length durable.
	Datasync() error
}

// LockedError says that another holder has the lock.
type LockedError struct {
	Path string
	// PID of the holder, 0 if unknown.
	PID int
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.PID)
}
