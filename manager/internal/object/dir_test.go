package object_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// TestDirWritesBeforeItLocks: a body is in its file before the writer waits for the lock, so that no writer waits for the
// disk of another one. Nothing of it stays when the write is refused.
func TestDirWritesBeforeItLocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := object.OpenDir(dir)
	first, err := s.Create(t.Context(), "a", []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	files := func() (bodies []string) {
		names, err := filepath.Glob(filepath.Join(dir, ".new-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if b, err := os.ReadFile(name); err == nil && len(b) > 0 {
				bodies = append(bodies, string(b))
			}
		}
		return bodies
	}
	for name, c := range map[string]struct {
		write func() error
		want  error
	}{
		"create":  {func() error { _, err := s.Create(t.Context(), "b", []byte("body")); return err }, nil},
		"exists":  {func() error { _, err := s.Create(t.Context(), "a", []byte("body")); return err }, object.ErrExists},
		"changed": {func() error { _, err := s.Replace(t.Context(), "a", []byte("body"), first+"x"); return err }, object.ErrChanged},
	} {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.write() }()
		deadline := time.Now().Add(20 * time.Second)
		for len(files()) == 0 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if got := files(); len(got) != 1 || got[0] != "body" {
			t.Errorf("%s: while another writer has the lock, the new files are %q", name, got)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if got := files(); len(got) != 0 {
			t.Errorf("%s leaves %q", name, got)
		}
	}
}

// TestDirIsNotTrustedAfterAFailedSync: what could not be made durable is not shown as written by the next try, because that
// try's sync may succeed although the names are lost.
func TestDirIsNotTrustedAfterAFailedSync(t *testing.T) {
	t.Parallel()
	s := object.OpenDir(t.TempDir())
	if _, err := s.Create(t.Context(), "runs/1", []byte("first")); err != nil {
		t.Fatal(err)
	}
	object.FailSync(s, unix.EIO)
	if _, err := s.Create(t.Context(), "runs/2", []byte("second")); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "runs/2", []byte("second")); !errors.Is(err, unix.EIO) || errors.Is(err, object.ErrExists) {
		t.Errorf("the next try: %v", err)
	}
	if b, _, err := s.Get(t.Context(), "runs/2"); !errors.Is(err, unix.EIO) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestDirForgetsWhatKilledWritersLeft: only new files that are old are removed, because other processes may write.
func TestDirForgetsWhatKilledWritersLeft(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a[b") // no pattern
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{".new-old": 2 * time.Hour, ".new-young": 0} {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := object.OpenDir(dir).Create(t.Context(), "a", []byte("a")); err != nil {
		t.Fatal(err)
	}
	var left []string
	files, err := os.ReadDir(dir)
	for _, f := range files {
		left = append(left, f.Name())
	}
	if want := []string{".lock", ".new-young", "a"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("%q, %v, want %q", left, err, want)
	}
}
