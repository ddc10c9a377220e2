package wal

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
)

// readChunk is how much Records reads at once.
const readChunk = 64 << 10

// position is where a record is.
type position struct {
	segment, seq uint64
	off          int64
}

// First is the sequence number from which Records can read, one more than Last when
// there is nothing yet. It grows with snapshots.
func (l *Log) First() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstKept()
}

// firstKept is First; the caller holds mu.
func (l *Log) firstKept() uint64 { return max(l.segments[0].First, l.snapshot.keep) }

// Records calls fn for the durable records from sequence number from on, in order, until
// there are no more, or fn returns an error, which Records returns. The body is valid
// during the call. It reads the segment files and checks each record's checksum. It finds from at once if the call before
// ended there, and else reads from the start of the segment.
//
// Errors: ErrGone when from is before First, a *CorruptionError when a record cannot be read
// back, ctx's error, ErrClosed, or one of the file system.
func (l *Log) Records(ctx context.Context, from uint64, fn func(seq uint64, body []byte) error) error {
	r := reader{log: l, ctx: ctx, fn: fn}
	for {
		seg, until, err := l.segmentOf(from)
		if err != nil || until < from {
			return err
		}
		next, err := r.segment(seg, from, until)
		switch {
		case isNotExist(err): // a snapshot deleted it meanwhile: then from is before First
			if _, _, gone := l.segmentOf(from); gone != nil {
				return gone
			}
			return err
		case err != nil:
			return err
		}
		from = next
	}
}

// segmentOf returns the segment that holds seq, and the last durable record in it, which
// is before seq when there is no such record yet.
func (l *Log) segmentOf(seq uint64) (SegmentInfo, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return SegmentInfo{}, 0, ErrClosed
	}
	if first := l.firstKept(); seq < first {
		return SegmentInfo{}, 0, fmt.Errorf("%w: %d, the first is %d", ErrGone, seq, first)
	}
	until := l.durable.Load()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].First > seq }) - 1
	if i+1 < len(l.segments) {
		until = min(until, l.segments[i+1].First-1)
	}
	return l.segments[i], until, nil
}

// reader is a call of Records.
type reader struct {
	log *Log
	ctx context.Context
	fn  func(seq uint64, body []byte) error
	buf []byte
}

// segment calls fn for the records of a segment from sequence from to until, all of
// which are durable, and returns the one after.
func (r *reader) segment(seg SegmentInfo, from, until uint64) (next uint64, err error) {
	p := path.Join(r.log.dir, segmentName(seg.Number))
	file, err := r.log.fs.Open(p, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	at := position{seg.Number, seg.First, segmentHeaderSize}
	if end := r.log.readTo.Load(); end != nil && end.segment == seg.Number && end.seq <= from {
		at = *end
	}
	defer func() { r.log.readTo.Store(&at) }()
	var have []byte // what was read and not used, from at.off on
	for at.seq <= until {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		need := int64(recordHeaderSize)
		if len(have) >= recordHeaderSize {
			need += int64(le.Uint32(have))
		}
		if need > seg.Capacity-at.off {
			return 0, &CorruptionError{p, at.off, at.seq, fmt.Sprintf("the record has %d bytes, the segment has %d left", need, seg.Capacity-at.off)}
		}
		if int64(len(have)) < need {
			size := min(max(need, readChunk), seg.Capacity-at.off)
			if int64(cap(r.buf)) < size {
				r.buf = make([]byte, size)
			}
			have = r.buf[:size]
			if err := readFull(file, have, at.off); err != nil {
				return 0, err
			}
			continue
		}
		rec, err := parseRecord(have[:need], r.log.seed)
		if err == nil && (rec.seq != at.seq || rec.isMark()) {
			err = fmt.Errorf("sequence number is %d", rec.seq)
		}
		if err != nil {
			return 0, &CorruptionError{p, at.off, at.seq, err.Error()}
		}
		if rec.seq >= from {
			if err := r.fn(rec.seq, rec.body); err != nil {
				return 0, err
			}
		}
		at.seq, at.off, have = at.seq+1, at.off+need, have[need:]
	}
	return at.seq, nil
}
