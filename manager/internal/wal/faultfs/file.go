package faultfs

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

type file struct {
	fs       *FS
	name     string
	node     *node
	write    bool
	closed   bool
	reported int // failed syncs of the node that this open file has reported
}

func (f *file) pathError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// enter calls the hook and then locks the file system.
func (f *file) enter(op Op) error {
	op.Path = f.name
	err := f.fs.before(op)
	f.fs.mu.Lock()
	if err == nil && f.closed {
		err = os.ErrClosed
	}
	return err
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	err := f.enter(Op{Kind: Read, Off: off, Len: int64(len(b))})
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, f.pathError(Read, err)
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	err := f.enter(Op{Kind: Write, Off: off, Len: int64(len(b))})
	defer f.fs.mu.Unlock()
	var short ShortWrite
	if errors.As(err, &short) {
		b, err = b[:min(short.N, len(b))], nil
	}
	if err == nil && !f.write {
		err = fs.ErrPermission
	}
	if err == nil {
		err = f.fs.grow(f.node, off+int64(len(b)))
	}
	if err != nil {
		return 0, f.pathError(Write, err)
	}
	f.node.put(b, off)
	return len(b), f.pathError(Write, short.Err)
}

func (n *node) put(b []byte, off int64) {
	n.data = overwrite(n.data, b, off)
	n.dirty = append(n.dirty, span{off, off + int64(len(b))})
}

// overwrite returns data with b at off. A gap before it is zeros.
func overwrite(data, b []byte, off int64) []byte {
	if gap := off - int64(len(data)); gap > 0 {
		data = append(data, make([]byte, gap)...)
	}
	n := copy(data[off:], b)
	return append(data, b[n:]...)
}

func (f *file) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.node.data)), nil
}

func (f *file) Allocate(size int64) error {
	err := f.enter(Op{Kind: Allocate, Len: size})
	defer f.fs.mu.Unlock()
	if err == nil && f.fs.noAlloc {
		return vfs.ErrNotSupported
	}
	if err == nil {
		err = f.fs.grow(f.node, size)
	}
	if err != nil {
		return f.pathError(Allocate, err)
	}
	if grow := size - int64(len(f.node.data)); grow > 0 {
		f.node.data = append(f.node.data, make([]byte, grow)...)
	}
	return nil
}

func (f *file) Writeback(int64, int64) {}

func (f *file) Datasync() error {
	err := f.enter(Op{Kind: Sync})
	defer f.fs.mu.Unlock()
	n := f.node
	if err == nil && f.fs.off {
		err = errPower
	}
	if err != nil {
		n.dirty = nil
		n.failures = append(n.failures, err)
	}
	if f.reported < len(n.failures) {
		f.reported = len(n.failures)
		return f.pathError(Sync, n.failures[f.reported-1])
	}
	for _, s := range n.dirty {
		n.disk = overwrite(n.disk, n.data[s.off:s.end], s.off)
	}
	n.disk = overwrite(n.disk, nil, int64(len(n.data)))
	n.dirty = nil
	return nil
}

func (f *file) Close() error {
	err := f.enter(Op{Kind: Close})
	defer f.fs.mu.Unlock()
	if err != nil {
		return f.pathError(Close, err)
	}
	f.closed = true
	return nil
}
