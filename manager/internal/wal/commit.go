package wal

import (
	"math"
	"runtime"
	"time"
)

const (
	// markDelay is how long the log is idle before the committer writes a
	// mark, so that a slow trickle of appends does not pay for one each.
	markDelay = 10 * time.Millisecond
	// keepBuffer is the largest batch buffer that is kept for the next batch.
	keepBuffer = 4 << 20
	// gatherLimit bounds the time the committer waits for more records before
	// it takes a batch, see gatherer.
	gatherLimit = 500 * time.Microsecond
	// leadLimit is how long a batch takes at most behind which an appender may lead.
	// On a slower disk that gains nothing, and who leads waits for a disk that hangs.
	leadLimit = 10 * time.Millisecond
)

// commitLoop is the committer. It ends when the log failed, or when it is
// closed and everything accepted is durable.
func (l *Log) commitLoop() {
	defer l.wg.Done()
	timer := time.NewTimer(markDelay)
	defer timer.Stop()
	defer l.markDue.Stop()
	var g gatherer
	last := uint64(0) // records of the last batch
	for {
		if last > 1 || l.waiting() > 1 {
			l.yield()
		}
		b := l.take()
		if b == nil {
			last = 0
			select {
			case <-l.wake:
			case <-l.failed:
				l.release()
				l.awaitLeader()
				return
			case <-l.closing:
				l.awaitLeader()
				if l.drained() {
					l.finish()
					return
				}
			case <-l.markDue.C:
				if !l.mark() {
					return
				}
			}
			continue
		}
		start := time.Now()
		if !l.commitBatch(b) {
			l.release()
			return
		}
		took := time.Since(start)
		target := l.settle(b, took)
		if last = b.last - b.first + 1; last > 1 {
			g.gather(l, last, target, took, timer)
		}
	}
}

// take makes the collected batch the one in flight or, when there is none,
// asks for the next record to wake the committer. It leaves a batch alone that
// an appender commits.
func (l *Log) take() *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.led {
		return nil
	}
	return l.takeBatch()
}

// takeBatch is take without regard to who commits. The caller holds mu.
func (l *Log) takeBatch() *batch {
	b := l.pending.Load()
	if b.last < b.first || l.failure.Load() != nil {
		l.wakeAt, l.idle = b.first, b.last < b.first
		return nil
	}
	l.wakeAt, l.idle = math.MaxUint64, false
	l.inflight.Store(b)
	l.pending.Store(newBatch(b.last + 1))
	return b
}

// Lead commits the record of an AppendLead that said so, with all that came
// behind it, on the goroutine of the caller: one that is alone is spared two
// changes of goroutine, which take as long as everything else in the manager. It waits
// for the disk as long as that takes. What came of it is for WaitDurable to
// say, which does not wait any more. What is collected meanwhile is the committer's.
func (l *Log) Lead() {
	l.mu.Lock()
	b := l.takeBatch()
	l.mu.Unlock()
	start := time.Now()
	if b != nil && l.commitBatch(b) {
		l.settle(b, time.Since(start))
	}
	l.mu.Lock()
	l.led = false
	l.wakeAt = math.MaxUint64
	next := l.pending.Load()
	if l.idle = next.last < next.first; l.idle {
		l.wakeAt = next.first
	}
	wake := !l.idle || l.closed || l.failure.Load() != nil
	l.mu.Unlock()
	if wake {
		l.wakeCommitter()
	}
}

// awaitLeader waits for an appender that commits, when the log ends: who ends to
// lead then wakes the committer.
func (l *Log) awaitLeader() {
	for {
		l.mu.Lock()
		led := l.led
		l.mu.Unlock()
		if !led {
			return
		}
		<-l.wake
	}
}

// waiting is how many records are not durable.
func (l *Log) waiting() uint64 { return l.last.Load() - l.durable.Load() }

// yield lets everybody go first who could run now, and again for as long as
// that brings more records, within the limit: they would otherwise append just
// after the batch was taken, and wait for two. With several callers at a time
// it nearly doubles what one fsync serves; when nobody else has work it costs
// next to nothing, as no time passes.
func (l *Log) yield() {
	start := time.Now()
	for last := l.last.Load(); ; {
		runtime.Gosched()
		now := l.last.Load()
		if now == last || time.Since(start) > gatherLimit {
			return
		}
		last = now
	}
}

// gatherer decides how long the committer waits, after a batch, for the
// callers that it woke to come back with their next records. Without waiting,
// the first one back would get a batch, and an fsync, almost of its own, and
// all others would wait for two.
//
// It waits for as many records as the batch had, at most for gatherFactor times
// as long as the batch took, and for a shorter and shorter time when callers do not come that
// fast. Waiting for the last few of them pays: who is late misses a whole fsync.
type gatherer struct {
	misses int // in a row; each halves the wait
	rest   int // batches until the next try
}

const (
	gatherFactor = 3
	gatherMisses = 4
	gatherRest   = 64
)

// gather waits until the record target was appended, n more than there were
// when the batch was durable.
func (g *gatherer) gather(l *Log, n, target uint64, took time.Duration, timer *time.Timer) {
	if g.rest > 0 {
		g.rest--
		return
	}
	timer.Reset(min(gatherFactor*took, gatherLimit) >> g.misses)
	select {
	case <-l.wake:
	case <-timer.C:
	case <-l.closing:
	case <-l.failed:
	}
	if missing := target - min(target, l.last.Load()); missing <= n/2 {
		g.misses = 0
	} else if g.misses++; g.misses == gatherMisses {
		g.misses, g.rest = 0, gatherRest
	}
}

// commitBatch makes a batch durable and tells the callers that wait for it, or makes the log
// fail.
func (l *Log) commitBatch(b *batch) bool {
	err := l.commit(b)
	if err != nil {
		l.fail(err)
	} else {
		l.durable.Store(b.last)
	}
	l.finished(b)
	return err == nil
}

// commit writes and syncs a batch, part by part: what follows in a new segment
// is written only after the segment before it is durable.
func (l *Log) commit(b *batch) error {
	var info Batch
	for i := range b.parts {
		p := &b.parts[i]
		start := time.Now()
		p.seg.claim(p.off + int64(len(p.buf)))
		if err := writeFull(p.seg.file, p.buf, p.off); err != nil {
			return err
		}
		written := time.Now()
		if err := p.seg.file.Datasync(); err != nil {
			return err
		}
		info.Write += written.Sub(start)
		info.Sync += time.Since(written)
		if p.seals != nil {
			if err := p.seals.close(); err != nil {
				return err
			}
		}
	}
	if l.opts.OnBatch != nil {
		info.Records, info.Bytes = int(b.last-b.first)+1, b.bytes
		l.opts.OnBatch(info)
	}
	return nil
}

// settle takes a durable batch out of the accounts. It asks to be woken when
// as many records as the batch had were appended on top of those that are
// collected already, and returns the last one's sequence number.
func (l *Log) settle(b *batch, took time.Duration) (target uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued -= b.bytes
	l.stats.batches++
	l.stats.records += b.last - b.first + 1
	l.stats.bytes += uint64(b.bytes)
	l.stats.logBytes += int64(b.bytes)
	l.free.give(b.parts[len(b.parts)-1].buf)
	b.parts = nil
	l.broadcastRoom()
	l.marked, l.alone, l.lastBatch = false, b.last == b.first && took < leadLimit, time.Now()
	if !l.markArmed {
		// One timer for all batches of a while: setting one wakes a thread of the runtime.
		l.markArmed = true
		l.markDue.Reset(markDelay)
	}
	l.wakeAt = l.last.Load() + b.last - b.first + 1
	return l.wakeAt
}

// finished tells everybody who waits for a batch that it is durable, or that the
// log has failed, which other callers can see already. Notify sees one or the
// other from here on.
func (l *Log) finished(b *batch) {
	close(b.done)
	l.mu.Lock()
	calls := b.calls
	b.calls = nil
	l.mu.Unlock()
	for _, w := range calls {
		w.tell()
	}
}

// release lets the waiters of a failed log look at its failure. No record is
// accepted any more, so the collected batch is the last one.
func (l *Log) release() { l.finished(l.pending.Load()) }

func (l *Log) drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.pending.Load()
	return b.last < b.first
}

// finish marks and syncs the end of a log that is being closed.
func (l *Log) finish() {
	l.mu.Lock()
	marked, seg := l.marked, l.active
	l.mu.Unlock()
	if !marked && !l.writeMark() {
		return
	}
	if l.failure.Load() != nil {
		l.release()
		return
	}
	if err := seg.file.Datasync(); err != nil {
		l.fail(err)
		l.release()
	}
}

// mark marks the end of a log that has been idle for a while. It reports whether
// the log goes on.
func (l *Log) mark() bool {
	l.mu.Lock()
	l.markArmed = false
	due := l.idle && !l.marked && time.Since(l.lastBatch) >= markDelay
	if due {
		l.idle = false // until the committer looks again nobody else writes
	} else if !l.marked {
		l.markArmed = true
		l.markDue.Reset(markDelay)
	}
	l.mu.Unlock()
	return !due || l.writeMark()
}

// writeMark writes, where the next record will go, that everything before it is
// durable. It need not be durable itself: if it gets lost, damage to the last
// batch can pass for a torn tail, as it could without marks.
func (l *Log) writeMark() bool {
	if l.failure.Load() != nil { // the preparer's: the disk is left alone
		l.release()
		return false
	}
	l.mu.Lock()
	b := l.pending.Load()
	seg, off, next, busy := l.active, l.tail, b.first, b.last >= b.first
	l.marked = !busy
	l.mu.Unlock()
	if busy || off+recordHeaderSize > seg.capacity {
		return true
	}
	seg.claim(off + recordHeaderSize)
	if err := writeFull(seg.file, appendRecord(nil, l.seed, next, 0, nil), off); err != nil {
		l.fail(err)
		l.release()
		return false
	}
	return true
}
