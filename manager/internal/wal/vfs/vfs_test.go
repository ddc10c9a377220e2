package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFilesAreMadeReadAndRenamed(t *testing.T) {
	fsys, dir := OS(), filepath.Join(t.TempDir(), "a", "b")
	if _, err := fsys.List(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("List of a missing directory: %v", err)
	}
	if err := fsys.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "f")
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fsys.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create of an existing file: %v", err)
	}
	if err := f.Allocate(1 << 16); err != nil && !errors.Is(err, ErrNotSupported) {
		t.Errorf("Allocate: %v", err)
	} else if err == nil {
		if n, err := f.Size(); n != 1<<16 || err != nil {
			t.Errorf("after Allocate the size is %d, %v", n, err)
		}
	}
	if _, err := f.WriteAt([]byte("text"), 10); err != nil {
		t.Fatal(err)
	}
	f.Writeback(0, 14)
	if err := f.Datasync(); err != nil {
		t.Errorf("Datasync: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Datasync(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Datasync of a closed file: %v", err)
	}
	f.Writeback(0, 1) // says nothing, and hits no other file
	if err := fsys.MkdirAll(filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fsys.Rename(name, name+"2"), fsys.SyncDir(dir)); err != nil {
		t.Fatal(err)
	}
	if names, err := fsys.List(dir); !slices.Equal(names, []string{"f2"}) || err != nil {
		t.Errorf("List: %v, %v", names, err)
	}
	if f, err = fsys.Open(name+"2", false); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, 10); string(b) != "text" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := f.WriteAt(b, 0); err == nil {
		t.Error("a file opened for reading takes a write")
	}
	if err := errors.Join(f.Close(), fsys.Remove(name+"2")); err != nil {
		t.Fatal(err)
	}
	if _, err := fsys.Open(name+"2", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a removed file: %v", err)
	}
}

func TestLockIsExclusive(t *testing.T) {
	fsys, name := OS(), filepath.Join(t.TempDir(), "lock")
	if err := fsys.ProbeLock(name); err != nil {
		t.Errorf("ProbeLock without a file: %v", err)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ProbeLock left a file: %v", err)
	}
	l, err := fsys.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	_, lockErr := fsys.Lock(name)
	for what, err := range map[string]error{"Lock": lockErr, "ProbeLock": fsys.ProbeLock(name)} {
		var held *LockedError
		if !errors.As(err, &held) || held.PID != os.Getpid() || held.Path != name {
			t.Errorf("%s of a held lock: %v", what, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fsys.ProbeLock(name); err != nil {
		t.Errorf("ProbeLock of a released lock: %v", err)
	}
	// What is in the file is only there to name the holder.
	if err := os.WriteFile(name, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err = fsys.Lock(name); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	var held *LockedError
	if err := fsys.ProbeLock(name); !errors.As(err, &held) || held.PID != 0 {
		t.Errorf("ProbeLock with garbage in the file: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
