package wal

import (
	"math"
	"time"
)

// prepareLoop is the preparer: it keeps one segment reserved ahead of the
// active one and the next stretch of both filled. A full disk, or a system that
// is short of something else for a while, makes it try again later; any other
// error fails the log.
func (l *Log) prepareLoop() {
	defer l.wg.Done()
	retry := time.NewTimer(math.MaxInt64)
	defer retry.Stop()
	for {
		select {
		case <-l.kick:
		case <-retry.C:
		case <-l.closing:
			return
		case <-l.failed:
			return
		}
		if err := l.prepare(); err != nil {
			if !isNoSpace(err) && !isShortage(err) {
				l.fail(err)
				return
			}
			retry.Reset(l.opts.SpaceRetry)
		}
	}
}

// prepare does all the work there is at the moment.
func (l *Log) prepare() error {
	for {
		w, ok := l.nextWork()
		if !ok {
			return nil
		}
		if w.fill != nil {
			if err := w.fill.fill(l.fs, w.target); err != nil {
				return err
			}
			continue
		}
		seg, err := createSegment(l.fs, l.dir, w.create, l.opts.SegmentBytes)
		l.prepared(seg, err)
		if err != nil {
			return err
		}
	}
}

// work is either a segment to fill up to target or the number of one to create.
type work struct {
	fill   *segment
	target int64
	create uint64
}

// nextWork finds what is due at the present tail or, when nothing is, the tail
// at which something will be.
func (l *Log) nextWork() (work, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closing:
		return work{}, false
	default:
	}
	kickAt := int64(math.MaxInt64)
	due := func(at int64) bool {
		if l.tail >= at {
			return true
		}
		kickAt = min(kickAt, at)
		return false
	}
	ahead, capacity := l.opts.FillAhead, l.active.capacity
	if filled := l.active.filled.Load(); ahead > 0 && filled < capacity && due(filled-ahead/2) {
		return work{fill: l.active, target: l.tail + ahead}, true
	}
	if len(l.spares) == 0 {
		if l.spareWanted || due(capacity/4) {
			return work{create: l.nextSegment}, true
		}
	} else if s := l.spares[0]; s.filled.Load() < min(ahead, s.capacity) && due(capacity-ahead/2) {
		return work{fill: s, target: ahead}, true
	}
	l.kickAt = kickAt
	return work{}, false
}

// prepared takes the outcome of creating a segment.
func (l *Log) prepared(seg *segment, err error) {
	if l.takePrepared(seg, err) && l.opts.OnSpace != nil {
		l.opts.OnSpace(err)
	}
}

// takePrepared reports whether the disk is full and was not, or the reverse.
func (l *Log) takePrepared(seg *segment, err error) (turned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || isNoSpace(err) { // any other error passes, or fails the log in a moment
		turned = (l.noSpace == nil) != (err == nil)
		l.noSpace = err
	}
	l.short = isShortage(err)
	if err == nil {
		l.spares = append(l.spares, seg)
		l.nextSegment++
		l.spareWanted = false
	}
	l.broadcastRoom()
	return turned
}
