package wal

import (
	"errors"
	"fmt"
	"path"
)

// segments checks the chain of segments and their contents.
func (v *verifier) segments(dir string, names []string) error {
	all, lastUsed, err := v.list(dir, names)
	if err != nil {
		return err
	}
	if lastUsed < 0 {
		if stats := &v.report.DirStats; stats.Snapshot != "" {
			v.complain(Damage, stats.Snapshot, 0, 0, stats.SnapshotSequence+1, "no segment holds the sequence that follows the snapshot")
		}
	}
	for i, s := range all {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		if i > 0 && i <= lastUsed && s.number != all[i-1].number+1 {
			v.complain(all[i-1].severity(), s.path, s.number, 0, 0, "segments %d to %d are missing", all[i-1].number+1, s.number-1)
		}
		if v.buf, err = readAll(v.opts.FS, s.path, v.buf); err != nil {
			if err = v.corruption(err, s.number); err != nil {
				return err
			}
			continue
		}
		v.report.SegmentBytes += int64(len(v.buf))
		used := usedLength(v.buf)
		switch {
		case s.why == nil:
			err = v.used(all, i, lastUsed)
		case i < lastUsed:
			v.complain(Damage, s.path, s.number, 0, 0, "%v", s.why)
		case lastUsed < 0 && used > segmentHeaderSize:
			v.complain(Damage, s.path, s.number, 0, 0, "%v; there is data after it", s.why)
		default:
			v.report.Prepared++
			if used > 0 {
				v.complain(Note, s.path, s.number, 0, 0, "%v; nothing in it was acknowledged", s.why)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// verifiedSegment is a segment file with its header, or the reason that it has none.
type verifiedSegment struct {
	segmentFile
	why error
	// replaced is true when the snapshot replaced this segment and all before it. Open reads only its header, and
	// deletes it.
	replaced bool
}

// severity is that of a complaint about anything after the header.
func (s *verifiedSegment) severity() Severity {
	if s.replaced {
		return Note
	}
	return Damage
}

// list reads the headers. lastUsed is the index of the last segment with a valid header, -1 if there is none.
func (v *verifier) list(dir string, names []string) (all []verifiedSegment, lastUsed int, err error) {
	lastUsed = -1
	for _, name := range names {
		n, ok := parseName(name, segmentSuffix)
		if !ok {
			continue
		}
		f, why, err := readSegmentHeader(v.opts.FS, path.Join(dir, name))
		if err != nil {
			return nil, 0, err
		}
		if errors.Is(why, errVersion) {
			return nil, 0, fmt.Errorf("wal: %s: %w", f.path, why)
		}
		f.number = n
		if why == nil {
			lastUsed = len(all)
		}
		all = append(all, verifiedSegment{segmentFile: f, why: why})
	}
	for i := lastUsed; i > 0; i-- {
		if all[i].why == nil && all[i].header.first <= v.keep {
			for j := range i {
				all[j].replaced = true
			}
			break
		}
	}
	return all, lastUsed, nil
}

// used checks all[i], a segment with a header, whose content is in v.buf.
func (v *verifier) used(all []verifiedSegment, i, lastUsed int) error {
	s, h := all[i], all[i].header
	stats := &v.report.DirStats
	stats.Segments++
	if h.number != s.number {
		v.complain(Damage, s.path, s.number, 0, 0, "the header is that of segment %d", h.number)
	}
	if i > 0 && all[i-1].why == nil && h.first < all[i-1].header.first {
		v.complain(Damage, s.path, s.number, 0, h.first, "the segment before begins with sequence %d", all[i-1].header.first)
	}
	if s.size < h.capacity {
		v.complain(Damage, s.path, s.number, s.size, 0, "the file has %d bytes, it was created with %d", s.size, h.capacity)
	}
	if v.id == nil {
		if err := v.begin(h.id, 0); err != nil {
			return err
		}
	} else if *v.id != h.id {
		v.complain(Damage, s.path, s.number, 0, 0, "the segment belongs to another log")
		return nil
	}
	if stats.FirstSequence == 0 {
		stats.FirstSequence = h.first
		if want := v.keep; h.first > want {
			v.complain(Damage, s.path, s.number, 0, want, "the log begins with sequence %d", h.first)
		}
	}
	b := v.buf[:min(int64(len(v.buf)), h.capacity)]
	if i < lastUsed {
		next := all[i+1].header.first
		if all[i+1].why != nil {
			next = 0 // the next segment has a complaint of its own
		}
		v.walk(s, b, func(end scanEnd) *CorruptionError {
			if next == 0 && end.why == nil || end.next == next {
				return nil
			}
			return sealedDamage(s.path, end, next)
		})
		return nil
	}
	followers, err := v.followers(all[i+1:])
	if err != nil {
		return err
	}
	end := v.walk(s, b, func(end scanEnd) *CorruptionError {
		return checkTail(s.path, b, end, followers, h.id.seed())
	})
	stats.LastSequence = end.next - 1
	stats.TailBytes = max(0, usedLength(b)-end.off)
	if end.why != nil && !v.report.Damaged() {
		v.complain(Note, s.path, s.number, end.off, end.next, "a torn tail of %d bytes, never acknowledged, to be removed at the next start: %v", stats.TailBytes, end.why)
	}
	if damage := shortOfSnapshot(s.path, end, stats.SnapshotSequence); damage != nil {
		v.complain(Damage, s.path, s.number, end.off, end.next, "%s", damage.Reason)
	}
	return nil
}

func (v *verifier) followers(all []verifiedSegment) ([]follower, error) {
	var out []follower
	for _, s := range all {
		buf, err := readAll(v.opts.FS, s.path, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, follower{s.path, s.why, trim(buf)})
	}
	return out, nil
}

// walk scans the records of a segment. Where they break off, judge decides whether that is damage. If so, walk
// continues at the next readable record.
func (v *verifier) walk(s verifiedSegment, b []byte, judge func(scanEnd) *CorruptionError) scanEnd {
	stats := &v.report.DirStats
	seed := s.header.id.seed()
	off, seq := int64(segmentHeaderSize), s.header.first
	for {
		end, _ := scanRecords(b, off, seq, seed, func(off int64, r record) error {
			stats.Records++
			stats.RecordBytes += int64(r.size())
			stats.LargestRecord = max(stats.LargestRecord, len(r.body))
			if r.ahead == 0 {
				stats.Batches++
			}
			v.check(Entry{s.path, s.number, off, r.seq, r.durableBefore(), r.body, r.seq <= stats.SnapshotSequence})
			return v.ctx.Err()
		})
		if v.ctx.Err() != nil {
			return end
		}
		damage := judge(end)
		if damage == nil {
			return end
		}
		resume, r, ok := findRecord(b, end.off+1, end.next, seed, func(r record) bool { return !r.isMark() })
		reason := damage.Reason
		if ok {
			reason += fmt.Sprintf("; readable again at offset %d, sequence %d", resume, r.seq)
		}
		segment := s.number
		if damage.File != s.path {
			segment++
		}
		v.complain(s.severity(), damage.File, segment, damage.Offset, damage.Sequence, "%s", reason)
		if !ok {
			return end
		}
		off, seq = resume, r.seq
	}
}
