package wal_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// A file that cannot be deleted costs only its own space: the other files are deleted, the snapshot is in force, and
// each later round tries again.
func TestAFileThatCannotBeDeleted(t *testing.T) {
	fs := &faultfs.FS{}
	opts := options(fs)
	var reported []string
	opts.OnUndeleted = func(path string, err error) {
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: %v", path, err)
		}
		reported = append(reported, path)
	}
	stuck := func() {
		fs.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.Remove && op.Path == segment(1) {
				return syscall.EPERM
			}
			return nil
		})
	}
	l, _ := mustOpen(t, opts)
	stuck()
	round := func(last uint64) {
		t.Helper()
		mustWait(t, l, appendAll(t, l, l.Last()+1, last))
		if err := l.Snapshot(t.Context(), last, last+1, snapshotOf(last)...); err != nil {
			t.Errorf("snapshot of %d: %v", last, err)
		}
		for n := 2; n < int(l.Stats().Segments); n++ {
			if fs.Content(segment(n)) != nil {
				t.Errorf("segment %d is still there: %v", n, fs.Names())
			}
		}
		if countSuffix(fs.Names(), ".snap") != 1 {
			t.Errorf("files are %v", fs.Names())
		}
	}
	check := func(undeleted int, want ...string) {
		t.Helper()
		if n := l.Stats().Undeleted; n != undeleted || !slices.Equal(reported, want) {
			t.Errorf("%d files undeleted, reported %v; want %d, %v", n, reported, undeleted, want)
		}
	}
	round(300)
	check(1, segment(1))
	round(600)
	check(1, segment(1)) // reported once
	mustClose(t, l)

	// A start tries again, too.
	reported = nil
	l, f := mustOpen(t, opts)
	f.wantState(t, 600, 600)
	check(1, segment(1))
	round(900)
	check(1, segment(1))
	fs.SetHook(nil)
	round(1200)
	check(0, segment(1))
	if fs.Content(segment(1)) != nil {
		t.Errorf("the file that can be deleted again is still there: %v", fs.Names())
	}
	mustClose(t, l)
	l, f = mustOpen(t, opts)
	f.wantState(t, 1200, 1200)
	mustClose(t, l)
}

// A prepared segment must be deleted before its number is used again, so a start fails while one cannot be deleted.
func TestAPreparedSegmentThatCannotBeDeleted(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 40))
	if err := l.WaitPrepared(t.Context()); err != nil {
		t.Fatal(err)
	}
	image := fs.Clone()
	mustClose(t, l)
	if image.Content(segment(2)) == nil {
		t.Fatalf("nothing is prepared: %v", image.Names())
	}
	image.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Remove && op.Path == segment(2) {
			return syscall.EPERM
		}
		return nil
	})
	if _, err := wal.Open(t.Context(), dir, options(image)); !errors.Is(err, syscall.EPERM) {
		t.Errorf("opened: %v", err)
	}
	image.SetHook(nil)
	l, f := mustOpen(t, options(image))
	f.wantBodies(t, 1, 40)
	mustClose(t, l)
}
