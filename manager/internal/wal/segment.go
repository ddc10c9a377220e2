package wal

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// fillChunk is how many bytes the preparer writes while it holds the segment's lock, which may delay the committer.
const fillChunk = 256 << 10

var zeros [fillChunk]byte

// segment is an open segment file: prepared (reserved and empty), active, or full and about to be closed.
type segment struct {
	number   uint64
	path     string
	capacity int64
	file     vfs.File

	// filled is the length of the prefix that has been written, by records or with zeros. The preparer writes zeros
	// ahead of the tail, because overwriting blocks that hold data makes fdatasync much cheaper: the first write into
	// reserved space also has to record that the blocks are in use.
	filled atomic.Int64

	mu     sync.Mutex // serializes fill with claim and close
	closed bool
}

// claim announces a write up to offset end, so that fill never overwrites it.
func (s *segment) claim(end int64) {
	if s.filled.Load() >= end {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filled.Load() < end {
		s.filled.Store(end)
	}
}

// fill writes zeros up to target and syncs them. It works in chunks, and claim may run between two of them. It does
// nothing once the segment is closed.
//
// It opens the file for itself. The system reports a failed write once to each open file. With a shared one, the sync
// of fill could consume the error, and the committer would not learn that its records never reached the disk.
func (s *segment) fill(fs vfs.FS, target int64) error {
	target = min(target, s.capacity)
	file, err := s.openToFill(fs, target)
	if file == nil || err != nil {
		return err
	}
	for {
		done, err := s.fillOnce(file, target)
		if err != nil {
			return errors.Join(err, file.Close())
		}
		if done {
			break
		}
	}
	return errors.Join(file.Datasync(), file.Close())
}

// openToFill returns nil when there is nothing to fill. It holds the lock, so the segment is neither closed nor,
// therefore, deleted meanwhile.
func (s *segment) openToFill(fs vfs.FS, target int64) (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.filled.Load() >= target {
		return nil, nil
	}
	return fs.Open(s.path, true)
}

func (s *segment) fillOnce(file vfs.File, target int64) (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.filled.Load()
	if s.closed || from >= target {
		return true, nil
	}
	n := min(target-from, fillChunk)
	if err := writeFull(file, zeros[:n], from); err != nil {
		return false, err
	}
	s.filled.Store(from + n)
	return false, nil
}

func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.file.Close()
}

// createSegment creates an empty segment file, reserves its space and makes it durable. Its number must not be in use.
func createSegment(fs vfs.FS, dir string, number uint64, capacity int64) (*segment, error) {
	s := &segment{number: number, path: path.Join(dir, segmentName(number)), capacity: capacity}
	// An earlier try may have failed to remove its file.
	if err := fs.Remove(s.path); err != nil && !isNotExist(err) {
		return nil, err
	}
	f, err := fs.Create(s.path)
	if err != nil {
		return nil, err
	}
	s.file = f
	err = s.reserve(fs)
	if err == nil {
		err = f.Datasync()
	}
	if err == nil {
		err = fs.SyncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(err, s.close(), fs.Remove(s.path))
	}
	return s, nil
}

// reserve allocates the disk space of the whole segment. Where the file system cannot allocate, it writes zeros.
func (s *segment) reserve(fs vfs.FS) error {
	err := s.file.Allocate(s.capacity)
	if errors.Is(err, vfs.ErrNotSupported) {
		return s.fill(fs, s.capacity)
	}
	return err
}

// writeFull is WriteAt that turns a short write without an error into an error.
func writeFull(f vfs.File, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = errShortWrite
	}
	return err
}

var errShortWrite = errors.New("short write")
