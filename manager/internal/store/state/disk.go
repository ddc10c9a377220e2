package state

import (
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is the file system that Pebble gets. A directory that cannot be synced makes the state fail: Pebble would panic on
// some of its goroutines.
type disk struct {
	vfs.FS
	s *State
}

// OpenDir implements vfs.FS.
func (d disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return directory{f, d.s, name}, nil
}

// Unwrap implements vfs.FS.
func (d disk) Unwrap() vfs.FS { return d.FS }

type directory struct {
	vfs.File
	s    *State
	name string
}

// Sync implements vfs.File. It does not return after an error, see logger.Fatalf.
func (d directory) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.s.fail(fmt.Errorf("sync of %s: %w", d.name, err))
		runtime.Goexit()
	}
	return nil
}
