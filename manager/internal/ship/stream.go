package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

const (
	// commitRuns and commitBytes are how many runs, and how much of them, the tail
	// has before the manifest names them.
	commitRuns  = 64
	commitBytes = 64 << 20
	// stepRuns is how many runs one step ships, so that the rest of a step does not wait for many.
	stepRuns = 4
	// mergeRuns is how many small runs make a merge worth its while.
	mergeRuns = 64
	// maxPoints bounds how many points in time wait to be shipped.
	maxPoints = 4096
)

// stream ships the log. All of it belongs to the loop of the shipper, except what says otherwise.
type stream struct {
	log  Log
	opts *Options

	term      uint64
	claimed   bool // a manifest of this term is this process's
	manifest  *manifest
	version   object.Version
	edits     uint64 // counts tries, so that none is taken for another
	next      uint64 // sequence number of the record to ship next
	tailIndex uint64 // of the next run of the tail
	index     uint64 // of the next merged run or snapshot
	pending   []run  // of the tail, which the manifest does not name yet
	unsent    *chunk // a run whose write has an unknown outcome
	head      head   // of the tail, as it was written last
	headAt    object.Version
	unshipped bool   // there was more to ship than one step ships
	covered   uint64 // WentBack was called for a history that ends here
	pruned    time.Time
	swept     time.Time

	// broken says that records before those of the tail were not shipped, so that a snapshot must bridge them.
	broken     bool
	upload     *upload // nil when no snapshot is on its way
	uploading  bool    // the upload has more for the next step
	unreadable error   // why the last snapshot could not be read
	readAgain  time.Time

	written atomic.Uint64 // of the records up to here the log need not keep any to ship them
	shipped atomic.Uint64 // every record up to here can be restored, as far as is known

	mu     sync.Mutex
	points []point   // not shipped yet
	since  time.Time // when the oldest record that cannot be restored became durable, while broken
}

// chunk is a run on its way.
type chunk struct {
	run
	object *packed
}

// lag is for how long the oldest record that was not shipped has been durable, and how
// many such records there are. Any goroutine may call it.
func (st *stream) lag(now time.Time) (time.Duration, uint64) {
	durable, shipped := st.log.Durable(), st.shipped.Load()
	if shipped >= durable {
		return 0, 0
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	since := st.since
	if since.IsZero() {
		since = st.waiting(shipped, now)
	}
	return max(0, now.Sub(since)), durable - shipped
}

// waiting is when the first record after seq became durable; now when that is not known. The caller holds mu.
func (st *stream) waiting(seq uint64, now time.Time) time.Time {
	for _, p := range st.points {
		if p.Sequence > seq {
			return time.UnixMilli(p.Time)
		}
	}
	return now
}

// keep is the sequence number from which on the log must keep its records: of those that
// were not shipped, as many as the backlog may have. Any goroutine may call it.
func (st *stream) keep() uint64 {
	segments := st.log.Segments()
	left := st.opts.BacklogBytes
	from := segments[len(segments)-1].First
	for _, s := range slices.Backward(segments) {
		if left -= s.Capacity; left < 0 {
			break
		}
		from = s.First
	}
	return max(from, st.written.Load()+1)
}

// begin begins a new term. It adopts the runs that the last term shipped and its manifest does not
// name. Then it continues the history, or begins a new one when the
// log is another one or was forked.
func (st *stream) begin(ctx context.Context, term uint64) error {
	m, version, err := readManifest(ctx, st.opts.Store)
	if errors.Is(err, object.ErrNotFound) {
		m, err = &manifest{Version: manifestVersion}, nil
		st.shipped.Store(0) // a restore finds nothing, whatever an earlier manifest named
	}
	if err != nil {
		return err
	}
	if err := st.opts.ours(m.Ledger); err != nil {
		return err
	}
	if err := st.opts.holdsLease(ctx, term); err != nil {
		return err
	}
	// The names of a used term are taken. That happens when the lease was lost and its terms began with 1 again.
	if m.Term > term || m.Term == term && !st.claimed {
		return errFenced
	}
	st.claimed = true
	if st.term != term { // names are used once
		st.term, st.index = term, 0
	}
	st.manifest, st.version = m.clone(), version
	st.tailIndex, st.pending, st.unsent = 0, nil, nil
	st.dropUpload()
	same, err := st.meet(ctx, st.manifest)
	if err != nil {
		return err
	}
	h := st.manifest.last()
	if err := st.newHead(ctx); err != nil {
		return err
	}
	if !same {
		return st.newHistory(ctx)
	}
	st.broken = h.broken()
	st.setNext(h.nextRun())
	if err := st.edit(ctx, func(h *history) { h.Tail.Term = term }); err != nil {
		return err
	}
	st.setBroken()
	return nil
}

// meet adds the rest of its tail to the last history, and reports whether the log continues that history. If the log lacks
// records of it, WentBack has returned nil.
func (st *stream) meet(ctx context.Context, m *manifest) (same bool, err error) {
	h := m.last()
	if h != nil && h.Tail != nil {
		found, err := readTail(ctx, st.opts.Store, h, m.Writer)
		h.Runs = append(h.Runs, found...)
		if isDamage(err) {
			st.opts.Logger.Error("what was shipped is damaged; shipping starts over with a snapshot", "error", err.Error())
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	same, lacks, err := st.compare(ctx, h)
	if err != nil || !lacks || st.opts.ledger.WentBack == nil || h.end() == st.covered {
		return same, err
	}
	past := Longest{time.Duration(m.LongestTTL) * time.Millisecond, time.Duration(m.LongestWindow) * time.Millisecond}
	if err := st.opts.ledger.WentBack(ctx, h.end(), past); err != nil {
		return false, err
	}
	st.covered = h.end()
	return same, nil
}

// compare reports whether the log continues the history, because it has the last record of it, and whether it lacks
// records of the history. Neither is known of a log whose record at that place cannot be compared any more.
func (st *stream) compare(ctx context.Context, h *history) (same, lacks bool, err error) {
	if h == nil || h.Log != st.log.ID() {
		return false, false, nil
	}
	end := h.end()
	if end > st.log.Durable() {
		return false, true, nil
	}
	if h.empty() {
		return h.nextRun() >= st.log.First() && h.nextRun() <= st.log.Durable()+1, false, nil
	}
	if len(h.Runs) == 0 || h.Runs[len(h.Runs)-1].Last != end || end < st.log.First() {
		return false, false, nil
	}
	_, records, err := fetchRun(ctx, st.opts.Store, h.Runs[len(h.Runs)-1], h.Log)
	if lost(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	theirs := records[len(records)-1]
	stop := errors.New("seen")
	err = st.log.Records(ctx, end, func(_ uint64, body []byte) error {
		same = string(body) == string(theirs)
		lacks = !same
		return stop
	})
	if err != nil && !errors.Is(err, stop) && !errors.Is(err, wal.ErrGone) {
		return false, false, err
	}
	return same, lacks, nil
}

func (st *stream) setNext(next uint64) {
	st.next = next
	st.written.Store(next - 1)
	if !st.broken {
		st.shipped.Store(next - 1)
	}
}

// setBroken looks whether the manifest leads to the newest record.
func (st *stream) setBroken() {
	st.broken = st.manifest.last().broken()
	st.mu.Lock()
	switch {
	case !st.broken:
		st.since = time.Time{}
	case st.since.IsZero():
		st.since = st.waiting(st.shipped.Load(), time.Now())
	}
	st.mu.Unlock()
	st.setNext(st.next)
}

// newHistory begins a history with the log's snapshot, or with its first record. The one before
// does not change. The tail after the snapshot is shipped together with it.
func (st *stream) newHistory(ctx context.Context) error {
	h := history{Log: st.log.ID(), Began: time.Now().UnixMilli()}
	next := uint64(1)
	if st.log.SnapshotSequence() > 0 {
		if err := st.openSnapshot(ctx); err != nil {
			return err
		}
	}
	if st.upload != nil {
		next = st.upload.Sequence + 1
	} else if st.manifest.last() == nil {
		h.Began = st.firstPoint(h.Began)
	}
	h.Tail = &tail{Term: st.term, Next: st.tailIndex, From: next}
	var lacking uint64 // the first record that an older history of the same log lacks
	if old := st.manifest.last(); old != nil {
		if old.usable() {
			h.Reach = st.log.Durable()
		}
		if old.Log == h.Log {
			lacking = old.end() + 1
		}
	}
	if err := st.editAll(ctx, func(m *manifest) {
		if old := m.last(); old != nil {
			old.Ended, old.Tail = h.Began, nil
			if old.empty() {
				m.Histories = m.Histories[:len(m.Histories)-1]
			}
		}
		m.Histories = append(m.Histories, h)
	}); err != nil {
		return err
	}
	if lacking > 0 && lacking < next { // the backlog was too small, and the manager was started again before the store was back
		st.logGap(lacking, next)
	}
	st.next = next
	st.setBroken()
	return nil
}

// edit replaces the manifest by one in which fn changed the last history. It names the
// whole tail.
func (st *stream) edit(ctx context.Context, fn func(*history)) error {
	return st.editAll(ctx, func(m *manifest) {
		st.nameTail(m.last())
		if fn != nil {
			fn(m.last())
		}
	})
}

// nameTail makes the history name the whole tail.
func (st *stream) nameTail(h *history) {
	h.Runs = append(h.Runs, st.pending...)
	h.Tail.Next, h.Tail.From = st.tailIndex, st.next
}

func (st *stream) editAll(ctx context.Context, fn func(*manifest)) error {
	m := st.manifest.clone()
	fn(m)
	st.edits++
	m.Term, m.Edit, m.Writer = st.term, st.edits, st.opts.writer
	m.LongestTTL = max(m.LongestTTL, st.opts.LongestTTL().Milliseconds()) // older keys keep their longer TTL
	m.LongestWindow = max(m.LongestWindow, st.opts.ledger.LongestWindow().Milliseconds())
	m.EpochFloor, m.Ledger = max(m.EpochFloor, st.opts.ledger.EpochFloor()), st.opts.ledger.ID
	version, err := writeManifest(ctx, st.opts.Store, m, st.version)
	if err != nil {
		return err
	}
	st.manifest, st.version, st.pending = m, version, nil
	return nil
}

// step ships the records, edits and parts of a snapshot that are due. After an error, the next step ships the rest. ending
// says that the shipper is to end.
func (st *stream) step(ctx context.Context, ending bool) error {
	st.checkUpload()
	// The manifest has a longer TTL before the keys that have it are shipped, and a longer window before the ids.
	if st.opts.LongestTTL().Milliseconds() > st.manifest.LongestTTL || st.opts.ledger.LongestWindow().Milliseconds() > st.manifest.LongestWindow {
		if err := st.edit(ctx, nil); err != nil {
			return err
		}
	}
	if err := st.shipTail(ctx); err != nil {
		return err
	}
	if st.commitDue() {
		if err := st.edit(ctx, nil); err != nil {
			return err
		}
		if err := st.merge(ctx); err != nil {
			return err
		}
	}
	err := st.shipSnapshot(ctx, ending)
	return errors.Join(err, st.tidy(ctx)) // a snapshot that cannot be read does not keep old objects
}

func (st *stream) commitDue() bool {
	var bytes int64
	for _, r := range st.pending {
		bytes += r.Bytes
	}
	sealed := len(st.pending) > 0 && st.pending[0].Segment.Number < st.newest()
	return sealed || len(st.pending) >= commitRuns || bytes >= commitBytes
}

// shipTail ships the records that are durable when it begins, up to stepRuns runs of them.
func (st *stream) shipTail(ctx context.Context) error {
	st.unshipped = false
	all := point{Time: time.Now().UnixMilli()} // before Durable, as in addPoint
	all.Sequence = st.log.Durable()
	for n := 0; st.unsent != nil || st.next <= all.Sequence; n++ {
		if n == stepRuns {
			st.unshipped = true
			break
		}
		if st.unsent == nil {
			c, err := st.collect(ctx, all)
			if errors.Is(err, wal.ErrGone) {
				return st.skip(ctx)
			}
			if err != nil {
				return err
			}
			st.unsent = c
		}
		c := st.unsent
		if err := st.write(ctx, c.Name, c.object); err != nil {
			return err
		}
		st.unsent = nil
		st.pending = append(st.pending, c.run)
		st.tailIndex++
		st.setNext(c.Last + 1)
		st.forget()
		st.opts.counters.shipped(c.Bytes)
	}
	return st.writeHead(ctx)
}

// collect makes the next run of records up to all's.
func (st *stream) collect(ctx context.Context, all point) (*chunk, error) {
	until := all.Sequence
	segments := st.log.Segments()
	i := len(segments) - 1
	for i >= 0 && segments[i].First > st.next {
		i--
	}
	if i < 0 {
		return nil, fmt.Errorf("%w: %d", wal.ErrGone, st.next)
	}
	if i+1 < len(segments) {
		until = min(until, segments[i+1].First-1)
	}
	p := st.pack()
	last := st.next - 1
	enough := errors.New("enough")
	err := st.log.Records(ctx, st.next, func(seq uint64, body []byte) error {
		if seq > until || p.size() > 0 && p.size()+len(body) > targetBytes {
			return enough
		}
		p.add(body)
		last = seq
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		st.unpack(p)
		return nil, err
	}
	if last < st.next {
		return nil, fmt.Errorf("ship: record %d was durable and is not found", st.next)
	}
	c := &chunk{run: run{First: st.next, Last: last, Segment: segment(segments[i])}}
	h := header{Kind: kindRun, Log: st.log.ID(), First: c.First, Last: last, Segment: &c.Segment, Points: st.pointsOf(c.First, last, all), Writer: st.opts.writer}
	c.seal(tailName(st.term, st.tailIndex), h, p)
	return c, nil
}

// pack begins an object in memory that was used before.
func (st *stream) pack() *packer { return newPacker(st.opts.buffers.get()) }

// unpack gives back the memory of a packer that made no object.
func (st *stream) unpack(p *packer) {
	if !p.sealed {
		st.opts.buffers.put(p.b)
	}
}

// write writes an object whose name is used for this content only.
func (st *stream) write(ctx context.Context, name string, o *packed) error {
	failed := st.opts.counters.errors.Load()
	if err := put(ctx, st.opts.Store, logPrefix+"/"+name, o.body); err != nil {
		o.memory = nil // it may be tried again
		return err
	}
	// The client may still read the body of a try that was given up.
	if o.memory != nil && st.opts.counters.errors.Load() == failed {
		st.opts.buffers.put(o.memory)
	}
	return nil
}

// seal makes the object of a run and names it.
func (c *chunk) seal(name string, h header, p *packer) {
	c.object = p.seal(h)
	c.ref = c.object.ref(name)
	c.From, c.To = h.Points[0].Time, h.Points[len(h.Points)-1].Time
}

// logGap logs and counts that the records from from up to the one before next were never shipped.
func (st *stream) logGap(from, next uint64) {
	st.opts.Logger.Warn("records were not shipped before a snapshot replaced them: the times between cannot be restored to",
		"from", from, "to", next-1)
	st.opts.counters.gaps.Add(1)
}

// skip continues with the log's snapshot after records that the log no longer has. The tail after it is shipped together with
// it, so that the log does not lose more records meanwhile.
func (st *stream) skip(ctx context.Context) error {
	if u := st.upload; u == nil || u.Sequence < st.next || u.Sequence+1 < st.log.First() {
		st.dropUpload()
		if err := st.openSnapshot(ctx); err != nil {
			return err
		}
	}
	if st.upload == nil || st.upload.Sequence+1 < st.log.First() {
		return fmt.Errorf("ship: the log begins with record %d, and its snapshot does not lead there", st.log.First())
	}
	next := st.upload.Sequence + 1
	if err := st.edit(ctx, func(h *history) { h.Tail.From = next }); err != nil {
		return err
	}
	st.logGap(st.next, next)
	st.next = next
	st.setBroken()
	st.unshipped = true
	return nil
}
