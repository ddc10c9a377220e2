package wal

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// A snapshot file is a header of the size of a segment's, then records numbered from 1 in the log's format, then a mark
// that ends the file.
//
// Header: magic 8, version 4, crc 4, id 16, sequence 8, time 8 (Unix
// nanoseconds), keep 8, zero 8. Keep is the sequence number from which records
// stay readable beside the snapshot.

var snapshotMagic = [8]byte{'O', 'N', 'C', 'E', 'S', 'N', 'P', '\n'}

// snapshotBuffer is how many bytes a snapshot writer collects for one write. After each write it asks for writeback. A
// single sync at the end would delay the syncs of the log, and many small syncs would each cost a commit of the file
// system's journal.
const snapshotBuffer = 256 << 10

// maxSnapshotRecord does not depend on Options, so a snapshot can be read with other options than it was written with.
const maxSnapshotRecord = 1 << 30

type snapshotHeader struct {
	id  logID
	seq uint64
	at  time.Time
	// keep is 1 to seq+1, which means that the snapshot replaces all records up to seq.
	keep uint64
}

func (h snapshotHeader) append(dst []byte) []byte {
	return appendHeader(dst, snapshotMagic, h.id, [3]uint64{h.seq, uint64(h.at.UnixNano()), h.keep})
}

func parseSnapshotHeader(b []byte) (snapshotHeader, error) {
	id, fields, err := parseHeader(b, snapshotMagic, "snapshot")
	h := snapshotHeader{id, fields[0], time.Unix(0, int64(fields[1])), fields[2]}
	if err == nil && (h.keep < 1 || h.keep > h.seq+1) {
		err = fmt.Errorf("snapshot header keeps records from sequence %d on, the snapshot is of %d", h.keep, h.seq)
	}
	return h, err
}

// snapshotSeed differs from the log's seed, so a record of the log never passes for one of a snapshot, or the reverse.
func (id logID) snapshotSeed() uint32 {
	return crc32.Update(id.seed(), castagnoli, snapshotMagic[:])
}

// snapshotInfo describes the snapshot in force; zero without one.
type snapshotInfo struct {
	path  string
	seq   uint64
	at    time.Time
	keep  uint64 // as in the header
	bytes int64
}

// fileWriter writes the records of a file in order.
type fileWriter struct {
	file vfs.File
	seed uint32
	off  int64  // where buf begins
	buf  []byte // what is not written yet
	next uint64 // sequence number of the next record
}

func newSnapshotWriter(file vfs.File, h snapshotHeader) fileWriter {
	return fileWriter{file: file, seed: h.id.snapshotSeed(), buf: h.append(nil), next: 1}
}

// add adds a record, which it copies. An empty one would be a mark.
func (w *fileWriter) add(body []byte) error {
	if len(body) == 0 || len(body) > maxSnapshotRecord {
		return fmt.Errorf("%w: %d bytes, allowed are 1 to %d", ErrTooLarge, len(body), maxSnapshotRecord)
	}
	w.buf = appendRecord(w.buf, bodyChecksum(w.seed, body), w.next, 0, body)
	w.next++
	if len(w.buf) < snapshotBuffer {
		return nil
	}
	return w.flush()
}

// mark adds a mark.
func (w *fileWriter) mark() { w.buf = appendRecord(w.buf, w.seed, w.next, 0, nil) }

// flush writes the collected bytes.
func (w *fileWriter) flush() error {
	if err := writeFull(w.file, w.buf, w.off); err != nil {
		return err
	}
	w.file.Writeback(w.off, int64(len(w.buf)))
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// sync makes durable what was added.
func (w *fileWriter) sync() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.file.Datasync()
}

// Snapshot writes a snapshot that replaces all records up to seq for Open: records, which must have exactly the state after
// record seq, each with 1 byte to 1 GiB. Then it deletes the older snapshot, and the segments whose records all come before
// keep, which is 1 to seq+1. The records from keep on stay readable with Records. Records that an earlier snapshot did not
// keep do not come back. seq must have been appended; appends continue meanwhile. The snapshot comes into force only after
// seq is durable. One call runs at a time.
//
// An error may be ctx's, ErrTooLarge, ErrNoSpace, ErrFailed or ErrClosed. After an error the log is unchanged, except that a
// snapshot whose name could not be made durable may remain. The next snapshot, or open, removes it. Files that could not be
// deleted are not an error (see Options.OnUndeleted); the next snapshot or open deletes them, too.
func (l *Log) Snapshot(ctx context.Context, seq, keep uint64, records ...[]byte) error {
	if keep < 1 || keep > seq+1 {
		return fmt.Errorf("wal: keep is %d, it must be 1 to %d", keep, seq+1)
	}
	select {
	case l.snapshotting <- struct{}{}:
		defer func() { <-l.snapshotting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.Err(); err != nil {
		return err
	}
	if seq > l.Last() {
		return fmt.Errorf("%w: %d", ErrSequence, seq)
	}
	l.mu.Lock()
	old, before, closed := l.snapshot, l.stats.logBytes, l.closed
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if seq <= old.seq {
		return nil
	}
	info := snapshotInfo{path: path.Join(l.dir, snapshotName(seq)), seq: seq, at: time.Now(), keep: max(keep, old.keep)}
	if err := l.writeSnapshot(ctx, &info, records); err != nil {
		return orNoSpace(err)
	}
	return l.retire(info, old, before)
}

func (l *Log) writeSnapshot(ctx context.Context, info *snapshotInfo, records [][]byte) error {
	temp := info.path + tempSuffix
	if err := l.fs.Remove(temp); err != nil && !isNotExist(err) {
		return err
	}
	file, err := l.fs.Create(temp)
	if err != nil {
		return err
	}
	w := newSnapshotWriter(file, snapshotHeader{l.id, info.seq, info.at, info.keep})
	for _, r := range records {
		if err == nil {
			err = w.add(r)
		}
	}
	if err == nil {
		w.mark()
		err = w.sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = l.WaitDurable(ctx, info.seq)
	}
	if err == nil {
		err = l.fs.Rename(temp, info.path)
	}
	if err != nil {
		if rmErr := l.fs.Remove(temp); !isNotExist(rmErr) {
			err = errors.Join(err, rmErr)
		}
		return err
	}
	info.bytes = w.off
	// Until the new name is durable a crash may bring the old state back, so nothing may be deleted before.
	err = l.fs.SyncDir(l.dir)
	l.garbage = slices.DeleteFunc(l.garbage, func(p string) bool { return p == info.path })
	if err != nil { // usable after a crash, but not relied on until a later snapshot is durable
		l.garbage = append(l.garbage, info.path)
	}
	return err
}

// retire puts a durable snapshot in force and deletes what it replaced. It keeps the segment that holds the first
// record to keep. It also keeps each segment whose successor is not yet on the disk with header and first record,
// since a log without a segment cannot be opened. before is what LogBytes was when the snapshot began.
func (l *Log) retire(info, old snapshotInfo, before int64) error {
	l.mu.Lock()
	l.snapshot = info
	l.stats.logBytes -= before
	limit := min(info.keep, l.durable.Load())
	n := 0
	for n+1 < len(l.segments) && l.segments[n+1].First <= limit {
		n++
	}
	gone := l.segments[:n]
	l.segments = slices.Clone(l.segments[n:])
	l.mu.Unlock()
	var paths []string
	if old.path != "" {
		paths = append(paths, old.path)
	}
	for _, s := range gone {
		paths = append(paths, path.Join(l.dir, segmentName(s.Number)))
	}
	l.discard(paths)
	return l.fs.SyncDir(l.dir)
}
