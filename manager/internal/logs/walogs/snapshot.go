package walogs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// duty gives up what retention does not keep, and takes a snapshot when one is due.
func (l *walLog) duty(ctx context.Context) {
	if err := l.wal.Err(); err != nil {
		l.mu.Lock()
		said := l.failed
		l.failed = true
		l.mu.Unlock()
		if !said {
			l.engine.opts.Logger.Error("log failed: it takes no appends until the manager has been started again", "log", l.name, "error", err.Error())
		}
		return
	}
	due, tick := l.retain()
	if !due {
		return
	}
	if tick { // a snapshot needs a record of its own
		if err := l.write(ctx, func() ([]byte, func(), error) {
			return binary.AppendUvarint([]byte{kindTime}, uint64(l.now())), func() {}, nil
		}); err != nil {
			return
		}
	}
	start := time.Now()
	err := l.snapshot(ctx)
	l.mu.Lock()
	l.since, l.took = l.engine.opts.Elapsed(), time.Since(start)
	l.mu.Unlock()
	switch {
	case err == nil:
		l.engine.opts.Logger.Debug("log snapshot taken", "log", l.name, "took_ms", time.Since(start).Milliseconds())
	case ctx.Err() == nil && !errors.Is(err, wal.ErrClosed):
		l.engine.opts.Logger.Error("snapshot of a log failed; its start-up takes longer until one succeeds", "log", l.name, "error", err.Error())
	}
}

// retain advances the oldest kept entry, and reports whether a snapshot is due, and whether there
// has been no record since the last one.
func (l *walLog) retain() (due, tick bool) {
	s := l.wal.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	c, now := l.state.Config(), l.now()
	drop := 0
	for drop+1 < len(l.points) {
		next := l.points[drop+1]
		old := c.Retain > 0 && now-next.at >= int64(c.Retain)
		large := c.RetainBytes > 0 && l.written-next.written >= uint64(c.RetainBytes)
		if !old && !large {
			break
		}
		drop++
	}
	if c.Retain > 0 && len(l.points) > 0 && now-l.lastAt >= int64(c.Retain) {
		drop = len(l.points)
	}
	if drop > 0 {
		l.points = slices.Delete(l.points, 0, drop)
		l.first = l.state.Next()
		if len(l.points) > 0 {
			l.first = l.points[0].number
		}
	}
	var info logs.Info
	l.state.Fill(&info)
	if info.Evicted > l.warned {
		l.engine.opts.Logger.Warn("a log's window is full: ids were forgotten before their time, their entries can be written again",
			"log", l.name, "ids", info.Evicted-l.warned, "age_seconds", info.EvictedAge.Seconds(), "max_keys", c.MaxKeys, "max_bytes", c.MaxBytes)
		l.warned = info.Evicted
	}
	if crowded := info.Writers >= logs.MaxWriters*3/4; crowded != l.crowded {
		if l.crowded = crowded; crowded {
			l.engine.opts.Logger.Warn("a log has many writers: beyond its limit new ones are refused, remove those that do not come back",
				"log", l.name, "writers", info.Writers, "limit", logs.MaxWriters)
		}
	}
	opts := &l.engine.opts
	frees := l.oldest().written-l.freed >= uint64(opts.SegmentBytes)
	if drop > 0 && len(l.points) == 0 && s.Segments > 1 {
		frees = true
	}
	late := s.Last > s.SnapshotSequence && opts.Elapsed()-l.since >= max(opts.SnapshotInterval, snapshotShare*l.took)
	due = frees || late || s.LogBytes >= max(opts.SnapshotBytes, 2*s.SnapshotBytes) || l.state.Next()-l.snapped >= opts.SnapshotEntries
	return due, s.Last == s.SnapshotSequence
}

// oldest is the point from which on records are kept; the caller holds mu.
func (l *walLog) oldest() point {
	if len(l.points) > 0 {
		return l.points[0]
	}
	return point{number: l.state.Next(), seq: l.wal.Last() + 1, at: l.lastAt, written: l.written}
}

// snapshotShare is how many times as long as a snapshot takes must pass before the next one is taken
// for its age, so that a log with a large window does not spend its time on them.
const snapshotShare = 100

// pointsInRecord is how many points go into one record of a snapshot.
const pointsInRecord = 4096

// snapshot writes the state. Everything up to seq is in it: records and state change together.
func (l *walLog) snapshot(ctx context.Context) error {
	l.mu.Lock()
	seq, next, oldest := l.wal.Last(), l.state.Next(), l.oldest()
	keep := oldest.seq
	if f := l.engine.opts.Follower; f != nil {
		keep = min(keep, f.KeepNamed(l.name))
	}
	l.state.Advance(l.now())
	state, points := l.state.Snapshot(), slices.Clone(l.points)
	tail := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint([]byte{kindPoints}, l.first), l.written), uint64(l.lastAt))
	l.mu.Unlock()
	err := l.wal.SnapshotKeeping(ctx, seq, keep, func(w *wal.SnapshotWriter) error {
		if err := state.Write(w.Add); err != nil {
			return err
		}
		for rec := tail; ; rec = slices.Clone(tail) {
			for _, p := range points[:min(pointsInRecord, len(points))] {
				for _, v := range []uint64{p.number, p.seq, uint64(p.at), p.written} {
					rec = binary.AppendUvarint(rec, v)
				}
			}
			if err := w.Add(rec); err != nil || len(points) <= pointsInRecord {
				return err
			}
			points = points[pointsInRecord:]
		}
	})
	if err == nil {
		l.mu.Lock()
		l.snapped, l.freed = next, oldest.written
		l.mu.Unlock()
	}
	return err
}

// restorePoints reads a record of points.
func (l *walLog) restorePoints(b []byte) error {
	r := codec.NewReader(b)
	l.first, l.written, l.lastAt = r.Uvarint(), r.Uvarint(), int64(r.Uvarint())
	for len(r.Rest()) > 0 {
		l.points = append(l.points, point{r.Uvarint(), r.Uvarint(), int64(r.Uvarint()), r.Uvarint()})
	}
	if r.Err() != nil || l.state == nil || l.first == 0 || l.first > l.state.Next() {
		return fmt.Errorf("the snapshot's points are no points, or of the future: first entry %d", l.first)
	}
	if len(l.points) > 0 {
		l.freed = l.points[0].written
	} else {
		l.freed = l.written
	}
	return nil
}
