package wal

import (
	"runtime"
	"time"
)

const (
	// markDelay is how long the log is idle before the committer writes a
	// mark, so that a slow trickle of appends does not pay for one each.
	markDelay = 10 * time.Millisecond
	// keepBuffer is the largest batch buffer that is kept for the next batch.
	keepBuffer = 4 << 20
	// gatherPause is how long the committer waits for another record before
	// it takes a batch, see gather.
	gatherPause = 20 * time.Microsecond
)

// commitLoop is the committer. It ends when the log failed, or when it is
// closed and everything accepted is durable.
func (l *Log) commitLoop() {
	defer l.wg.Done()
	idle := time.NewTimer(markDelay)
	defer idle.Stop()
	marked := false
	for {
		b := l.take()
		if b == nil {
			select {
			case <-l.wake:
			case <-l.failed:
				l.release()
				return
			case <-l.closing:
				if l.drained() {
					l.finish(marked)
					return
				}
			case <-idle.C:
				if !marked && !l.mark() {
					return
				}
				marked = true
			}
			continue
		}
		start := time.Now()
		if err := l.commit(b); err != nil {
			l.fail(err)
			close(b.done)
			l.release()
			return
		}
		took := time.Since(start)
		l.durable.Store(b.last)
		close(b.done)
		l.settle(b)
		marked = false
		idle.Reset(markDelay)
		if n := b.last - b.first; n > 0 {
			l.gather(n+1, took)
		}
	}
}

// take makes the collected batch the one in flight, or declares the committer
// asleep when there is none.
func (l *Log) take() *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.pending.Load()
	if b.last < b.first || l.failure.Load() != nil {
		l.sleeping = true
		return nil
	}
	l.sleeping = false
	l.inflight.Store(b)
	l.pending.Store(newBatch(b.last + 1))
	return b
}

// gather steps aside while the callers that the last batch woke, about n of
// them, come back with their next records. Without it the first one back
// would get a batch, and an fsync, almost of its own, and all others would
// wait for two. It gives up as soon as nobody came for a moment, or after as
// long as the last write and fsync took.
func (l *Log) gather(n uint64, limit time.Duration) {
	start := time.Now()
	seen, last := l.last.Load(), start
	target := seen + n
	for {
		runtime.Gosched()
		now := time.Now()
		appended := l.last.Load()
		if appended >= target || now.Sub(start) > limit {
			return
		}
		if appended != seen {
			seen, last = appended, now
		} else if now.Sub(last) > gatherPause {
			return
		}
	}
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

// settle takes a durable batch out of the accounts.
func (l *Log) settle(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued -= b.bytes
	l.stats.batches++
	l.stats.records += b.last - b.first + 1
	l.stats.bytes += uint64(b.bytes)
	l.stats.logBytes += int64(b.bytes)
	if buf := b.parts[len(b.parts)-1].buf; l.freeBuf == nil && cap(buf) <= keepBuffer {
		l.freeBuf = buf[:0]
	}
	b.parts = nil
	l.broadcastRoom()
}

// release lets the waiters of a failed log look at its failure. No record is
// accepted any more, so the collected batch is the last one.
func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.pending.Load().done)
}

func (l *Log) drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.pending.Load()
	return b.last < b.first
}

// finish marks and syncs the end of a log that is being closed.
func (l *Log) finish(marked bool) {
	if !marked && !l.mark() {
		return
	}
	l.mu.Lock()
	seg := l.active
	l.mu.Unlock()
	if err := seg.file.Datasync(); err != nil {
		l.fail(err)
		l.release()
	}
}

// mark writes, where the next record will go, that everything before it is
// durable. It need not be durable itself: if it gets lost, damage to the last
// batch can pass for a torn tail, as it could without marks.
func (l *Log) mark() bool {
	l.mu.Lock()
	b := l.pending.Load()
	seg, off, next, busy := l.active, l.tail, b.first, b.last >= b.first
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
