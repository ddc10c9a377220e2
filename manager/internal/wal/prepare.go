package wal

import (
	"math"
	"time"
)

// prepareLoop is the preparer. It keeps one segment reserved ahead of the active one, and fills the next stretch of
// both with zeros. When the disk is full, or the system is short of open files or memory, it tries again later. Any
// other error fails the log.
func (l *Log) prepareLoop() {
	defer l.wg.Done()
	retry := time.NewTimer(math.MaxInt64)
	defer retry.Stop()
	for {
		select {
		case <-l.prepareWake:
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

// prepare does all the work that is due.
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
		l.addSpare(seg, err)
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

// nextWork returns the work that is due at the present tail. If there is none, it stores in prepareAt the tail at which
// there will be.
func (l *Log) nextWork() (work, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closing:
		return work{}, false
	default:
	}
	prepareAt := int64(math.MaxInt64)
	due := func(at int64) bool {
		if l.tail >= at {
			return true
		}
		prepareAt = min(prepareAt, at)
		return false
	}
	ahead, capacity := l.opts.FillAhead, l.active.capacity
	if filled := l.active.filled.Load(); ahead > 0 && filled < capacity && due(filled-ahead/2) {
		// The steps do not depend on whether a record that comes now is counted, so a simulation can be repeated.
		step := max(ahead/2, 1)
		target := (max(filled, l.tail) + 2*step - 1) / step * step
		return work{fill: l.active, target: target}, true
	}
	if len(l.spares) == 0 {
		if l.spareWanted || due(capacity/4) {
			return work{create: l.nextSegment}, true
		}
	} else if s := l.spares[0]; s.filled.Load() < min(ahead, s.capacity) && due(capacity-ahead/2) {
		return work{fill: s, target: ahead}, true
	}
	l.prepareAt = prepareAt
	return work{}, false
}

// addSpare handles the outcome of creating a segment.
func (l *Log) addSpare(seg *segment, err error) {
	if l.recordSpare(seg, err) && l.opts.OnSpace != nil {
		l.opts.OnSpace(err)
	}
}

// recordSpare reports whether the disk became full, or stopped being full.
func (l *Log) recordSpare(seg *segment, err error) (turned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || isNoSpace(err) { // any other error passes by itself, or is about to fail the log
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
