package wal

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// Severity of a Complaint.
type Severity int

const (
	// Note is something that a healthy log may have and that the next open repairs, for example a tail that was torn by
	// a crash.
	Note Severity = iota
	// Damage is synced data that cannot be read back. Open fails on it.
	Damage
)

func (s Severity) String() string {
	if s == Damage {
		return "damage"
	}
	return "note"
}

// Complaint is one finding of Verify.
type Complaint struct {
	Severity Severity
	// File is the path of the segment or snapshot. Segment is its number, 0 for a snapshot.
	File    string
	Segment uint64
	// Offset in bytes in the file.
	Offset int64
	// Sequence expected at the offset, 0 when none is.
	Sequence uint64
	Reason   string
}

func (c Complaint) String() string {
	s := fmt.Sprintf("%s: %s: offset %d", c.Severity, c.File, c.Offset)
	if c.Sequence != 0 {
		s += fmt.Sprintf(", sequence %d", c.Sequence)
	}
	return s + ": " + c.Reason
}

// Report is what Verify found.
type Report struct {
	DirStats
	Complaints []Complaint
}

// Damaged reports whether Open would fail on the log.
func (r *Report) Damaged() bool {
	return slices.ContainsFunc(r.Complaints, func(c Complaint) bool { return c.Severity == Damage })
}

// DirStats sums up a data directory.
type DirStats struct {
	// Segments in use, Prepared ones without any record, and the bytes of both.
	Segments, Prepared int
	SegmentBytes       int64
	// Records in the segments, from FirstSequence to LastSequence, and their
	// bytes with headers. Records that the snapshot replaced are included.
	Records                     int
	RecordBytes                 int64
	FirstSequence, LastSequence uint64
	// Batches is the number of group commits that wrote the records. LargestRecord is the largest body in bytes.
	Batches       int
	LargestRecord int
	// TailBytes follow the last record and are not zero: a mark, or the rest of a torn write.
	TailBytes int64
	// Snapshot in force, empty without one.
	Snapshot         string
	SnapshotSequence uint64
	SnapshotRecords  int
	SnapshotBytes    int64
}

// Entry is a record as InspectOptions.Check gets it.
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

// InspectOptions are for Verify. The zero value of a field means its default.
type InspectOptions struct {
	// FS as in Options.
	FS vfs.FS
	// Begin, when set, is called once before any record, with the log's ID and the sequence number of its snapshot, 0
	// without one. It is not called when no file's header can be read. Verify returns its error.
	Begin func(id string, snapshot uint64) error
	// Check, when set, is called for each record that can be read: first those of the snapshot in force, then those of
	// the segments, including the ones that the snapshot replaced. Its error becomes a complaint.
	Check func(Entry) error
}

func (o InspectOptions) withDefaults() InspectOptions {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	return o
}

func (o InspectOptions) begin(id logID, snapshot uint64) error {
	if o.Begin == nil {
		return nil
	}
	return o.Begin(id.String(), snapshot)
}

// Verify reads the whole log in dir and reports everything that is wrong with it. It continues after each damage as
// far as possible, and writes nothing. It returns a *vfs.LockedError while a process has the log open, ErrNoLog, ctx's
// error, or an error of the file system. Damage is not an error.
func Verify(ctx context.Context, dir string, opts InspectOptions) (*Report, error) {
	v := verifier{ctx: ctx, opts: opts.withDefaults(), report: &Report{}, keep: 1}
	if err := v.opts.FS.ProbeLock(path.Join(dir, lockName)); err != nil {
		return nil, err
	}
	names, err := v.opts.FS.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	if !slices.ContainsFunc(names, isLogFile) {
		return nil, fmt.Errorf("%w: %s", ErrNoLog, dir)
	}
	if err := v.snapshots(dir, names); err != nil {
		return nil, err
	}
	if err := v.segments(dir, names); err != nil {
		return nil, err
	}
	return v.report, nil
}

// isLogFile recognizes a segment or snapshot by its name.
func isLogFile(name string) bool {
	_, segment := parseName(name, segmentSuffix)
	_, snapshot := parseName(name, snapshotSuffix)
	return segment || snapshot
}

type verifier struct {
	ctx    context.Context
	opts   InspectOptions
	report *Report

	id   *logID // nil until the first header was read
	keep uint64 // records before it need not be there
	buf  []byte
}

func (v *verifier) complain(s Severity, file string, segment uint64, off int64, seq uint64, format string, args ...any) {
	v.report.Complaints = append(v.report.Complaints, Complaint{s, file, segment, off, seq, fmt.Sprintf(format, args...)})
}

func (v *verifier) snapshots(dir string, names []string) error {
	var paths []string
	for _, name := range names {
		if _, ok := parseName(name, snapshotSuffix); ok {
			paths = append(paths, path.Join(dir, name))
		} else if _, ok := parseName(name, snapshotSuffix+tempSuffix); ok {
			v.complain(Note, path.Join(dir, name), 0, 0, 0, "an unfinished snapshot, to be removed at the next start")
		}
	}
	if len(paths) == 0 {
		return nil
	}
	for _, p := range paths[:len(paths)-1] {
		v.complain(Note, p, 0, 0, 0, "an older snapshot, to be removed at the next start")
	}
	return v.snapshot(paths[len(paths)-1])
}

func (v *verifier) snapshot(p string) error {
	stats := &v.report.DirStats
	r, err := openSnapshot(v.opts.FS, p)
	if err != nil {
		return v.corruption(err, 0)
	}
	defer r.close()
	v.keep = r.header.keep
	if err := v.begin(r.header.id, r.header.seq); err != nil {
		return err
	}
	if path.Base(p) != snapshotName(r.header.seq) {
		v.complain(Damage, p, 0, 0, 0, "the header is that of the snapshot of sequence %d", r.header.seq)
	}
	stats.Snapshot, stats.SnapshotSequence, stats.SnapshotBytes = p, r.header.seq, r.size
	for v.ctx.Err() == nil {
		off := r.off
		body, ok, err := r.next()
		if err != nil {
			return v.corruption(err, 0)
		}
		if !ok {
			stats.SnapshotRecords = r.records
			return nil
		}
		v.check(Entry{File: p, Offset: off, Sequence: uint64(r.records), Body: body})
	}
	return v.ctx.Err()
}

// begin takes the log's ID from the first header.
func (v *verifier) begin(id logID, snapshot uint64) error {
	v.id = &id
	return v.opts.begin(id, snapshot)
}

func (v *verifier) check(e Entry) {
	if v.opts.Check == nil {
		return
	}
	severity := Damage
	if e.Replaced {
		severity = Note
	}
	if err := v.opts.Check(e); err != nil {
		v.complain(severity, e.File, e.Segment, e.Offset, e.Sequence, "the record cannot be used: %v", err)
	}
}

// corruption turns a *CorruptionError into a complaint and returns other errors.
func (v *verifier) corruption(err error, segment uint64) error {
	var c *CorruptionError
	if !errors.As(err, &c) {
		return err
	}
	v.complain(Damage, c.File, segment, c.Offset, c.Sequence, "%s", c.Reason)
	return nil
}
