package wal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"path"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// Importer writes the files of a new log that is a copy of another one, with an id of its
// own. Its owner calls Snapshot, if there is one, then Segment for each segment in order, each
// followed by Append for its records in order, and Finish. After an error the directory must
// not be used.
//
// At least one segment is needed, even an empty one: a log without a segment cannot be
// opened.
type Importer struct {
	fs  vfs.FS
	dir string
	id  logID

	fileWriter        // of the file that is being written; file is nil if none is
	capacity   int64  // of that file
	number     uint64 // of the segment, 0 before the first one
}

// NewImporter starts a log in dir, which must exist and be empty. A nil fs means vfs.OS().
func NewImporter(fs vfs.FS, dir string) (*Importer, error) {
	if fs == nil {
		fs = vfs.OS()
	}
	im := &Importer{fs: fs, dir: dir}
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("wal: %s is not empty: it holds %s", dir, names[0])
	}
	if _, err := rand.Read(im.id[:]); err != nil {
		return nil, err
	}
	return im, nil
}

// Snapshot begins the snapshot that replaces the records up to seq.
func (im *Importer) Snapshot(seq uint64, at time.Time) error {
	file, err := im.fs.Create(path.Join(im.dir, snapshotName(seq)))
	if err != nil {
		return err
	}
	im.fileWriter, im.capacity = newSnapshotWriter(file, snapshotHeader{im.id, seq, at, seq + 1}), math.MaxInt64
	return nil
}

// Segment ends the previous file and begins a segment whose first record has sequence number
// first, which must follow the last record. Segment numbers must grow by one.
func (im *Importer) Segment(number, first uint64, capacity int64) error {
	if capacity < minSegmentBytes || capacity > maxSegmentBytes || first == 0 || number == 0 {
		return fmt.Errorf("wal: segment %d with first sequence %d and capacity %d", number, first, capacity)
	}
	if im.number != 0 && (first != im.next || number != im.number+1) {
		return fmt.Errorf("wal: segment %d with first sequence %d follows segment %d, which ends before %d", number, first, im.number, im.next)
	}
	if err := im.end(); err != nil {
		return err
	}
	file, err := im.fs.Create(path.Join(im.dir, segmentName(number)))
	if err != nil {
		return err
	}
	im.fileWriter = fileWriter{file: file, seed: im.id.seed(), buf: segmentHeader{im.id, number, first, capacity}.append(im.buf[:0]), next: first}
	im.capacity, im.number = capacity, number
	if err := file.Allocate(capacity); errors.Is(err, vfs.ErrNotSupported) {
		for at := int64(0); at < capacity; at += fillChunk {
			if err := writeFull(file, zeros[:min(fillChunk, capacity-at)], at); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	return nil
}

// Append adds the next record to the snapshot or to the segment, which must have room for it.
func (im *Importer) Append(body []byte) error {
	if im.file == nil || im.off+int64(len(im.buf)+recordHeaderSize+len(body)) > im.capacity {
		return fmt.Errorf("wal: segment %d has no room for a record of %d bytes", im.number, len(body))
	}
	return im.add(body)
}

// end completes and syncs what is being written.
func (im *Importer) end() error {
	if im.file == nil {
		return nil
	}
	if im.off+int64(len(im.buf)+recordHeaderSize) <= im.capacity {
		im.mark()
	}
	err := im.sync()
	err = errors.Join(err, im.file.Close())
	im.file = nil
	return err
}

// Finish makes everything durable.
func (im *Importer) Finish() error {
	if err := im.end(); err != nil {
		return err
	}
	return im.fs.SyncDir(im.dir)
}

// Abort closes what is open.
func (im *Importer) Abort() {
	if im.file != nil {
		_ = im.file.Close()
		im.file = nil
	}
}
