package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestLocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	shared, err := Try(open(t, name), false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Try(open(t, name), false)
	if err != nil {
		t.Errorf("two shared locks: %v", err)
	}
	f := open(t, name)
	if _, err := Try(f, true); !errors.Is(err, ErrHeld) {
		t.Errorf("an exclusive lock beside shared ones: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Wait(ctx, f); !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ended: %v", err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := Wait(t.Context(), f)
		waited <- err
	}()
	if err := errors.Join(shared.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a wait for locks that were released: %v", err)
	}
}

// A child process has a copy of each descriptor from its fork until it runs its program.
func TestCopyOfTheDescriptorHoldsNoLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	f := open(t, name)
	held, err := Try(f, true)
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Try(open(t, name), true); err != nil {
		t.Error(err)
	}
}
