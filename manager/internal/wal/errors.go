package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Errors that Log's methods return, possibly wrapped; test with errors.Is.
var (
	// ErrNoSpace is returned by Append when the reserved space is used up and
	// the disk had none for another segment, and by Snapshot when the disk is
	// full. Nothing was written. The log tries to reserve again by itself.
	ErrNoSpace = errors.New("wal: no space left on device")
	// ErrBusy is returned by Append when the queue is full or the next segment
	// is being created. Nothing was written; see WaitRoom.
	ErrBusy = errors.New("wal: busy")
	// ErrTooLarge is returned by Append for a body beyond
	// Options.MaxRecordBytes, and for an empty one.
	ErrTooLarge = errors.New("wal: record empty or too large")
	// ErrFailed is returned by everything after a write or an fsync failed.
	// Records that were not durable then may or may not be found at the next
	// open.
	ErrFailed = errors.New("wal: failed")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("wal: closed")
	// ErrSequence is returned by WaitDurable for a sequence number that was
	// not appended yet.
	ErrSequence = errors.New("wal: sequence number not appended yet")
	// ErrNoLog is returned by Verify and Dump for a directory that holds no
	// file of a log.
	ErrNoLog = errors.New("wal: no log in this directory")
	// ErrSnapshotRunning is returned by Snapshot while another one runs.
	ErrSnapshotRunning = errors.New("wal: a snapshot is being written already")
)

// CorruptionError is returned by Open, and reported by Verify, when data that
// was synced cannot be read back. It is never returned for a torn tail.
type CorruptionError struct {
	// File is the segment's or snapshot's path.
	File string
	// Offset in bytes of the first place that is wrong.
	Offset int64
	// Sequence is the sequence number expected there, 0 when none is.
	Sequence uint64
	// Reason tells what was found and what was expected.
	Reason string
}

func (e *CorruptionError) Error() string {
	if e.Sequence == 0 {
		return fmt.Sprintf("wal: %s: damaged at offset %d: %s", e.File, e.Offset, e.Reason)
	}
	return fmt.Sprintf("wal: %s: damaged at offset %d (sequence %d): %s", e.File, e.Offset, e.Sequence, e.Reason)
}

// isNoSpace tells a full disk or quota, which heals, from a broken disk.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isShortage tells an open that failed because the process, or the system, has
// too many files open, or no memory for one more. Nothing was done then.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// isUnsyncable tells a directory that may not be opened, or whose file system is
// only read, and so knows no sync, from one whose sync failed.
func isUnsyncable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EROFS)
}
