package wal

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// dirFiles lists the files of a data directory.
type dirFiles struct {
	id           logID
	segments     []segmentFile // with a header, by number
	followers    []follower    // after them, without one
	snapshot     string        // path of the newest snapshot, empty without one
	snapshotSeq  uint64
	keep         uint64 // records from here on are in segments; 1 without a snapshot
	oldSnapshots []string
	temps        []string
}

type segmentFile struct {
	number uint64
	path   string
	size   int64
	header segmentHeader
}

// follower is a segment without a valid header after the last one that has a header. It was only prepared, or the
// write of its header was torn.
type follower struct {
	path string
	why  error
	buf  []byte
}

func (f follower) empty() bool { return len(f.buf) == 0 }

// fresh reports that nothing was ever appended here.
func (d *dirFiles) fresh() bool { return len(d.segments) == 0 && d.snapshot == "" }

// listFiles reads the names and headers in dir. It ignores files whose names are not those of a log's files.
func listFiles(fs vfs.FS, dir string) (*dirFiles, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	d := &dirFiles{keep: 1}
	var numbers []uint64
	for _, name := range names {
		p := path.Join(dir, name)
		if n, ok := parseName(name, segmentSuffix); ok {
			numbers = append(numbers, n)
		} else if seq, ok := parseName(name, snapshotSuffix); ok {
			if d.snapshot != "" {
				d.oldSnapshots = append(d.oldSnapshots, d.snapshot)
			}
			d.snapshot, d.snapshotSeq = p, seq
		} else if _, ok := parseName(name, snapshotSuffix+tempSuffix); ok {
			d.temps = append(d.temps, p)
		}
	}
	if d.snapshot != "" {
		r, err := openSnapshot(fs, d.snapshot)
		if err != nil {
			return nil, err
		}
		r.close()
		d.id, d.keep = r.header.id, min(r.header.keep, d.snapshotSeq+1)
	}
	return d, d.addSegments(fs, dir, numbers)
}

// addSegments reads the headers of the segments and checks that they belong to one log. It does not look for missing
// segments; chain does, because a crash may have deleted only some of those that a snapshot replaced.
func (d *dirFiles) addSegments(fs vfs.FS, dir string, numbers []uint64) error {
	var invalid []follower
	for _, n := range numbers {
		p := path.Join(dir, segmentName(n))
		f, why, err := readSegmentHeader(fs, p)
		if err != nil {
			return err
		}
		if why != nil {
			if errors.Is(why, errVersion) {
				return fmt.Errorf("wal: %s: %w", p, why)
			}
			invalid = append(invalid, follower{path: p, why: why})
			continue
		}
		if len(invalid) > 0 { // the invalid one is not after all others
			bad := invalid[0]
			return &CorruptionError{bad.path, 0, 0, fmt.Sprintf("%v; segment %d is in use", bad.why, n)}
		}
		f.number = n
		if f.header.number != n {
			return &CorruptionError{p, 0, 0, fmt.Sprintf("the header is that of segment %d", f.header.number)}
		}
		if f.size < f.header.capacity {
			return &CorruptionError{p, f.size, 0, fmt.Sprintf("the file has %d bytes, it was created with %d", f.size, f.header.capacity)}
		}
		if d.fresh() {
			d.id = f.header.id
		}
		if f.header.id != d.id {
			return &CorruptionError{p, 0, 0, "the segment belongs to another log"}
		}
		d.segments = append(d.segments, f)
	}
	for _, f := range invalid {
		buf, err := readAll(fs, f.path, nil)
		if err != nil {
			return err
		}
		f.buf = trim(buf)
		if d.fresh() && usedLength(f.buf) > segmentHeaderSize {
			// The first header is synced before anything else is written.
			return &CorruptionError{f.path, 0, 0, f.why.Error() + "; there is data after it"}
		}
		d.followers = append(d.followers, f)
	}
	return nil
}

// chain splits the segments into three: those with records after the snapshot, and the active one; those before them
// that are kept for readers; and those that the snapshot replaced.
func (d *dirFiles) chain() (used, kept, obsolete []segmentFile, err error) {
	first, from := -1, -1 // of used, of kept
	for i, f := range d.segments {
		if f.header.first <= d.snapshotSeq+1 {
			first = i
		}
		if f.header.first <= d.keep {
			from = i
		}
		if i > 0 && f.header.first < d.segments[i-1].header.first {
			return nil, nil, nil, &CorruptionError{f.path, 0, f.header.first, fmt.Sprintf("the segment before begins with sequence %d", d.segments[i-1].header.first)}
		}
	}
	if from < 0 {
		p := d.snapshot
		reason := fmt.Sprintf("no segment holds sequence %d, which follows the snapshot", d.keep)
		if len(d.segments) > 0 {
			p = d.segments[0].path
			reason = fmt.Sprintf("segments before it are missing: sequence %d is expected first", d.keep)
		}
		return nil, nil, nil, &CorruptionError{p, 0, d.keep, reason}
	}
	for i, f := range d.segments[from+1:] {
		if want := d.segments[from+i].number + 1; f.number != want {
			missing := path.Join(path.Dir(f.path), segmentName(want))
			return nil, nil, nil, &CorruptionError{missing, 0, 0, fmt.Sprintf("the segment is missing, segment %d is there", f.number)}
		}
	}
	return d.segments[first:], d.segments[from:first], d.segments[:from], nil
}

// readSegmentHeader returns in why the reason that p has no usable header.
func readSegmentHeader(fs vfs.FS, p string) (f segmentFile, why, err error) {
	file, err := fs.Open(p, false)
	if err != nil {
		return f, nil, err
	}
	defer file.Close()
	f.path = p
	if f.size, err = file.Size(); err != nil {
		return f, nil, err
	}
	b := make([]byte, min(f.size, segmentHeaderSize))
	if err := readFull(file, b, 0); err != nil {
		return f, nil, err
	}
	f.header, why = parseSegmentHeader(b)
	return f, why, nil
}

// readSegment reads a segment into buf, which it enlarges if necessary.
func readSegment(fs vfs.FS, f segmentFile, buf []byte) ([]byte, error) {
	buf, err := readAll(fs, f.path, buf)
	if err != nil {
		return nil, err
	}
	if int64(len(buf)) < f.header.capacity {
		return nil, &CorruptionError{f.path, int64(len(buf)), 0, "the file became shorter"}
	}
	return buf[:f.header.capacity], nil
}

func readAll(fs vfs.FS, p string, buf []byte) ([]byte, error) {
	file, err := fs.Open(p, false)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size > maxSegmentBytes {
		return nil, &CorruptionError{p, maxSegmentBytes, 0, fmt.Sprintf("the file has %d bytes, a segment has at most %d", size, maxSegmentBytes)}
	}
	buf = slices.Grow(buf[:0], int(size))[:size]
	return buf, readFull(file, buf, 0)
}

// readFull is ReadAt, but the end of the file is an error only if it leaves b partly unfilled.
func readFull(f vfs.File, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
