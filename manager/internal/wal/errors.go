package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Errors that Log's methods return, possibly wrapped; test with errors.Is.
var (
	// ErrNoSpace is returned by Append when the reserved space is used up and the disk has none for another segment,
	// and by Snapshot when the disk is full. Nothing was written. The log repeats the reservation by itself.
	ErrNoSpace = errors.New("wal: no space left on device")
	// ErrBusy is returned by Append when the queue is full or the next segment
	// is being created. Nothing was written; see WaitRoom.
	ErrBusy = errors.New("wal: busy")
	// ErrTooLarge is returned by Append for a body beyond
	// Options.MaxRecordBytes, and for an empty one.
	ErrTooLarge = errors.New("wal: record empty or too large")
	// ErrFailed is returned by every method after a write or an fsync failed. Records that were not durable at that
	// moment may or may not be found at the next open.
	ErrFailed = errors.New("wal: failed")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("wal: closed")
	// ErrSequence is returned by WaitDurable for a sequence number that was
	// not appended yet.
	ErrSequence = errors.New("wal: sequence number not appended yet")
	// ErrGone is returned by Records for a record that is no longer kept since a snapshot.
	ErrGone = errors.New("wal: record was replaced by a snapshot")
	// ErrNoLog is returned by Verify for a directory without any file of a log.
	ErrNoLog = errors.New("wal: no log in this directory")
)

// CorruptionError is returned by Open, and reported by Verify, when data that
// was synced cannot be read back. It is never returned for a torn tail.
type CorruptionError struct {
	// File is the segment's or snapshot's path.
	File string
	// Offset in bytes of the first wrong data.
	Offset int64
	// Sequence is the sequence number expected there, 0 when none is.
	Sequence uint64
	// Reason says what was found and what was expected.
	Reason string
}

func (e *CorruptionError) Error() string {
	if e.Sequence == 0 {
		return fmt.Sprintf("wal: %s: damaged at offset %d: %s", e.File, e.Offset, e.Reason)
	}
	return fmt.Sprintf("wal: %s: damaged at offset %d (sequence %d): %s", e.File, e.Offset, e.Sequence, e.Reason)
}

// isNoSpace distinguishes a full disk or quota, which passes, from a broken disk.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// orNoSpace makes the error of a full disk an ErrNoSpace, too.
func orNoSpace(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// isShortage reports an open that failed because the process or the system has too many open files or too little
// memory. Such an open changed nothing.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// isUnsyncable reports a directory that cannot be synced at all: it may not be opened, or its file system is read-only
// or has no such sync. A sync that was tried and failed is another matter.
func isUnsyncable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EROFS)
}
