package wal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// restore passes the newest snapshot to Options.Restore.
func (l *Log) restore(ctx context.Context, files *dirFiles) error {
	if files.snapshot == "" {
		return l.begin(0)
	}
	r, err := openSnapshot(l.fs, files.snapshot)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.checkName(files); err != nil {
		return err
	}
	if err := l.begin(r.header.seq); err != nil {
		return err
	}
	for {
		rec, ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if r.records%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if l.opts.Restore != nil {
			if err := l.opts.Restore(rec); err != nil {
				return err
			}
		}
	}
	l.snapshot = snapshotInfo{path: files.snapshot, seq: r.header.seq, at: r.header.at, keep: r.header.keep, bytes: r.size}
	l.recovery.SnapshotSequence = r.header.seq
	l.recovery.SnapshotRecords = r.records
	l.recovery.SnapshotBytes = r.size
	return nil
}

// readAhead is how many bytes of a snapshot are read at a time.
const readAhead = 1 << 20

// snapshotReader reads a snapshot from its start to its end.
type snapshotReader struct {
	path    string
	file    vfs.File
	size    int64
	header  snapshotHeader
	seed    uint32
	records int

	buf  []byte
	from int   // in buf: where the next record begins
	off  int64 // in the file: the offset of buf[from]
}

// openSnapshot reads the header.
func openSnapshot(fs vfs.FS, p string) (*snapshotReader, error) {
	file, err := fs.Open(p, false)
	if err != nil {
		return nil, err
	}
	r := &snapshotReader{path: p, file: file}
	if err := r.start(); err != nil {
		_ = file.Close()
		return nil, err
	}
	return r, nil
}

func (r *snapshotReader) start() error {
	var err error
	if r.size, err = r.file.Size(); err != nil {
		return err
	}
	if err := r.fill(int(min(r.size, segmentHeaderSize))); err != nil {
		return err
	}
	if r.header, err = parseSnapshotHeader(r.buf); errors.Is(err, errVersion) {
		return fmt.Errorf("wal: %s: %w", r.path, err)
	} else if err != nil {
		return r.damage(err.Error())
	}
	r.seed = r.header.id.snapshotSeed()
	r.advance(segmentHeaderSize)
	return nil
}

// checkName checks that the header is that of the snapshot in files.
func (r *snapshotReader) checkName(files *dirFiles) error {
	if r.header.seq == files.snapshotSeq {
		return nil
	}
	return &CorruptionError{r.path, 0, 0, fmt.Sprintf("the header is that of the snapshot of sequence %d", r.header.seq)}
}

func (r *snapshotReader) close() { _ = r.file.Close() }

func (r *snapshotReader) damage(reason string) error {
	return &CorruptionError{r.path, r.off, uint64(r.records), reason}
}

// next returns the next record, which is valid until the next call, or false after the last one.
func (r *snapshotReader) next() (body []byte, ok bool, err error) {
	left := r.size - r.off
	if left < recordHeaderSize {
		return nil, false, r.damage(fmt.Sprintf("the snapshot is cut off: %d bytes left, no mark of its end", left))
	}
	if err := r.fill(recordHeaderSize); err != nil {
		return nil, false, err
	}
	length := int64(le.Uint32(r.buf[r.from:]))
	if length > maxSnapshotRecord || length > left-recordHeaderSize {
		return nil, false, r.damage(fmt.Sprintf("record length is %d, allowed are %d, the file has %d bytes left", length, maxSnapshotRecord, left-recordHeaderSize))
	}
	if err := r.fill(recordHeaderSize + int(length)); err != nil {
		return nil, false, err
	}
	rec, err := parseRecord(r.buf[r.from:r.from+recordHeaderSize+int(length)], r.seed)
	if err != nil {
		return nil, false, r.damage(err.Error())
	}
	if want := uint64(r.records) + 1; rec.seq != want {
		return nil, false, r.damage(fmt.Sprintf("record number is %d, expected %d", rec.seq, want))
	}
	if rec.isMark() {
		if left > recordHeaderSize {
			return nil, false, r.damage(fmt.Sprintf("%d bytes follow the end", left-recordHeaderSize))
		}
		return nil, false, nil
	}
	r.advance(rec.size())
	r.records++
	return rec.body, true, nil
}

func (r *snapshotReader) advance(n int) {
	r.from += n
	r.off += int64(n)
}

// fill makes n bytes available at buf[from:]. The caller has checked that the file has them.
func (r *snapshotReader) fill(n int) error {
	have := len(r.buf) - r.from
	if have >= n {
		return nil
	}
	want := min(max(int64(n), readAhead), r.size-r.off)
	next := slices.Grow(r.buf[:0], int(want))[:want]
	// next may be the same array: then the copy moves the rest to the front.
	copy(next, r.buf[r.from:])
	r.buf, r.from = next, 0
	return readFull(r.file, next[have:], r.off+int64(have))
}
