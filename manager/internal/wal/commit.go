package wal

import (
	"math"
	"runtime"
	"time"
)

const (
	// markDelay is how long the log must be idle before the committer writes a mark. A slow trickle of appends then
	// does not pay for a mark each.
	markDelay = 10 * time.Millisecond
	// keepBuffer is the largest batch buffer that is kept for the next batch.
	keepBuffer = 4 << 20
	// gatherLimit bounds how long the committer waits for more records before it writes a batch (see gatherer).
	gatherLimit = 500 * time.Microsecond
	// leadLimit is the longest commit after which an appender may commit the next batch itself (see AppendLead). On a
	// slower disk that gains nothing, and the appender would wait for a disk that hangs.
	leadLimit = 10 * time.Millisecond
)

// commitLoop is the committer. It returns when the log has failed, or when the log is closed and every accepted record
// is durable.
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
		l.gather()
		b := l.sealUnlessLed()
		if b == nil {
			last = 0
			select {
			case <-l.wake:
			case <-l.failed:
				l.wakeFailed()
				l.awaitLeader()
				return
			case <-l.closing:
				l.awaitLeader()
				if l.drained() {
					l.finishLog()
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
			l.wakeFailed()
			return
		}
		took := time.Since(start)
		target := l.recordCommit(b, took)
		if last = b.last - b.first + 1; last > 1 {
			g.gather(l, last, target, took, timer)
		}
	}
}

func (l *Log) gather() {
	if l.opts.Gather != nil {
		l.opts.Gather()
	}
}

// sealUnlessLed is sealBatch for the committer: it returns nil while an appender commits.
func (l *Log) sealUnlessLed() *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		return nil
	}
	return l.sealBatch()
}

// sealBatch moves the pending batch into inflight, starts a new pending batch and returns the sealed one. When there is
// nothing to commit it returns nil, and the next record wakes the committer. The caller holds mu.
func (l *Log) sealBatch() *batch {
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

// Lead commits the batch that the caller's AppendLead began, with every record appended since, on the caller's
// goroutine. It must be called exactly once after each AppendLead that reported lead. It blocks until the disk has
// answered. The outcome is in WaitDurable, which then returns immediately. Records that arrive during the commit are
// left to the committer.
func (l *Log) Lead() {
	l.gather()
	l.mu.Lock()
	b := l.sealBatch()
	l.mu.Unlock()
	start := time.Now()
	if b != nil && l.commitBatch(b) {
		l.recordCommit(b, time.Since(start))
	}
	l.mu.Lock()
	l.leading = false
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

// awaitLeader waits until no appender is committing. The committer calls it when the log ends; Lead wakes the committer
// when it is done.
func (l *Log) awaitLeader() {
	for {
		l.mu.Lock()
		led := l.leading
		l.mu.Unlock()
		if !led {
			return
		}
		<-l.wake
	}
}

// waiting is the number of records that are not durable.
func (l *Log) waiting() uint64 { return l.last.Load() - l.durable.Load() }

// yield lets other goroutines that can run append first, and repeats that while it brings more records, for at most
// gatherLimit. Without it their records would arrive just after the batch was sealed and wait for two fsyncs. With
// nothing else to run it costs next to nothing.
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

// gatherer decides how long the committer waits after a batch for the callers that it woke to return with their next
// records. Without the wait, the first caller to return would get a batch and an fsync almost to itself, and all others
// would wait for two.
//
// The committer waits for as many records as the last batch had, at most gatherFactor times as long as that batch took
// to commit. Each time that too few callers return, the next wait is halved. Waiting for the last few callers pays,
// because a caller that is late misses a whole fsync.
type gatherer struct {
	misses int // waits in a row that were too short; each halves the next one
	skip   int // batches after which no wait is tried
}

const (
	gatherFactor = 3
	gatherMisses = 4
	gatherSkip   = 64
)

// gather waits until record target is appended. target is n records after the last one appended when the batch became
// durable.
func (g *gatherer) gather(l *Log, n, target uint64, took time.Duration, timer *time.Timer) {
	if g.skip > 0 {
		g.skip--
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
		g.misses, g.skip = 0, gatherSkip
	}
}

// commitBatch makes a batch durable and wakes its waiters. On an error it fails the log and returns false.
func (l *Log) commitBatch(b *batch) bool {
	err := l.commit(b)
	if err != nil {
		l.fail(err)
	} else {
		l.durable.Store(b.last)
	}
	l.wakeWaiters(b)
	return err == nil
}

// commit writes and syncs a batch part by part. A part in a new segment is written only after the previous segment is
// durable.
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

// recordCommit updates the counters for a durable batch. The committer is woken again when as many further records as
// the batch had are appended; recordCommit returns the sequence number of the last of them.
func (l *Log) recordCommit(b *batch, took time.Duration) (target uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued -= b.bytes
	l.stats.batches++
	l.stats.records += b.last - b.first + 1
	l.stats.bytes += uint64(b.bytes)
	l.stats.logBytes += int64(b.bytes)
	l.free.put(b.parts[len(b.parts)-1].buf)
	b.parts = nil
	l.broadcastRoom()
	l.marked, l.mayLead, l.lastBatch = false, b.last == b.first && took < leadLimit, time.Now()
	if !l.markArmed {
		// Setting a timer wakes a thread of the runtime, so all batches of a while share one.
		l.markArmed = true
		l.markDue.Reset(markDelay)
	}
	l.wakeAt = l.last.Load() + b.last - b.first + 1
	return l.wakeAt
}

// wakeWaiters wakes every caller that waits for a batch, durable or failed. The caller has already set durable or
// failure.
func (l *Log) wakeWaiters(b *batch) { close(b.done) }

// wakeFailed wakes the waiters of a failed log. A failed log accepts no records, so the pending batch is its last.
func (l *Log) wakeFailed() { l.wakeWaiters(l.pending.Load()) }

func (l *Log) drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.pending.Load()
	return b.last < b.first
}

// finishLog marks and syncs the end of a log that is being closed.
func (l *Log) finishLog() {
	l.mu.Lock()
	marked, seg := l.marked, l.active
	l.mu.Unlock()
	if !marked && !l.writeMark() {
		return
	}
	if l.failure.Load() != nil {
		l.wakeFailed()
		return
	}
	if err := seg.file.Datasync(); err != nil {
		l.fail(err)
		l.wakeFailed()
	}
}

// mark marks the end of a log that has been idle for markDelay. It returns false when the log has failed.
func (l *Log) mark() bool {
	l.mu.Lock()
	l.markArmed = false
	due := l.idle && !l.marked && time.Since(l.lastBatch) >= markDelay
	if due {
		l.idle = false // until the committer checks again, no other goroutine writes
	} else if !l.marked {
		l.markArmed = true
		l.markDue.Reset(markDelay)
	}
	l.mu.Unlock()
	return !due || l.writeMark()
}

// writeMark writes a mark at the offset of the next record: everything before it is durable. The mark itself need not be
// durable. Without it, damage to the last batch may look like a torn tail. It returns false when the log has failed.
func (l *Log) writeMark() bool {
	if l.failure.Load() != nil { // the preparer failed the log: write nothing more
		l.wakeFailed()
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
		l.wakeFailed()
		return false
	}
	return true
}
