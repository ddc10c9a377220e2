// Package faultfs is an in-memory file system for tests of the write-ahead log. It knows which data was synced, so a
// test can ask what a machine would find after losing power at this moment. It can run out of space, and a test can
// observe, delay or fail every operation.
package faultfs

import (
	"cmp"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// sector is the unit that a disk writes in one go.
const sector = 512

// Kinds of operations.
const (
	Create   = "create"
	Open     = "open"
	Stat     = "stat"
	Rename   = "rename"
	Link     = "link"
	Remove   = "remove"
	SyncDir  = "syncdir"
	List     = "list"
	Read     = "read"
	Write    = "write"
	Sync     = "sync"
	Allocate = "allocate"
	Close    = "close"
)

// Op is an operation that is about to happen.
type Op struct {
	// N counts the operations from 1.
	N    int
	Kind string
	// Path of the file. For a rename or link, Path is the old name and To the new one.
	Path, To string
	// Off and Len of a read or write; Len of an allocation.
	Off, Len int64
}

// Changes reports whether the operation changes anything on the disk.
func (op Op) Changes() bool {
	switch op.Kind {
	case Open, Stat, List, Read, Close:
		return false
	}
	return true
}

// ShortWrite is an error for a hook to return: the write stores N bytes and then fails with Err. With a nil Err it
// reports N bytes and no error.
type ShortWrite struct {
	N   int
	Err error
}

func (ShortWrite) Error() string { return "short write" }

// FS implements vfs.FS. The zero value is an empty disk of unlimited size.
type FS struct {
	mu    sync.Mutex
	hook  func(Op) error
	ops   int
	names map[string]*node // what a running system sees
	disk  map[string]*node // what is durable of that
	queue []nameOp         // what makes the one the other
	locks map[string]bool

	capacity int64  // 0 is unlimited
	strict   string // see SetStrict
	noAlloc  bool
	off      bool // see CutPower
}

var _ vfs.FS = (*FS)(nil)

// node is a file.
type node struct {
	data  []byte // what a running system sees
	disk  []byte // what is durable
	dirty []span // of data, written and not synced
	space int64  // reserved or written

	failures []error // of syncs
}

type span struct{ off, end int64 }

// nameOp is a change of names that is not durable yet.
type nameOp struct {
	set  string
	node *node
	del  string
	// ordered keeps the change from reaching the disk before an earlier one of the same directory.
	ordered bool
}

// dir is the directory of which a sync makes the change durable.
func (op nameOp) dir() string { return path.Dir(cmp.Or(op.set, op.del)) }

func (op nameOp) apply(names map[string]*node) {
	if op.del != "" {
		delete(names, op.del)
	}
	if op.set != "" {
		names[op.set] = op.node
	}
}

// SetHook calls fn before each operation, on the goroutine that does it; fn may block. An error from fn becomes the
// operation's error, and the operation then has no effect. A failed Sync is the exception: as in Linux, the data stays
// readable, is no longer considered dirty, and never becomes durable by itself. Each file that is open at that moment
// reports the failure once.
func (f *FS) SetHook(fn func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// SetCapacity limits the bytes of all files; 0 removes the limit.
func (f *FS) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes
}

// WithoutAllocate makes Allocate unsupported.
func (f *FS) WithoutAllocate() *FS {
	f.noAlloc = true
	return f
}

// Used returns the sum of the space of all files.
func (f *FS) Used() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used()
}

func (f *FS) used() (sum int64) {
	seen := make(map[*node]bool, len(f.names)) // a file can have several names
	for _, n := range f.names {
		if !seen[n] {
			sum += n.space
		}
		seen[n] = true
	}
	return sum
}

// Names lists all files.
func (f *FS) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.names))
}

// Content returns a copy of a file as a running system sees it, nil when absent.
func (f *FS) Content(name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.names[name]; n != nil {
		return slices.Clone(n.data)
	}
	return nil
}

// SetContent replaces a file, durably. Files that are open keep their content; Flip changes it.
func (f *FS) SetContent(name string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.init()
	n := &node{data: slices.Clone(data), disk: slices.Clone(data), space: int64(len(data))}
	f.names[name], f.disk[name] = n, n
}

// Flip inverts the bits of mask in the byte at off of a file, durably. Files that are open see it. Flip panics when the
// file has no such byte.
func (f *FS) Flip(name string, off int64, mask byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[name]
	n.data[off] ^= mask
	if off < int64(len(n.disk)) {
		n.disk[off] ^= mask
	}
}

// Delete removes a file, durably.
func (f *FS) Delete(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.names, name)
	delete(f.disk, name)
}

func (f *FS) init() {
	if f.names == nil {
		f.names, f.disk, f.locks = make(map[string]*node), make(map[string]*node), make(map[string]bool)
	}
}

// before counts the operation and calls the hook.
func (f *FS) before(op Op) error {
	f.mu.Lock()
	f.init()
	f.ops++
	op.N = f.ops
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op)
}

func (f *FS) rename(op nameOp) {
	op.apply(f.names)
	f.queue = append(f.queue, op)
}

// MkdirAll implements vfs.FS; directories are not modelled.
func (f *FS) MkdirAll(string) error { return nil }

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	if err := f.before(Op{Kind: List, Path: dir}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.names {
		if path.Dir(name) == path.Clean(dir) {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) { return orNil(f.create(name, false)) }

// orNil keeps a nil file from becoming a vfs.File that is not nil.
func orNil(out *file, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (f *FS) create(name string, ordered bool) (*file, error) {
	if err := f.before(Op{Kind: Create, Path: name}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	n := &node{}
	f.rename(nameOp{set: name, node: n, ordered: ordered})
	return &file{fs: f, name: name, node: n, write: true}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, write bool) (vfs.File, error) { return orNil(f.open(name, write)) }

func (f *FS) open(name string, write bool) (*file, error) {
	if err := f.before(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{fs: f, name: name, node: n, write: write, reported: len(n.failures)}, nil
}

// Rename implements vfs.FS. Renames from one directory to another are not modelled.
func (f *FS) Rename(oldName, newName string) error { return f.move(oldName, newName, false) }

func (f *FS) move(oldName, newName string, ordered bool) error {
	if err := f.before(Op{Kind: Rename, Path: oldName, To: newName}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[oldName]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: oldName, Err: fs.ErrNotExist}
	}
	if path.Dir(oldName) != path.Dir(newName) {
		return &fs.PathError{Op: "rename", Path: oldName, Err: syscall.EXDEV}
	}
	if f.names[newName] == n { // POSIX wants both names to stay
		return nil
	}
	f.rename(nameOp{set: newName, node: n, del: oldName, ordered: ordered})
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error { return f.remove(name, false) }

func (f *FS) remove(name string, ordered bool) error {
	if err := f.before(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	f.rename(nameOp{del: name, ordered: ordered})
	return nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	if err := f.before(Op{Kind: SyncDir, Path: dir}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return errPower
	}
	f.queue = slices.DeleteFunc(f.queue, func(op nameOp) bool {
		if op.dir() != path.Clean(dir) {
			return false
		}
		op.apply(f.disk)
		return true
	})
	return nil
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.init()
	if f.locks[name] {
		return nil, &vfs.LockedError{Path: name, PID: os.Getpid()}
	}
	f.locks[name] = true
	return &lock{f, name}, nil
}

// ProbeLock implements vfs.FS.
func (f *FS) ProbeLock(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks[name] {
		return &vfs.LockedError{Path: name, PID: os.Getpid()}
	}
	return nil
}

type lock struct {
	fs   *FS
	name string
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.name)
	return nil
}

// grow reserves the space that a file needs to reach size.
func (f *FS) grow(n *node, size int64) error {
	more := size - n.space
	if more <= 0 {
		return nil
	}
	if f.capacity > 0 && f.used()+more > f.capacity {
		return syscall.ENOSPC
	}
	n.space = size
	return nil
}
