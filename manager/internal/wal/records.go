package wal

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
	"sync"
)

const (
	// readChunk is how much Records reads at once.
	readChunk = 64 << 10
	// positionEvery is the distance in bytes of two remembered positions of
	// a segment: at most that much is read and thrown away to find a record.
	positionEvery = 64 << 10
)

// positions are the offsets of some records of a segment, so that a reader need
// not begin at the segment's start. Readers add those that they pass.
type positions struct {
	mu  sync.Mutex
	all []position // ascending
}

type position struct {
	seq uint64
	off int64
}

// before returns the last known position at or before seq; first is the segment's first record.
func (p *positions) before(seq, first uint64) position {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := sort.Search(len(p.all), func(i int) bool { return p.all[i].seq > seq })
	if i == 0 {
		return position{first, segmentHeaderSize}
	}
	return p.all[i-1]
}

// add adds a position that is at least positionEvery after the last one.
func (p *positions) add(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := int64(segmentHeaderSize)
	if n := len(p.all); n > 0 {
		last = p.all[n-1].off
	}
	if at.off >= last+positionEvery {
		p.all = append(p.all, at)
	}
}

// First is the sequence number from which Records can read, one more than Last when
// there is nothing yet. It grows with snapshots.
func (l *Log) First() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstKept()
}

// firstKept is First; the caller holds mu.
func (l *Log) firstKept() uint64 { return max(l.segments[0].first, l.snapshot.keep) }

// Records calls fn for the durable records from sequence number from on, in order, until
// there are no more, or fn returns an error, which Records returns. The body is valid
// during the call. It reads the segment files and checks each record's checksum.
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
func (l *Log) segmentOf(seq uint64) (segmentInfo, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return segmentInfo{}, 0, ErrClosed
	}
	if first := l.firstKept(); seq < first {
		return segmentInfo{}, 0, fmt.Errorf("%w: %d, the first is %d", ErrGone, seq, first)
	}
	until := l.durable.Load()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].first > seq }) - 1
	if i+1 < len(l.segments) {
		until = min(until, l.segments[i+1].first-1)
	}
	if l.segments[i].positions == nil {
		l.segments[i].positions = new(positions)
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
func (r *reader) segment(seg segmentInfo, from, until uint64) (next uint64, err error) {
	p := path.Join(r.log.dir, segmentName(seg.number))
	file, err := r.log.fs.Open(p, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	at := seg.positions.before(from, seg.first)
	var have []byte // what was read and not used, from at.off on
	for at.seq <= until {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		need := int64(recordHeaderSize)
		if len(have) >= recordHeaderSize {
			need += int64(le.Uint32(have))
		}
		if need > seg.capacity-at.off {
			return 0, &CorruptionError{p, at.off, at.seq, fmt.Sprintf("the record has %d bytes, the segment has %d left", need, seg.capacity-at.off)}
		}
		if int64(len(have)) < need {
			size := min(max(need, readChunk), seg.capacity-at.off)
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
		if at.seq <= until {
			seg.positions.add(at)
		}
	}
	return at.seq, nil
}
