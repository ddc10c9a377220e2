package faultfs

import (
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

func write(t *testing.T, f vfs.File, off int64, s string) {
	t.Helper()
	if _, err := f.WriteAt([]byte(s), off); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, fs *FS, name string) vfs.File {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A crash loses what was not synced, including names, and nothing else.
func TestCrashLosesWhatWasNotSynced(t *testing.T) {
	fs := &FS{}
	f := create(t, fs, "d/a")
	write(t, f, 0, "synced")
	if err := errors.Join(f.Datasync(), fs.SyncDir("d")); err != nil {
		t.Fatal(err)
	}
	write(t, f, 0, "LATE")
	g := create(t, fs, "d/b")
	write(t, g, 0, "synced, but its name is not")
	if err := errors.Join(g.Datasync(), fs.Rename("d/a", "d/c")); err != nil {
		t.Fatal(err)
	}
	if got := string(fs.Content("d/c")); got != "LATEed" {
		t.Errorf("a running system sees %q", got)
	}
	image := fs.Crash()
	if got := strings.Join(image.Names(), " "); got != "d/a" {
		t.Errorf("after a crash there are %s", got)
	}
	if got := string(image.Content("d/a")); got != "synced" {
		t.Errorf("after a crash the file has %q", got)
	}
	if got := string(fs.Clone().Content("d/c")); got != "LATEed" {
		t.Errorf("a clone has %q", got)
	}
	if got := string(fs.CrashTorn(2).Content("d/c")); got != "LAnced" {
		t.Errorf("torn after two bytes the file has %q", got)
	}
	seen := make(map[string]bool)
	for seed := range uint64(50) {
		image := fs.CrashRandomly(rand.New(rand.NewPCG(seed, 0)))
		seen[strings.Join(image.Names(), " ")+string(image.Content("d/c"))] = true
	}
	if len(seen) < 4 {
		t.Errorf("random crashes give only %v", seen)
	}
}

// A failed sync leaves data that can be read and never reaches the disk.
func TestFailedSyncForgets(t *testing.T) {
	fs := &FS{}
	f := create(t, fs, "a")
	if err := fs.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	write(t, f, 0, "lost")
	fs.SetHook(func(op Op) error {
		if op.Kind == Sync {
			return syscall.EIO
		}
		return nil
	})
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	if got := string(fs.Content("a")); got != "lost" {
		t.Errorf("a running system sees %q", got)
	}
	if got := strings.Trim(string(fs.Crash().Content("a")), "\x00"); got != "" {
		t.Errorf("after a crash the file has %q", got)
	}
}

// A sync that was on its way when the power went has synced nothing.
func TestSyncDuringAPowerCutSyncsNothing(t *testing.T) {
	fs := &FS{}
	f := create(t, fs, "a")
	if err := fs.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	write(t, f, 0, "late")
	var image *FS
	fs.SetHook(func(op Op) error {
		if op.Kind == Sync {
			image = fs.CutPower(rand.New(rand.NewPCG(1, 1)))
		}
		return nil
	})
	if err := f.Datasync(); err == nil {
		t.Errorf("a sync succeeded after the power went with %q on the disk", image.Content("a"))
	}
}

func TestFullDiskRefusesBytes(t *testing.T) {
	fs := &FS{}
	fs.SetCapacity(100)
	f := create(t, fs, "a")
	if err := f.Allocate(60); err != nil {
		t.Fatal(err)
	}
	write(t, f, 0, strings.Repeat("x", 60)) // takes nothing more
	g := create(t, fs, "b")
	if err := g.Allocate(41); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Allocate beyond the capacity: %v", err)
	}
	write(t, g, 0, strings.Repeat("x", 40))
	if _, err := g.WriteAt([]byte("y"), 40); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write beyond the capacity: %v", err)
	}
	if err := fs.Remove("a"); err != nil {
		t.Fatal(err)
	}
	write(t, g, 40, "y")
	if fs.Used() != 41 {
		t.Errorf("%d bytes are used", fs.Used())
	}
}
