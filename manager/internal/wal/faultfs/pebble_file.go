package faultfs

import (
	"io"
	"os"
	"path"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleFile is a file with a position. Calls of Read and Write must be sequential; a lock would be held while a hook
// blocks.
type pebbleFile struct {
	*file
	pos int64
}

func (f *pebbleFile) Read(b []byte) (int, error) { return f.move(b, f.file.ReadAt) }

func (f *pebbleFile) Write(b []byte) (int, error) { return f.move(b, f.WriteAt) }

// move reads or writes at the position.
func (f *pebbleFile) move(b []byte, do func([]byte, int64) (int, error)) (int, error) {
	n, err := do(b, f.pos)
	f.pos += int64(n)
	if n > 0 && err == io.EOF { // the next Read reports the end
		err = nil
	}
	return n, err
}

// Preallocate reserves space; the file does not grow. A disk without Allocate reserves nothing.
func (f *pebbleFile) Preallocate(offset, length int64) error {
	err := f.enter(Op{Kind: Allocate, Off: offset, Len: length})
	defer f.fs.mu.Unlock()
	if err == nil && !f.fs.noAlloc {
		err = f.fs.grow(f.node, offset+length)
	}
	return f.pathError(Allocate, err)
}

func (f *pebbleFile) Stat() (pebblevfs.FileInfo, error) {
	err := f.enter(Op{Kind: Stat})
	defer f.fs.mu.Unlock()
	if err != nil {
		return nil, f.pathError(Stat, err)
	}
	return info{name: f.name, size: int64(len(f.node.data))}, nil
}

func (f *pebbleFile) Sync() error     { return f.Datasync() }
func (f *pebbleFile) SyncData() error { return f.Datasync() }

// SyncTo makes nothing durable, which is all that its caller can rely on.
func (f *pebbleFile) SyncTo(int64) (bool, error)  { return false, nil }
func (f *pebbleFile) Prefetch(int64, int64) error { return nil }
func (f *pebbleFile) Fd() uintptr                 { return pebblevfs.InvalidFd }

// pebbleDir is an open directory. What only files can do panics.
type pebbleDir struct {
	pebblevfs.File
	fs   *FS
	name string
}

func (d *pebbleDir) Close() error    { return d.fs.before(Op{Kind: Close, Path: d.name}) }
func (d *pebbleDir) Sync() error     { return d.fs.SyncDir(d.name) }
func (d *pebbleDir) SyncData() error { return d.fs.SyncDir(d.name) }
func (d *pebbleDir) Fd() uintptr     { return pebblevfs.InvalidFd }

func (d *pebbleDir) Stat() (pebblevfs.FileInfo, error) {
	if err := d.fs.before(Op{Kind: Stat, Path: d.name}); err != nil {
		return nil, err
	}
	return info{name: d.name, dir: true}, nil
}

// info describes a file or directory.
type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string                 { return path.Base(i.name) }
func (i info) Size() int64                  { return i.size }
func (i info) ModTime() time.Time           { return time.Time{} }
func (i info) IsDir() bool                  { return i.dir }
func (i info) Sys() any                     { return nil }
func (i info) DeviceID() pebblevfs.DeviceID { return pebblevfs.DeviceID{} }

func (i info) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o700
	}
	return 0o600
}
