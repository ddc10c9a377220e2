// Package faultfs is a file system in memory for tests of the write-ahead log.
// It knows what was synced and what was not, so a test can ask what a machine
// would find after losing power at this moment; it can run full; and it lets
// the test look at, delay or fail every operation.
package faultfs

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
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
	Rename   = "rename"
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
	// Path of the file; of a rename, the old one, and To the new one.
	Path, To string
	// Off and Len of a read or write; Len of an allocation.
	Off, Len int64
}

// Changes tells whether the operation changes anything on the disk.
func (op Op) Changes() bool {
	switch op.Kind {
	case Open, List, Read, Close:
		return false
	}
	return true
}

// ShortWrite as the error of a hook lets a write write N bytes before it fails
// with Err; with a nil Err it claims success.
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

	capacity int64 // 0 is unlimited
	noAlloc  bool
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
}

func (op nameOp) apply(names map[string]*node) {
	if op.del != "" {
		delete(names, op.del)
	}
	if op.set != "" {
		names[op.set] = op.node
	}
}

// SetHook makes fn see each operation before it happens, from the goroutine
// that does it; it may block. An error from fn is the operation's, which then
// has no effect, except that a failed Sync makes the kernel forget that the
// data was not written: it stays readable and never gets durable by itself.
// Each file that is open at the time is told about it, once.
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

// Used is the sum of the space that files take.
func (f *FS) Used() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used()
}

func (f *FS) used() (sum int64) {
	for _, n := range f.names {
		sum += n.space
	}
	return sum
}

// Names lists all files.
func (f *FS) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Content is a copy of a file as a running system sees it, nil when absent.
func (f *FS) Content(name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.names[name]; n != nil {
		return slices.Clone(n.data)
	}
	return nil
}

// SetContent replaces a file, durably.
func (f *FS) SetContent(name string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.init()
	n := &node{data: slices.Clone(data), disk: slices.Clone(data), space: int64(len(data))}
	f.names[name], f.disk[name] = n, n
}

// Delete removes a file, durably.
func (f *FS) Delete(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.names, name)
	delete(f.disk, name)
}

// Clone is a copy of the running system's view, all of it durable.
func (f *FS) Clone() *FS {
	return f.crash(func() bool { return true }, false)
}

// Crash is what is found after a power failure when nothing unsynced was
// written.
func (f *FS) Crash() *FS {
	return f.crash(func() bool { return false }, false)
}

// CrashRandomly is what is found when, of all that was not synced, some
// sectors and some changes of names were written, as rnd decides.
func (f *FS) CrashRandomly(rnd *rand.Rand) *FS {
	odds := rnd.Float64()
	return f.crash(func() bool { return rnd.Float64() < odds }, false)
}

// CrashTorn is what is found when everything was written except that the last
// unsynced bytes of each file end after the first n of them.
func (f *FS) CrashTorn(n int64) *FS {
	left := n
	return f.crash(func() bool { left--; return left >= 0 }, true)
}

// crash builds another FS out of what is durable and what written decides to
// add of the rest, by sectors or, with bytes, byte by byte in which case names
// are all written.
func (f *FS) crash(written func() bool, bytes bool) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &FS{capacity: f.capacity, noAlloc: f.noAlloc}
	out.init()
	names := make(map[string]*node)
	for name, n := range f.disk {
		names[name] = n
	}
	for _, op := range f.queue {
		if bytes || written() {
			op.apply(names)
		}
	}
	// In order, so that the same decisions meet the same files.
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		data := n.crash(written, bytes)
		c := &node{data: data, disk: slices.Clone(data), space: max(n.space, int64(len(data)))}
		out.names[name], out.disk[name] = c, c
	}
	return out
}

func (n *node) crash(written func() bool, bytes bool) []byte {
	out := slices.Clone(n.disk)
	step := int64(sector)
	if bytes {
		step = 1
	}
	if len(n.data) > len(out) && (bytes || written()) {
		out = append(out, make([]byte, len(n.data)-len(out))...)
	}
	for _, s := range n.dirty {
		for off := s.off; off < s.end; {
			end := min(s.end, off-off%step+step)
			if written() && off < int64(len(out)) {
				copy(out[off:min(end, int64(len(out)))], n.data[off:])
			}
			off = end
		}
	}
	return out
}

func (f *FS) init() {
	if f.names == nil {
		f.names, f.disk, f.locks = make(map[string]*node), make(map[string]*node), make(map[string]bool)
	}
}

// before counts the operation and asks the hook about it.
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
func (f *FS) Create(name string) (vfs.File, error) {
	if err := f.before(Op{Kind: Create, Path: name}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	n := &node{}
	f.rename(nameOp{set: name, node: n})
	return &file{fs: f, name: name, node: n, write: true}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, write bool) (vfs.File, error) {
	if err := f.before(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{fs: f, name: name, node: n, write: write, told: len(n.failures)}, nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	if err := f.before(Op{Kind: Rename, Path: oldName, To: newName}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[oldName]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: oldName, Err: fs.ErrNotExist}
	}
	f.rename(nameOp{set: newName, node: n, del: oldName})
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	if err := f.before(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	f.rename(nameOp{del: name})
	return nil
}

// SyncDir implements vfs.FS; it syncs all names.
func (f *FS) SyncDir(dir string) error {
	if err := f.before(Op{Kind: SyncDir, Path: dir}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range f.queue {
		op.apply(f.disk)
	}
	f.queue = nil
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

// grow accounts for a file that gets longer.
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
