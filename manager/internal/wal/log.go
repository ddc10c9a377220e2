package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// Log is an open write-ahead log. All methods are safe for concurrent use.
type Log struct {
	opts Options
	fs   vfs.FS
	dir  string
	lock io.Closer
	id   logID
	seed uint32

	// Waiters read these without the lock. pending is the batch that Append adds to. inflight is the batch that was
	// sealed last. A new inflight is stored before the new pending, so a reader that sees the newer pending finds an
	// older record in inflight, or finds it durable.
	durable  atomic.Uint64
	last     atomic.Uint64
	pending  atomic.Pointer[batch]
	inflight atomic.Pointer[batch]
	failure  atomic.Pointer[error]
	failed   chan struct{}

	mu          sync.Mutex
	active      *segment      // where the next record goes
	tail        int64         // and at which offset
	spares      []*segment    // prepared, in the order of their numbers
	nextSegment uint64        // number of the next segment to prepare
	noSpace     error         // why the last preparation met a full disk, nil if it did not
	short       bool          // the last preparation failed for lack of open files or memory
	spareWanted bool          // a record waits for a spare, even if the active segment is nearly empty
	rollDue     bool          // the next record begins a segment, if a spare is there
	prepareAt   int64         // tail at which the preparer has work again
	queued      int           // bytes in pending and inflight
	free        buffers       // buffers of durable batches, for reuse
	roomFreed   chan struct{} // closed when waiting for room may be over; nil without waiters
	wakeAt      uint64        // sequence number whose record wakes the committer
	idle        bool          // every record is durable, and nothing is written to the active segment
	leading     bool          // an appender commits a batch (see AppendLead)
	mayLead     bool          // the last batch had one record and committed within leadLimit
	marked      bool          // the log ends with a mark
	lastBatch   time.Time     // when the last batch became durable
	markDue     *time.Timer   // fires in the committer
	markArmed   bool
	closed      bool

	segments []SegmentInfo // in use, oldest first; the last one is active
	snapshot snapshotInfo
	stats    counters

	readTo atomic.Pointer[position] // the record before which the last call of Records ended; nil before the first call

	wake        chan struct{}
	prepareWake chan struct{}
	closing     chan struct{}
	wg          sync.WaitGroup
	recovery    Recovery

	snapshotting chan struct{}    // has a value while Snapshot runs, or Close
	garbage      []string         // files to delete with the next snapshot; guarded by snapshotting
	undeleted    map[string]error // files of garbage that could not be deleted; guarded by mu
}

// batch is a group commit: pending while records are added, then sealed and committed.
type batch struct {
	first uint64 // immutable
	last  uint64 // until the batch is sealed, Log.mu guards this and the rest
	bytes int
	parts []part
	one   [1]part
	done  chan struct{}
}

// part is the piece of a batch that goes into one segment.
type part struct {
	seg   *segment
	seals *segment // the previous segment, if this part is the first of its segment: it is closed when this part is durable
	off   int64
	buf   []byte
}

// Append queues body as the next record and returns its sequence number. It copies body and does not wait: the record
// is durable once WaitDurable returns nil. The package documentation says what an accepted record may rely on.
//
// Errors: ErrTooLarge, ErrBusy, ErrNoSpace, ErrFailed, ErrClosed. After any of them the log is unchanged.
func (l *Log) Append(body []byte) (uint64, error) {
	seq, _, err := l.append(body, false)
	return seq, err
}

// AppendLead is Append for a caller that will wait for the record anyway. When lead is true the caller must call Lead
// soon and in any case: until then neither this record nor a later one becomes durable. lead is true only when the log
// is idle and the last batch had a single record and committed quickly.
func (l *Log) AppendLead(body []byte) (seq uint64, lead bool, err error) {
	return l.append(body, true)
}

func (l *Log) append(body []byte, willLead bool) (seq uint64, lead bool, err error) {
	if len(body) == 0 || len(body) > l.opts.MaxRecordBytes {
		return 0, false, fmt.Errorf("%w: %d bytes, allowed are 1 to %d", ErrTooLarge, len(body), l.opts.MaxRecordBytes)
	}
	crc := bodyChecksum(l.seed, body)
	l.mu.Lock()
	if err := l.admit(len(body)); err != nil {
		l.mu.Unlock()
		return 0, false, err
	}
	size := int64(recordHeaderSize + len(body))
	b := l.pending.Load()
	if l.tail+size > l.active.capacity || l.rollDue && l.spareFits(int(size)) {
		l.roll(b)
	}
	p := b.partIn(l.active, l.tail, &l.free)
	seq = b.last + 1
	p.buf = appendRecord(p.buf, crc, seq, uint32(seq-b.first), body)
	b.last = seq
	b.bytes += int(size)
	l.tail += size
	l.queued += int(size)
	l.last.Store(seq)
	due := l.tail >= l.prepareAt
	if due {
		l.prepareAt = math.MaxInt64
	}
	wake := seq == l.wakeAt
	if wake && l.idle {
		l.idle = false
		if lead = willLead && l.mayLead; lead {
			l.leading, l.wakeAt, wake = true, math.MaxUint64, false
		}
	}
	l.mu.Unlock()
	if wake {
		l.wakeCommitter()
	}
	if due {
		l.wakePreparer()
	}
	return seq, lead, nil
}

// admit returns nil if a body of n bytes can be appended now, and otherwise Append's error. The caller holds mu.
func (l *Log) admit(n int) error {
	if l.closed {
		return ErrClosed
	}
	if err := l.failure.Load(); err != nil {
		return *err
	}
	size := recordHeaderSize + n
	if l.queued > 0 && l.queued+size > l.opts.MaxQueueBytes {
		return ErrBusy
	}
	if l.tail+int64(size) <= l.active.capacity || l.spareFits(size) {
		return nil
	}
	if err := l.noSpaceError(); err != nil { // the preparer tries again every SpaceRetry
		return err
	}
	l.spareWanted = true
	if !l.short { // when short, the preparer tries again every SpaceRetry
		l.wakePreparer()
	}
	return ErrBusy
}

func (l *Log) spareFits(size int) bool {
	return len(l.spares) > 0 && segmentHeaderSize+int64(size) <= l.spares[0].capacity
}

// roll makes the first spare the active segment and appends its header to b.
func (l *Log) roll(b *batch) {
	old := l.active
	l.active, l.spares = l.spares[0], l.spares[1:]
	first := b.last + 1
	l.segments = append(l.segments, SegmentInfo{l.active.number, first, l.active.capacity})
	h := segmentHeader{l.id, l.active.number, first, l.active.capacity}
	p := b.partIn(l.active, 0, &l.free)
	p.seals = old
	p.buf = h.append(p.buf)
	b.bytes += segmentHeaderSize
	l.queued += segmentHeaderSize
	l.tail = segmentHeaderSize
	l.prepareAt, l.rollDue = 0, false
}

// Roll makes the next record begin a new segment, so that a snapshot after that record can delete all segments before
// it. It waits for the segment. A log whose active segment has no record stays as it is.
//
// Errors: ErrNoSpace, ErrFailed, ErrClosed, ctx's. After any of them a later record may still begin a new segment.
func (l *Log) Roll(ctx context.Context) error {
	l.mu.Lock()
	if l.tail == segmentHeaderSize {
		l.mu.Unlock()
		return nil
	}
	l.rollDue = true
	for l.rollDue && len(l.spares) == 0 {
		err := l.Err()
		if err == nil && l.closed {
			err = ErrClosed
		}
		if err == nil {
			err = l.noSpaceError()
		}
		if err != nil {
			l.mu.Unlock()
			return err
		}
		l.spareWanted = true
		room := l.awaitRoom()
		l.mu.Unlock()
		l.wakePreparer()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
	}
	l.mu.Unlock()
	return nil
}

// noSpaceError is ErrNoSpace when no segment could be created for lack of space. The caller holds mu.
func (l *Log) noSpaceError() error {
	return orNoSpace(l.noSpace)
}

// awaitRoom returns a channel that is closed when waiting for room may be over. The caller holds mu.
func (l *Log) awaitRoom() <-chan struct{} {
	if l.roomFreed == nil {
		l.roomFreed = make(chan struct{})
	}
	return l.roomFreed
}

// partIn returns the batch's part in seg. If there is none, it adds one at offset off.
func (b *batch) partIn(seg *segment, off int64, free *buffers) *part {
	if n := len(b.parts); n > 0 && b.parts[n-1].seg == seg {
		return &b.parts[n-1]
	}
	b.parts = append(b.parts, part{seg: seg, off: off, buf: free.get()})
	return &b.parts[len(b.parts)-1]
}

// buffers holds the buffers of two batches, because one batch is pending while another is being committed.
type buffers [2][]byte

func (f *buffers) get() []byte {
	for i, buf := range f {
		if buf != nil {
			f[i] = nil
			return buf[:0]
		}
	}
	return nil
}

func (f *buffers) put(buf []byte) {
	if cap(buf) > keepBuffer {
		return
	}
	for i := range f {
		if f[i] == nil {
			f[i] = buf
			return
		}
	}
}

func newBatch(first uint64) *batch {
	b := &batch{first: first, last: first - 1, done: make(chan struct{})}
	b.parts = b.one[:0]
	return b
}

// WaitDurable waits until record seq, and with it every earlier record, is durable. If ctx ends first it returns ctx's
// error, and the record may still become durable. It returns ErrFailed when the log failed before the record was
// durable, and ErrSequence for a record that was not appended.
func (l *Log) WaitDurable(ctx context.Context, seq uint64) error {
	for {
		if seq <= l.durable.Load() {
			return nil
		}
		if err := l.failure.Load(); err != nil {
			return *err
		}
		b := l.pending.Load()
		if seq < b.first {
			if b = l.inflight.Load(); b == nil || seq < b.first || seq > b.last {
				continue // the record became durable between the two loads
			}
		} else if seq > l.last.Load() {
			return fmt.Errorf("%w: %d", ErrSequence, seq)
		}
		end := ctx.Done()
		if end == nil {
			<-b.done
			continue
		}
		select {
		case <-b.done:
		case <-end:
			return ctx.Err()
		}
	}
}

// WaitRoom is for a caller that got ErrBusy: it waits until an Append of n bytes would not return ErrBusy. Another
// caller may use the room first. WaitRoom returns the other errors of Append, including ErrNoSpace.
func (l *Log) WaitRoom(ctx context.Context, n int) error {
	for {
		l.mu.Lock()
		err := l.admit(n)
		if !errors.Is(err, ErrBusy) {
			l.mu.Unlock()
			return err
		}
		room := l.awaitRoom()
		l.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Durable is the sequence number up to which every record is durable.
func (l *Log) Durable() uint64 { return l.durable.Load() }

// Last is the sequence number of the last appended record, 0 when there is none.
func (l *Log) Last() uint64 { return l.last.Load() }

// Failed is closed when the log has failed for good. The process should exit.
func (l *Log) Failed() <-chan struct{} { return l.failed }

// Err returns why the log failed, nil if it did not.
func (l *Log) Err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Close makes every accepted record durable, marks the end of the log, and releases the data directory. It wakes all
// waiters and waits for a running Snapshot. It returns the error of a log that had failed.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	l.broadcastRoom()
	l.mu.Unlock()
	// No file of the directory may change once its lock is released.
	l.snapshotting <- struct{}{}
	defer func() { <-l.snapshotting }()
	close(l.closing)
	l.wg.Wait()
	err := l.Err()
	for _, s := range l.openSegments() {
		err = errors.Join(err, s.close())
	}
	return errors.Join(err, l.lock.Close())
}

// openSegments returns the segments that may be open: the active one, the spares and, after a failure, those of the
// batches that were not committed.
func (l *Log) openSegments() []*segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append([]*segment{l.active}, l.spares...)
	for _, b := range []*batch{l.inflight.Load(), l.pending.Load()} {
		if b == nil {
			continue
		}
		for _, p := range b.parts {
			all = append(all, p.seg)
			if p.seals != nil {
				all = append(all, p.seals)
			}
		}
	}
	return all
}

// fail stops the log for good. No record is accepted from here on. Closing failed wakes the committer, which wakes the
// waiters.
func (l *Log) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure.Load() != nil {
		return
	}
	err := fmt.Errorf("%w: %w", ErrFailed, cause)
	l.failure.Store(&err)
	close(l.failed)
	l.broadcastRoom()
}

// broadcastRoom wakes the callers that wait for room. The caller holds mu.
func (l *Log) broadcastRoom() {
	if l.roomFreed != nil {
		close(l.roomFreed)
		l.roomFreed = nil
	}
}

func (l *Log) wakeCommitter() {
	select {
	case l.wake <- struct{}{}:
	default: // an earlier wake-up is still pending
	}
}

func (l *Log) wakePreparer() {
	select {
	case l.prepareWake <- struct{}{}:
	default:
	}
}

// counters is guarded by Log.mu.
type counters struct {
	batches  uint64
	records  uint64
	bytes    uint64
	logBytes int64 // bytes of the records after the snapshot
}
