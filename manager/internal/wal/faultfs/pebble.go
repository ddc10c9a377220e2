package faultfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

// unlimited is the size that a disk without a capacity reports.
const unlimited = 1 << 60

// Pebble returns the disk as a file system for Pebble. It has the same files, hooks and rules of durability. A
// directory exists while it has files.
//
// Changes of names in a directory reach the disk in their order. File systems with a journal do this, and Pebble needs
// it: it creates a manifest and the marker that names it, and removes the marker before it, with one sync of the
// directory after all that.
func (f *FS) Pebble() pebblevfs.FS { return pebbleFS{f} }

type pebbleFS struct{ fs *FS }

// has reports whether a file exists.
func (p pebbleFS) has(name string) bool {
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	return p.fs.names[name] != nil
}

// below lists the paths of the files in a directory and in the directories below it.
func (p pebbleFS) below(dir string) (names []string) {
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	prefix := path.Clean(dir) + "/"
	switch prefix {
	case "//":
		prefix = "/"
	case "./":
		prefix = ""
	}
	for name := range p.fs.names {
		if strings.HasPrefix(name, prefix) && path.IsAbs(name) == path.IsAbs(dir) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Create implements pebblevfs.FS. It removes an existing file first, which is an operation of its own.
func (p pebbleFS) Create(name string, _ pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	name = path.Clean(name)
	if p.has(name) {
		if err := p.fs.remove(name, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	f, err := p.fs.create(name, true)
	if err != nil {
		return nil, err
	}
	return &pebbleFile{file: f}, nil
}

// Link implements pebblevfs.FS.
func (p pebbleFS) Link(oldName, newName string) error {
	oldName, newName = path.Clean(oldName), path.Clean(newName)
	f := p.fs
	if err := f.before(Op{Kind: Link, Path: oldName, To: newName}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.names[oldName], error(nil)
	switch {
	case n == nil:
		err = fs.ErrNotExist
	case f.names[newName] != nil:
		err = fs.ErrExist
	default:
		f.rename(nameOp{set: newName, node: n, ordered: true})
		return nil
	}
	return &os.LinkError{Op: Link, Old: oldName, New: newName, Err: err}
}

// Open implements pebblevfs.FS.
func (p pebbleFS) Open(name string, opts ...pebblevfs.OpenOption) (pebblevfs.File, error) {
	return p.open(name, false, opts)
}

// OpenReadWrite implements pebblevfs.FS.
func (p pebbleFS) OpenReadWrite(name string, c pebblevfs.DiskWriteCategory, opts ...pebblevfs.OpenOption) (pebblevfs.File, error) {
	if !p.has(path.Clean(name)) {
		return p.Create(name, c)
	}
	return p.open(name, true, opts)
}

func (p pebbleFS) open(name string, write bool, opts []pebblevfs.OpenOption) (pebblevfs.File, error) {
	f, err := p.fs.open(path.Clean(name), write)
	if err != nil {
		return nil, err
	}
	out := &pebbleFile{file: f}
	for _, o := range opts {
		o.Apply(out)
	}
	return out, nil
}

// OpenDir implements pebblevfs.FS. It opens any directory, also one without files.
func (p pebbleFS) OpenDir(name string) (pebblevfs.File, error) {
	name = path.Clean(name)
	if err := p.fs.before(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	return &pebbleDir{fs: p.fs, name: name}, nil
}

// Remove implements pebblevfs.FS.
func (p pebbleFS) Remove(name string) error {
	name = path.Clean(name)
	if !p.has(name) && len(p.below(name)) > 0 {
		return &fs.PathError{Op: Remove, Path: name, Err: syscall.ENOTEMPTY}
	}
	return p.fs.remove(name, true)
}

// RemoveAll implements pebblevfs.FS; each file is an operation.
func (p pebbleFS) RemoveAll(name string) error {
	names := p.below(name)
	if name = path.Clean(name); p.has(name) {
		names = append(names, name)
	}
	var first error
	for _, name := range names {
		if err := p.fs.remove(name, true); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Rename implements pebblevfs.FS.
func (p pebbleFS) Rename(oldName, newName string) error {
	return p.fs.move(path.Clean(oldName), path.Clean(newName), true)
}

// ReuseForWrite implements pebblevfs.FS.
func (p pebbleFS) ReuseForWrite(oldName, newName string, c pebblevfs.DiskWriteCategory) (pebblevfs.File, error) {
	if err := p.Rename(oldName, newName); err != nil {
		return nil, err
	}
	return p.OpenReadWrite(newName, c)
}

// MkdirAll implements pebblevfs.FS; directories are not modelled.
func (p pebbleFS) MkdirAll(string, os.FileMode) error { return nil }

// Lock implements pebblevfs.FS. It creates the file when there is none.
func (p pebbleFS) Lock(name string) (io.Closer, error) {
	name = path.Clean(name)
	l, err := p.fs.Lock(name)
	if err != nil {
		return nil, err
	}
	f, err := p.OpenReadWrite(name, pebblevfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// List implements pebblevfs.FS. The names include directories.
func (p pebbleFS) List(dir string) ([]string, error) {
	if err := p.fs.before(Op{Kind: List, Path: path.Clean(dir)}); err != nil {
		return nil, err
	}
	if p.has(path.Clean(dir)) {
		return nil, &fs.PathError{Op: List, Path: dir, Err: syscall.ENOTDIR}
	}
	prefix := strings.TrimSuffix(path.Join(dir, "x"), "x")
	var names []string
	for _, name := range p.below(dir) {
		name, _, _ = strings.Cut(strings.TrimPrefix(name, prefix), "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Stat implements pebblevfs.FS.
func (p pebbleFS) Stat(name string) (pebblevfs.FileInfo, error) {
	name = path.Clean(name)
	if err := p.fs.before(Op{Kind: Stat, Path: name}); err != nil {
		return nil, err
	}
	if len(p.below(name)) > 0 {
		return info{name: name, dir: true}, nil
	}
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	n := p.fs.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: Stat, Path: name, Err: fs.ErrNotExist}
	}
	return info{name: name, size: int64(len(n.data))}, nil
}

// GetDiskUsage implements pebblevfs.FS. Without a capacity the disk is larger than any test needs.
func (p pebbleFS) GetDiskUsage(string) (pebblevfs.DiskUsage, error) {
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	total, used := p.fs.capacity, p.fs.used()
	if total == 0 {
		total = unlimited
	}
	return pebblevfs.DiskUsage{AvailBytes: uint64(max(0, total-used)), TotalBytes: uint64(total), UsedBytes: uint64(used)}, nil
}

func (pebbleFS) PathBase(p string) string       { return path.Base(p) }
func (pebbleFS) PathJoin(elem ...string) string { return path.Join(elem...) }
func (pebbleFS) PathDir(p string) string        { return path.Dir(p) }
func (pebbleFS) Unwrap() pebblevfs.FS           { return nil }
