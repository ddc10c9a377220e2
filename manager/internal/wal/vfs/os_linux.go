package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate extends and reserves in one step. Mode 0 (not KEEP_SIZE) sets the length now, so a later fdatasync has no
// metadata to write.
func allocate(f *os.File, size int64) error {
	err := control(f, "fallocate", func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return ErrNotSupported
	}
	return err
}

// writeback ignores errors: sync_file_range is only a hint here, and the next fdatasync reports what went wrong while
// the kernel wrote.
func writeback(f *os.File, off, n int64) {
	_ = control(f, "sync_file_range", func(fd int) error {
		return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE)
	})
}

func datasync(f *os.File) error {
	return control(f, "fdatasync", unix.Fdatasync)
}

// control runs a system call on f's descriptor. Meanwhile the descriptor cannot be closed and its number cannot be
// reused. It repeats the call only after EINTR, which means that nothing was done; any other error is final.
func control(f *os.File, op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = conn.Control(func(fd uintptr) {
		for {
			if callErr = call(int(fd)); !errors.Is(callErr, unix.EINTR) {
				return
			}
		}
	})
	if err != nil { // Control itself failed
		callErr = os.ErrClosed
	}
	if callErr != nil {
		return &os.PathError{Op: op, Path: f.Name(), Err: callErr}
	}
	return nil
}
