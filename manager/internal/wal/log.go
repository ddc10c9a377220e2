package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
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

	// What waiters look at without the lock. pending is the batch that
	// collects, inflight the one taken last to be committed; they are stored
	// in that order, inflight first, so that a reader that sees a newer pending
	// finds an older record's batch in inflight or durable.
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
	noSpace     error         // why the last preparation failed, nil if it did not
	short       bool          // the last preparation failed because the system is short of something
	spareWanted bool          // a record waits for a spare, however empty the active segment is
	kickAt      int64         // tail at which the preparer has work again
	queued      int           // bytes in pending and inflight
	free        buffers       // of batches that are durable
	room        chan struct{} // closed when the wait for room may be over; nil without waiters
	wakeAt      uint64        // sequence number whose record wakes the committer
	idle        bool          // everything is durable, and nobody writes to the active segment
	led         bool          // an appender commits, see AppendLead
	alone       bool          // the last batch had one record, and was quick
	marked      bool          // the log ends with a mark
	lastBatch   time.Time     // when it was durable
	markDue     *time.Timer   // looked at by the committer
	markArmed   bool
	closed      bool

	segments []segmentInfo // in use, oldest first; the last one is active
	snapshot snapshotInfo
	stats    counters

	wake     chan struct{}
	kick     chan struct{}
	closing  chan struct{}
	wg       sync.WaitGroup
	recovery Recovery

	snapshotting chan struct{}    // has a value while Snapshot runs
	garbage      []string         // files to delete with the next snapshot; guarded by snapshotting
	undeleted    map[string]error // those of garbage that could not be deleted; guarded by mu
	stopSnapshot func()           // guarded by mu
}

// segmentInfo is what retention needs to know about a segment in use.
type segmentInfo struct {
	number   uint64
	first    uint64 // sequence number of its first record
	capacity int64
}

// batch is a group commit in the making.
type batch struct {
	first uint64 // immutable
	last  uint64 // the rest is guarded by Log.mu until the committer takes it
	bytes int
	parts []part
	one   [1]part
	done  chan struct{}
	calls []Waiter // guarded by Log.mu even then
}

// Waiter is a channel that gets a value when a record is durable.
type Waiter struct {
	Sequence uint64
	// C is sent a value; when it has no room for one that is left out.
	C chan<- struct{}
}

func (w Waiter) tell() {
	select {
	case w.C <- struct{}{}:
	default:
	}
}

// part is the stretch of a batch that goes into one segment.
type part struct {
	seg   *segment
	seals *segment // segment that this part's segment follows, if it is the first part of its own
	off   int64
	buf   []byte
}

// Append queues body as the next record and returns its sequence number. It
// copies body and does not wait: the record is durable when WaitDurable says
// so. See the package documentation for what an accepted record may rely on.
//
// Errors: ErrTooLarge, ErrBusy, ErrNoSpace, ErrFailed, ErrClosed. After any of
// them the log is as before.
func (l *Log) Append(body []byte) (uint64, error) {
	seq, _, err := l.append(body, false)
	return seq, err
}

// AppendLead is Append for a caller that is going to wait anyway. When lead is
// true it must call Lead, soon and whatever happens: until then neither this
// record nor any that follow become durable. That is so when the log is idle and
// the last record was committed alone, and quickly.
func (l *Log) AppendLead(body []byte) (seq uint64, lead bool, err error) {
	return l.append(body, true)
}

func (l *Log) append(body []byte, mayLead bool) (seq uint64, lead bool, err error) {
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
	if l.tail+size > l.active.capacity {
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
	kick := l.tail >= l.kickAt
	if kick {
		l.kickAt = math.MaxInt64
	}
	wake := seq == l.wakeAt
	if wake && l.idle {
		l.idle = false
		if lead = mayLead && l.alone; lead {
			l.led, l.wakeAt, wake = true, math.MaxUint64, false
		}
	}
	l.mu.Unlock()
	if wake {
		l.wakeCommitter()
	}
	if kick {
		l.kickPreparer()
	}
	return seq, lead, nil
}

// admit tells whether a body of n bytes can be placed now.
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
	if l.noSpace != nil { // the preparer tries again by itself, every SpaceRetry
		return fmt.Errorf("%w: %w", ErrNoSpace, l.noSpace)
	}
	l.spareWanted = true
	if !l.short { // then it tries again by itself as well
		l.kickPreparer()
	}
	return ErrBusy
}

func (l *Log) spareFits(size int) bool {
	return len(l.spares) > 0 && segmentHeaderSize+int64(size) <= l.spares[0].capacity
}

// roll makes the first spare the active segment, with its header as the next
// bytes of b.
func (l *Log) roll(b *batch) {
	old := l.active
	l.active, l.spares = l.spares[0], l.spares[1:]
	first := b.last + 1
	l.segments = append(l.segments, segmentInfo{l.active.number, first, l.active.capacity})
	h := segmentHeader{l.id, l.active.number, first, l.active.capacity}
	p := b.partIn(l.active, 0, &l.free)
	p.seals = old
	p.buf = h.append(p.buf)
	b.bytes += segmentHeaderSize
	l.queued += segmentHeaderSize
	l.tail = segmentHeaderSize
	l.kickAt = 0
}

// partIn returns the batch's part in seg, a new one at off when there is none.
func (b *batch) partIn(seg *segment, off int64, free *buffers) *part {
	if n := len(b.parts); n > 0 && b.parts[n-1].seg == seg {
		return &b.parts[n-1]
	}
	b.parts = append(b.parts, part{seg: seg, off: off, buf: free.take()})
	return &b.parts[len(b.parts)-1]
}

// buffers keeps as many as are in use at once: one batch collects while
// another is being committed.
type buffers [2][]byte

func (f *buffers) take() []byte {
	for i, buf := range f {
		if buf != nil {
			f[i] = nil
			return buf[:0]
		}
	}
	return nil
}

func (f *buffers) give(buf []byte) {
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

// WaitDurable waits until the record seq, and so every record before it, is
// durable. When ctx ends first its error is returned and the record's fate is
// open. ErrFailed when the log failed before the record was durable.
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
				continue // it became durable between the two loads
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

// Notify tells each of the waiters once, when its record, which must have been
// appended, is durable or the log has failed, and so when WaitDurable will not
// wait any more. It is for callers that wait for something else as well; it does
// not wait and does not keep the slice.
func (l *Log) Notify(waiters []Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := l.failure.Load() != nil
	for _, w := range waiters {
		if failed || w.Sequence <= l.durable.Load() {
			w.tell()
			continue
		}
		b := l.pending.Load()
		if w.Sequence < b.first {
			b = l.inflight.Load()
		}
		b.calls = append(b.calls, w)
	}
}

// WaitRoom waits, after ErrBusy, until an Append of n bytes would not meet
// ErrBusy again. Others may take the room first. It returns the other errors of
// Append, ErrNoSpace among them.
func (l *Log) WaitRoom(ctx context.Context, n int) error {
	return l.waitFor(ctx, n, ErrBusy)
}

// WaitSpace is WaitRoom for callers that would rather wait than fail when the disk
// is full: it waits until there is space again, too.
func (l *Log) WaitSpace(ctx context.Context, n int) error {
	return l.waitFor(ctx, n, ErrBusy, ErrNoSpace)
}

// waitFor waits while an Append of n bytes would fail with one of the errors.
func (l *Log) waitFor(ctx context.Context, n int, while ...error) error {
	for {
		l.mu.Lock()
		err := l.admit(n)
		if !slices.ContainsFunc(while, func(e error) bool { return errors.Is(err, e) }) {
			l.mu.Unlock()
			return err
		}
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room := l.room
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

// Last is the sequence number of the last appended record, 0 before the first.
func (l *Log) Last() uint64 { return l.last.Load() }

// Failed is closed when the log failed for good. The process should exit.
func (l *Log) Failed() <-chan struct{} { return l.failed }

// Err tells why the log failed, nil while it did not.
func (l *Log) Err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Close makes every accepted record durable, marks the end of the log, and
// releases the data directory. Waiters get their answers; a running Snapshot
// is stopped. It returns the failure of a log that failed.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	l.broadcastRoom()
	if l.stopSnapshot != nil {
		l.stopSnapshot()
	}
	l.mu.Unlock()
	// Nothing may touch the directory once its lock is gone.
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

// openSegments are those that may be open: the active and the spare ones and,
// after a failure, those of the batches that were not committed.
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

// fail stops the log for good: nothing is accepted from here on, and the
// committer, woken by failed, releases the waiters.
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

// broadcastRoom wakes the callers that wait for room; the caller holds mu.
func (l *Log) broadcastRoom() {
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

func (l *Log) wakeCommitter() {
	select {
	case l.wake <- struct{}{}:
	default: // it has not taken the last wake-up yet
	}
}

func (l *Log) kickPreparer() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// counters is guarded by Log.mu.
type counters struct {
	batches  uint64
	records  uint64
	bytes    uint64
	logBytes int64 // of the records behind the snapshot
}
