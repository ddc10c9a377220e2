package mem

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

const (
	// snapshotStep is how many records a snapshot reads in one step, during which transactions wait.
	snapshotStep = 128
	// snapshotRecord is how many bytes of records go into one record of the snapshot file.
	snapshotRecord = 64 << 10
	// snapshotBurst is how many bytes are written before Options.SnapshotRate applies.
	snapshotBurst = 1 << 20
)

// snapshotRun is what a running snapshot and the transactions share, under Store.mu.
type snapshotRun struct {
	seq       uint64
	displaced []version
}

// version is a record as of a snapshot's sequence number.
type version struct {
	c   *collection
	rec *record
}

// keepDisplaced is how many displaced versions a snapshot has room for without allocating, since transactions would pay
// for the garbage collection.
const keepDisplaced = 1 << 16

// Snapshot writes a snapshot of the present state and lets the log delete what it replaces. Without a log it does
// nothing. One snapshot is written at a time; a second call waits for the first, until ctx ends.
func (s *Store) Snapshot(ctx context.Context) error {
	_, err := s.takeSnapshot(ctx)
	return translate(err)
}

func (s *Store) takeSnapshot(ctx context.Context) (res SnapshotResult, err error) {
	if s.log == nil {
		return res, nil
	}
	select {
	case s.snapshotting <- struct{}{}:
		defer func() { <-s.snapshotting }()
	case <-ctx.Done():
		return res, ctx.Err()
	}
	start := time.Now()
	before := s.sinceSnap.Load()

	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return res, store.ErrClosed
	}
	run := &snapshotRun{seq: s.log.Last()}
	collections := make([]*collection, 0, len(s.collections))
	for _, c := range s.collections {
		collections = append(collections, c)
	}
	s.snap = run
	s.mu.Unlock()
	walked := func() {
		s.mu.Lock()
		s.snap = nil
		s.mu.Unlock()
	}
	defer walked() // also when an error ends the walk early

	w := snapshotWriter{
		s: s, ctx: ctx, run: run, at: s.opts.Clock(), started: start, indexes: make(map[*collection][]*index),
	}
	keep := run.seq + 1
	if s.opts.Keep != nil {
		keep = max(1, min(keep, s.opts.Keep()))
	}
	err = s.log.SnapshotKeeping(ctx, run.seq, keep, func(out *wal.SnapshotWriter) error {
		w.out = out
		for _, c := range collections {
			if err := w.collection(c); err != nil {
				return err
			}
		}
		walked() // versions displaced from here on have been written already, however long the rest takes
		return w.flush()
	})
	if err == nil {
		s.sinceSnap.Add(-before)
		if w.out == nil {
			return res, nil // the last snapshot has all of the log
		}
	}
	return SnapshotResult{Sequence: run.seq, Records: w.records, Took: time.Since(start), Err: translate(err)}, err
}

// scrubPatience bounds how long Scrub waits for Options.Keep.
const scrubPatience = time.Minute

// Scrub implements store.Scrubber: the records after write are in a new segment, and the segments before it are deleted.
// Those that Options.Keep needs stay, and Scrub returns an error if it needs them for longer than a minute.
func (s *Store) Scrub(ctx context.Context, write func(context.Context) error) error {
	if s.log == nil {
		return write(ctx)
	}
	if err := s.log.Roll(ctx); err != nil {
		return translate(err)
	}
	before := s.log.Last()
	if err := write(ctx); err != nil {
		return err
	}
	deadline := time.Now().Add(scrubPatience)
	for s.opts.Keep != nil && s.opts.Keep() <= before {
		if time.Now().After(deadline) {
			return errors.New("the log has records that were not copied yet")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Snapshot(ctx)
}

// snapshotWriter walks over the records.
type snapshotWriter struct {
	s       *Store
	ctx     context.Context
	run     *snapshotRun
	at      time.Time
	out     *wal.SnapshotWriter
	buf     []byte
	step    []version
	indexes map[*collection][]*index // indexes of the collections in step
	records int
	started time.Time
	written int64
}

// collection writes c. It gives up the lock between two steps. Nobody changes the map during a step. What is added
// between steps is newer than the snapshot, so it does not matter whether the walk meets it.
func (w *snapshotWriter) collection(c *collection) (err error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	looked := 0
	c.records.each(func(rec *record) bool {
		if rec.seq <= w.run.seq {
			w.step = append(w.step, version{c, rec})
		}
		if looked++; looked%snapshotStep == 0 {
			err = w.writeStep()
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return w.writeStep()
}

// writeStep encodes the records of the step, and the versions that transactions passed on meanwhile. The caller holds
// the lock; writeStep releases it while it encodes.
func (w *snapshotWriter) writeStep() error {
	w.step = append(w.step, w.run.displaced...)
	clear(w.run.displaced)
	w.run.displaced = w.run.displaced[:0]
	if cap(w.run.displaced) > keepDisplaced {
		w.run.displaced = nil
	}
	// The names of indexes do not change, but indexes may be added.
	var last *collection
	for _, v := range w.step {
		if v.c != last {
			last = v.c
			w.indexes[last] = last.indexes
		}
	}
	w.s.mu.Unlock()
	defer w.s.mu.Lock()
	for _, v := range w.step {
		if err := w.add(v); err != nil {
			return err
		}
	}
	clear(w.step)
	w.step = w.step[:0]
	return w.ctx.Err()
}

func (w *snapshotWriter) add(v version) error {
	if len(w.buf) == 0 {
		w.buf = appendHeader(w.buf, w.at)
	}
	w.buf = appendPut(w.buf, v.c.name, w.indexes[v.c], v.rec)
	w.records++
	if len(w.buf) < snapshotRecord {
		return nil
	}
	return w.flush()
}

func (w *snapshotWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if err := w.out.Add(w.buf); err != nil {
		return err
	}
	w.written += int64(len(w.buf))
	w.buf = w.buf[:0]
	return w.pace()
}

// pace waits while the snapshot is ahead of its rate.
func (w *snapshotWriter) pace() error {
	if w.s.opts.SnapshotRate < 0 || w.written < snapshotBurst {
		return nil
	}
	due := time.Duration(float64(w.written-snapshotBurst) / float64(w.s.opts.SnapshotRate) * float64(time.Second))
	wait := due - time.Since(w.started)
	if wait < time.Millisecond {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// snapshotLoop takes a snapshot whenever the log has grown enough.
func (s *Store) snapshotLoop(ctx context.Context) {
	defer s.background.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.snapDue:
		}
		if s.sinceSnap.Load() < s.snapshotLimit() {
			continue
		}
		res, err := s.takeSnapshot(ctx)
		if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
			return
		}
		if s.opts.OnSnapshot != nil && (err != nil || res.Sequence != 0) {
			s.opts.OnSnapshot(res)
		}
		if err == nil {
			continue
		}
		pause := time.NewTimer(s.opts.SnapshotRetry)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		s.wantSnapshot()
	}
}

// snapshotLimit is how many bytes of log make a snapshot due.
func (s *Store) snapshotLimit() int64 {
	return max(s.opts.SnapshotBytes, s.log.Stats().SnapshotBytes)
}

func (s *Store) wantSnapshot() {
	select {
	case s.snapDue <- struct{}{}:
	default:
	}
}
