package mem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/state"
)

// overhead is about what a version in a layer takes besides its key, its sort keys and its value.
const overhead = 240

// belowOverhead is about what the entries of the version below take besides their key and sort keys.
const belowOverhead = 72

// memory is about how many bytes a record in a layer takes besides overhead.
func (r *record) memory() int64 {
	n := int64(len(r.data))
	if r.below != nil && r.below != noEntries {
		n += belowOverhead + int64(len(r.below.data))
	}
	return n
}

// weight is about how many bytes of memory a layer takes.
func (l *layer) weight() int64 { return l.records.bytes + overhead*int64(l.records.len()) }

// freeze describes the frozen layers.
type freeze struct {
	active bool
	// sequence is that of the last log record whose changes are in the frozen layers or below.
	sequence uint64
	// failed is why the last flush could not write the state; nil after one that could.
	failed error
	// over is closed when the next flush ends, in whichever way; nil while nobody waits for that.
	over chan struct{}
}

// frozen is what a flush reads of a collection without the lock. Neither the layer nor the indexes in the list change.
type frozen struct {
	name    store.Collection
	indexes []*index
	layer   *layer
	counts  state.Counts
}

// freezeHot makes the hot layers the frozen ones. The caller holds the lock; nothing must be frozen.
func (s *Store) freezeHot(seq uint64) {
	for _, c := range s.collections {
		c.frozen, c.hot = c.hot, newLayer()
		for _, ix := range c.indexes {
			ix.passedFrozen = passed{}
		}
	}
	s.freeze.active, s.freeze.sequence = true, seq
	s.hotBytes = 0
	s.sinceFlush.Store(0)
}

// frozenList lists the frozen layers. The caller holds the lock.
func (s *Store) frozenList() []frozen {
	var list []frozen
	counts := s.state.Counts()
	for _, c := range s.collections {
		if c.frozen == nil { // made after the layers were frozen
			continue
		}
		f := frozen{name: c.name, indexes: c.indexes, layer: c.frozen}
		old := counts[c.name]
		f.counts = state.Counts{Records: old.Records + c.frozen.count, Bytes: old.Bytes + c.frozen.bytes, Entries: make(map[string]int, len(c.indexes))}
		for i, ix := range c.indexes {
			n := old.Entries[ix.name]
			if i < len(c.frozen.entries) {
				n += c.frozen.entries[i]
			}
			f.counts.Entries[ix.name] = n
		}
		list = append(list, f)
	}
	return list
}

// batchOf is what the frozen layers change in the state.
func batchOf(list []frozen, seq uint64) state.Batch {
	b := state.Batch{Sequence: seq, Counts: make(map[store.Collection]state.Counts, len(list))}
	for _, f := range list {
		b.Counts[f.name] = f.counts
		b.Size += f.layer.records.len()
	}
	b.Changes = func(yield func(state.Change) bool) {
		var room []store.Entry
		for _, f := range list {
			for rec := range f.layer.records.all() {
				c := state.Change{Collection: f.name, Key: rec.key(), Deleted: rec.gone, Existed: rec.below != nil, Before: f.entries(&room, rec.below)}
				if !rec.gone {
					c.Value, c.Entries = rec.value(), f.entries(&room, rec)
				}
				if !yield(c) {
					return
				}
			}
		}
	}
	return b
}

// entriesRoom is for how many entries room is allocated at a time.
const entriesRoom = 1024

func (f *frozen) entries(room *[]store.Entry, rec *record) []store.Entry {
	if rec == nil || rec.n == 0 {
		return nil
	}
	n := int(rec.n)
	if len(*room) < n {
		*room = make([]store.Entry, max(entriesRoom, n))
	}
	list := (*room)[:n:n]
	*room = (*room)[n:]
	for i := range list {
		list[i] = store.Entry{Index: f.indexes[rec.slot(i).index].name, SortKey: rec.sortKeyAt(i)}
	}
	return list
}

// thaw drops the frozen layers, which the state has now. The caller holds the lock.
func (s *Store) thaw(list []frozen) {
	for _, f := range list {
		c := s.collections[f.name]
		for _, ix := range f.indexes {
			ix.onDisk = f.counts.Entries[ix.name]
			c.trimPassed(ix)
		}
	}
	for _, c := range s.collections {
		c.frozen = nil
	}
	s.generation++
	s.freeze.active, s.freeze.failed = false, nil
}

// trimPassed makes scans see the entries of the frozen layer on disk.
func (c *collection) trimPassed(ix *index) {
	t := c.frozen.tree(ix)
	if t == nil {
		return
	}
	ix.passed.trim(func(from string) (pos string, ok bool) {
		h, err := member.Split(from)
		if err != nil {
			return "", true // nothing is known of this span any more
		}
		t.ascend(ix.pivot(h.SortKey, h.Key), func(it item) bool {
			pos, ok = member.Join(it.rec.sortKey(ix), it.rec.key()), true
			return false
		})
		return pos, ok
	})
}

// full reports whether a transaction must not change anything at present, because memory has as many changes as it may, or
// the log is as long. Then it returns a channel that is closed when a flush has ended, or why flushes fail. The caller
// holds the lock.
func (s *Store) full() (flushed <-chan struct{}, err error) {
	if s.state == nil || s.hotBytes < 2*s.opts.LayerBytes && s.sinceFlush.Load() < 2*s.opts.FlushBytes {
		return nil, nil
	}
	s.wantFlush()
	if err := s.freeze.failed; err != nil {
		return nil, err
	}
	if s.freeze.over == nil {
		s.freeze.over = make(chan struct{})
	}
	return s.freeze.over, nil
}

// flushEnded wakes the callers that wait for the end of a flush. The caller holds the lock.
func (s *Store) flushEnded() {
	if s.freeze.over != nil {
		close(s.freeze.over)
		s.freeze.over = nil
	}
}

// awaitFlush waits until a flush has ended.
func (s *Store) awaitFlush(ctx context.Context, flushed <-chan struct{}) error {
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return store.ErrClosed
	case <-s.failed:
		return s.Err()
	}
}

// Flush moves all changes so far from memory to the state, and lets the log delete the segments that only they needed.
// Without a log it does nothing. One flush runs at a time; a second call waits for the first, until ctx ends.
func (s *Store) Flush(ctx context.Context) error {
	_, err := s.flush(ctx)
	return translate(err)
}

func (s *Store) lockFlush(ctx context.Context) error {
	select {
	case s.flushing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return store.ErrClosed
	}
}

func (s *Store) flush(ctx context.Context) (res FlushResult, err error) {
	if s.log == nil {
		return res, nil
	}
	if err := s.lockFlush(ctx); err != nil {
		return res, err
	}
	defer func() { <-s.flushing }()
	start := time.Now()
	s.gather()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return res, store.ErrClosed
	}
	if !s.freeze.active {
		if s.log.Last() == s.state.Sequence() {
			s.sinceFlush.Store(0)
			s.flushEnded()
			s.mu.Unlock()
			return res, s.retireLog(ctx)
		}
		s.freezeHot(s.log.Last())
	}
	list, seq := s.frozenList(), s.freeze.sequence
	s.mu.Unlock()
	for _, f := range list {
		res.Records += f.layer.records.len()
	}
	if err = s.log.WaitDurable(ctx, seq); err == nil {
		err = s.state.Write(ctx, batchOf(list, seq))
	}
	s.gather()
	s.mu.Lock()
	switch {
	case err == nil:
		s.thaw(list)
	case ctx.Err() != nil || s.closed: // the next flush is tried at once
	case errors.Is(err, store.ErrNoSpace):
		s.freeze.failed = err
	default:
		s.freeze.failed = fmt.Errorf("%w: changes cannot be flushed: %w", store.ErrUnavailable, err)
	}
	s.flushEnded()
	s.mu.Unlock()
	if err == nil {
		err = s.retireLog(ctx)
	}
	res.Sequence, res.Took, res.Err = seq, time.Since(start), translate(err)
	return res, err
}

// gather lets a simulation do all that belongs to this instant first; see wal.Options.Gather.
func (s *Store) gather() {
	if g := s.opts.Log.Gather; g != nil {
		g()
	}
}

// pointer is the only record of a snapshot that says: the state has it all.
var pointer = []byte("state")

// retireLog lets the log delete what the state has.
func (s *Store) retireLog(ctx context.Context) error {
	seq := s.state.Sequence()
	keep := seq + 1
	if s.opts.Keep != nil {
		keep = max(1, min(keep, s.opts.Keep()))
	}
	return s.log.Snapshot(ctx, seq, keep, pointer)
}

func (s *Store) wantFlush() {
	select {
	case s.flushDue <- struct{}{}:
	default:
	}
}

// flushLoop flushes whenever there is enough to flush.
func (s *Store) flushLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.flushDue:
		}
		res, err := s.flush(ctx)
		if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
			return
		}
		if s.opts.OnFlush != nil && (err != nil || res.Sequence != 0) {
			s.opts.OnFlush(res)
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		due := s.flushDue
		if s.freeze.failed != nil {
			due = nil
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-due: // only the log could not be made shorter
		case <-time.After(s.opts.FlushRetry):
		}
		s.wantFlush()
	}
}

// failLoop closes failed when the log or the state has failed.
func (s *Store) failLoop(ctx context.Context) {
	select {
	case <-s.log.Failed():
	case <-s.state.Failed():
	case <-ctx.Done():
		return
	}
	close(s.failed)
}

// scrubPatience bounds how long Scrub waits for Options.Keep.
const scrubPatience = time.Minute

// Scrub is store.Capabilities.Scrub of a store with a log: the records after write are in a new segment, the segments before it are deleted, and
// the state is written again. The segments that Options.Keep needs stay, and Scrub returns an error if it needs them for
// longer than a minute.
func (s *Store) Scrub(ctx context.Context, write func(context.Context) error) error {
	if err := s.log.Roll(ctx); err != nil {
		return translate(err)
	}
	before := s.log.Last()
	deadline := time.Now().Add(scrubPatience)
	for s.opts.Keep != nil && s.opts.Keep() <= before {
		if time.Now().After(deadline) {
			return errors.New("the log has records that were not copied yet")
		}
		if err := store.Wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	// The flush of a record that is written only now deletes the segments before it.
	if err := write(ctx); err != nil {
		return err
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	return translate(s.state.Compact(ctx))
}

// Copy is a state with what a log needs to begin from it: records in the log's form, which Open takes as a snapshot.
type Copy struct {
	s    *Store
	snap diskSnapshot
	at   time.Time
	buf  []byte

	mu     sync.Mutex
	closed bool
}

// copyBytes is about how many bytes of records are in one record of a copy.
const copyBytes = 64 << 10

// OpenCopy returns the state as of the last flush; nil before the first one. The caller must Close it.
func (s *Store) OpenCopy(ctx context.Context) (*Copy, error) {
	if s.state == nil {
		return nil, nil
	}
	if err := s.lockFlush(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.flushing }()
	if s.state.Sequence() == 0 {
		return nil, nil
	}
	snap, err := s.state.Snapshot(ctx)
	if err != nil {
		return nil, translate(err)
	}
	c := &Copy{s: s, snap: snap, at: s.opts.Clock()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copies == nil {
		s.copies = make(map[*Copy]struct{})
	}
	s.copies[c] = struct{}{}
	return c, nil
}

// endCopies closes the copies that are open, and waits for calls of Next.
func (s *Store) endCopies() {
	s.mu.Lock()
	copies := s.copies
	s.copies = nil
	s.mu.Unlock()
	for c := range copies {
		c.end()
	}
}

// StateSequence is that of the last log record that the state has. It does not open a copy.
func (s *Store) StateSequence() uint64 { return s.state.Sequence() }

// Sequence is that of the last log record that the copy has.
func (c *Copy) Sequence() uint64 { return c.snap.Sequence() }

// Next returns the next records in the form of a log record, valid until the next call. It returns false after the last
// one.
func (c *Copy) Next() (body []byte, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, store.ErrClosed
	}
	c.buf = c.buf[:0]
	for len(c.buf) < copyBytes {
		name, key, r, ok, err := c.snap.Next()
		if err != nil {
			return nil, false, fmt.Errorf("a copy of the state: %w", translate(err))
		}
		if !ok {
			break
		}
		if len(c.buf) == 0 {
			c.buf = appendHeader(c.buf, c.at)
		}
		c.buf = appendPutOf(c.buf, name, key, r.Value, r.Entries)
	}
	return c.buf, len(c.buf) > 0, nil
}

// Close releases the copy. Close of the store does the same.
func (c *Copy) Close() {
	c.s.mu.Lock()
	delete(c.s.copies, c)
	c.s.mu.Unlock()
	c.end()
}

func (c *Copy) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		_ = c.snap.Close()
	}
}
