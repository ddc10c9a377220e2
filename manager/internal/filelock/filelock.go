// Package filelock locks files against other processes. The kernel releases a lock when its holder dies.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another holder has the lock.
var ErrHeld = errors.New("another program holds the lock")

// poll is the time between two tries of Wait.
const poll = 5 * time.Millisecond

// Lock is a locked file.
type Lock struct{ f *os.File }

// Try locks f, exclusively or shared with other shared locks. It returns ErrHeld if another holder has the lock. After
// an error f is still the caller's to close.
func Try(f *os.File, exclusive bool) (*Lock, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return &Lock{f}, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, ErrHeld
		case !errors.Is(err, unix.EINTR):
			return nil, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// Wait is Try for an exclusive lock, and waits for it. If ctx ends first, the error is ErrHeld with the cause.
func Wait(ctx context.Context, f *os.File) (*Lock, error) {
	for {
		l, err := Try(f, true)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrHeld, context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

// Close releases the lock and closes the file.
//
// Closing alone would not release the lock while a child process has a copy of the descriptor. Each child has one
// from its fork until it runs its program.
func (l *Lock) Close() error {
	return errors.Join(unix.Flock(int(l.f.Fd()), unix.LOCK_UN), l.f.Close())
}
