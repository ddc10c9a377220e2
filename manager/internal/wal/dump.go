package wal

import (
	"context"
	"fmt"
	"path"
)

// Entry is a record as Dump and InspectOptions.Check get it.
type Entry struct {
	// File is the path of the segment or snapshot. Segment is the segment's number, 0 for a snapshot. Offset is the
	// record's offset in the file in bytes.
	File    string
	Segment uint64
	Offset  int64
	// Sequence number; in a snapshot, the running number of the record.
	Sequence uint64
	// Batch is the sequence number of the first record of this record's group commit; 0 in a snapshot.
	Batch uint64
	// Body is valid during the call.
	Body []byte
	// Replaced is true for a record that the snapshot replaced. Open does not read it.
	Replaced bool
}

// Dump calls fn for the records of the log in dir: first those of the snapshot in force, then those of the segments,
// including the ones that the snapshot replaced. It writes nothing. It returns a *CorruptionError at the first damage,
// an error of fn unchanged, and otherwise fails like Verify.
func Dump(ctx context.Context, dir string, opts InspectOptions, fn func(Entry) error) error {
	opts = opts.withDefaults()
	if err := opts.FS.ProbeLock(path.Join(dir, lockName)); err != nil {
		return err
	}
	files, err := listFiles(opts.FS, dir)
	if err != nil {
		return err
	}
	if files.fresh() {
		if len(files.followers) == 0 {
			return fmt.Errorf("%w: %s", ErrNoLog, dir)
		}
		return nil
	}
	// Missing segments must not hide the records that are there.
	_, _, replaced, missing := files.chain()
	if err := opts.begin(files.id, files.snapshotSeq); err != nil {
		return err
	}
	if files.snapshot != "" {
		if err := dumpSnapshot(ctx, files, opts, fn); err != nil {
			return err
		}
	}
	var buf []byte
	for i, f := range files.segments {
		if buf, err = readSegment(opts.FS, f, buf); err != nil {
			return err
		}
		end, err := scanRecords(buf, segmentHeaderSize, f.header.first, files.id.seed(), func(off int64, r record) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(Entry{f.path, f.number, off, r.seq, r.durableBefore(), r.body, r.seq <= files.snapshotSeq})
		})
		if err != nil {
			return err
		}
		if i < len(replaced) {
			continue // the next open deletes it, damaged or not
		}
		var damage *CorruptionError
		if i == len(files.segments)-1 {
			damage = checkTail(f.path, buf, end, files.followers, files.id.seed())
			if damage == nil {
				damage = shortOfSnapshot(f.path, end, files.snapshotSeq)
			}
		} else if next := files.segments[i+1].header.first; end.next != next {
			damage = sealedDamage(f.path, end, next)
		}
		if damage != nil {
			return damage
		}
	}
	return missing
}

func dumpSnapshot(ctx context.Context, files *dirFiles, opts InspectOptions, fn func(Entry) error) error {
	r, err := openSnapshot(opts.FS, files.snapshot)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.checkName(files); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		off := r.off
		body, ok, err := r.next()
		if err != nil || !ok {
			return err
		}
		if err := fn(Entry{File: files.snapshot, Offset: off, Sequence: uint64(r.records), Body: body}); err != nil {
			return err
		}
	}
}
