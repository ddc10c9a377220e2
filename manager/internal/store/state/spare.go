package state

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The spare file takes room that the list of files may need on a full disk, where Pebble cannot continue without it. Open
// gives the room back (removeParts), and so does a write of the list that finds none. No table is taken in without it.
const (
	spareFile  = "spare" + partSuffix
	spareBytes = 1 << 20
	spareStep  = 16 << 10
	// spareLeast is how large it must be before a table is taken in. A change of the list takes some hundred bytes.
	spareLeast = 64 << 10
)

// zeros is the spare file's content, which no start has to allocate.
var zeros [spareBytes]byte

type spare struct {
	mu    sync.Mutex
	bytes int // of the file; 0: there is none
}

// fillSpare writes the spare file unless it is large enough, as much of it as there is room for. It returns ENOSPC, wrapped,
// if that is not enough.
func (s *State) fillSpare() error {
	s.spare.mu.Lock()
	defer s.spare.mu.Unlock()
	if s.spare.bytes >= spareLeast {
		return nil
	}
	f, err := s.fs.Create(s.fs.PathJoin(s.dir, spareFile), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	zeros := zeros[:]
	for step := spareBytes; len(zeros) > 0 && step >= spareStep; {
		n, err := f.Write(zeros[:min(step, len(zeros))])
		if zeros = zeros[n:]; err != nil {
			step /= 2 // there may be room for less
		}
	}
	_ = f.Sync()
	_ = f.Close()
	if d, err := s.fs.OpenDir(s.dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	if s.spare.bytes = spareBytes - len(zeros); s.spare.bytes < spareLeast {
		return fmt.Errorf("there is no room for a change of the list of files: %w", syscall.ENOSPC)
	}
	return nil
}

// dropSpare removes the spare file, and reports whether there was one.
func (s *State) dropSpare() bool {
	s.spare.mu.Lock()
	defer s.spare.mu.Unlock()
	had := s.spare.bytes > 0
	s.spare.bytes = 0
	return had && s.fs.Remove(s.fs.PathJoin(s.dir, spareFile)) == nil
}

// isFull reports whether an error is a full disk, or a quota that is used up.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Create implements vfs.FS. The list of files may use the room of the spare file.
func (d disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	if err == nil && strings.HasPrefix(d.PathBase(name), "MANIFEST-") {
		f = fileList{f, d.s}
	}
	return f, err
}

// fileList is Pebble's list of files.
type fileList struct {
	vfs.File
	s *State
}

// Write implements vfs.File. After a write that needed the spare file's room, the file takes what is left: a compaction may
// change the list before the next table does.
func (l fileList) Write(p []byte) (int, error) {
	n, err := l.File.Write(p)
	if !isFull(err) || !l.s.dropSpare() {
		return n, err
	}
	more, err := l.File.Write(p[n:])
	if err == nil {
		_ = l.s.fillSpare() // the next table finds out
	}
	return n + more, err
}
