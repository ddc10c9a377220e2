package walogs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// Kinds of records, see doc.go.
const (
	kindSettings = 'g'
	kindEntries  = 'e'
	kindSealed   = 'x'
	kindWriter   = 'w'
	kindTime     = 't'
	kindPoints   = 'p' // of a snapshot
)

// walLog is an open log.
type walLog struct {
	name   string
	engine *Engine
	wal    *wal.Log
	gone   chan struct{} // closed with the log
	origin time.Duration // Elapsed when the log was opened
	base   int64         // log time then

	// mu orders everything: what is judged under it is appended under it.
	mu      sync.Mutex
	state   *logs.State
	buf     []byte
	points  []point // of what is kept, ascending
	first   uint64  // number of the oldest entry that is kept
	written uint64  // bytes of all entry records, ever
	lastAt  int64   // log time of the last entry
	wake    chan struct{}
	waiting int           // readers on wake
	snapped uint64        // number of the next entry as of the last snapshot
	freed   uint64        // written as of the oldest point at the last snapshot
	since   time.Duration // Elapsed at the last snapshot, or when the log was opened
	took    time.Duration // the last snapshot
	failed  bool          // and said so
	warned  uint64        // evictions that were logged
	crowded bool          // and said so: few more writers have room
}

// point is the position of an entry whose record is the first of about 64 KiB.
type point struct {
	number  uint64 // of the entry
	seq     uint64 // of its record
	at      int64  // log time
	written uint64 // before the record
}

const pointBytes = 64 << 10

var errNeverMade = errors.New("the log has no settings")

// open opens a log that was made before.
func (e *Engine) open(ctx context.Context, name string) (*walLog, error) {
	return e.openWith(ctx, name, nil)
}

// openWith opens a log and, with settings, makes it.
func (e *Engine) openWith(ctx context.Context, name string, settings *logs.Settings) (*walLog, error) {
	l := &walLog{name: name, engine: e, gone: make(chan struct{}), wake: make(chan struct{}), first: 1}
	opts := e.opts.Log
	opts.Restore, opts.Replay = l.restore, l.replay
	w, err := wal.Open(ctx, filepath.Join(e.dir, name), opts)
	if err != nil {
		return nil, err
	}
	l.wal = w
	switch {
	case l.state == nil && settings == nil:
		return nil, errors.Join(errNeverMade, w.Close())
	case l.state == nil:
		l.state = logs.NewState(settings.Name, settings.Key, settings.Config)
		seq, lead, err := w.AppendLead(settings.AppendJSON([]byte{kindSettings}))
		if lead {
			w.Lead()
		}
		if err == nil {
			err = w.WaitDurable(ctx, seq)
		}
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
	case l.state.Settings().Name != name:
		return nil, errors.Join(fmt.Errorf("the directory holds the log %q", l.state.Settings().Name), w.Close())
	}
	l.base, l.origin = l.state.Now(), e.opts.Elapsed()
	l.since = l.origin
	if l.snapped == 0 {
		l.snapped = 1
	}
	r := w.Recovery()
	e.opts.Logger.Info("log opened", "log", name, "entries", l.state.Next()-l.first, "records", r.Records, "snapshot_records", r.SnapshotRecords,
		"log_bytes", r.LogBytes, "torn_bytes", r.TornBytes, "took_ms", r.Took.Milliseconds())
	return l, nil
}

// now is the log time; the caller holds mu.
func (l *walLog) now() int64 {
	return max(l.state.Now(), l.base+int64(l.engine.opts.Elapsed()-l.origin))
}

// restore takes a record of the snapshot.
func (l *walLog) restore(rec []byte) (err error) {
	if rec[0] == kindPoints {
		return l.restorePoints(rec[1:])
	}
	var ok bool
	if l.state, ok, err = logs.RestoreState(l.state, rec); err == nil && !ok {
		err = fmt.Errorf("the snapshot has a record of kind %q, which this program does not know", rec[0])
	}
	if err == nil {
		l.snapped = l.state.Next()
	}
	return err
}

// replay takes a record after the snapshot.
func (l *walLog) replay(seq uint64, body []byte) error {
	err := l.apply(seq, body)
	if err != nil {
		err = fmt.Errorf("record %d: %w", seq, err)
	}
	return err
}

func (l *walLog) apply(seq uint64, body []byte) error {
	kind, b := body[0], body[1:]
	if l.state == nil && kind != kindSettings {
		return errors.New("the log does not begin with its settings")
	}
	switch kind {
	case kindSettings:
		var s logs.Settings
		if err := s.ParseJSON(b); err != nil {
			return err
		}
		if l.state == nil {
			l.state = logs.NewState(s.Name, s.Key, s.Config)
		} else {
			l.state.SetConfig(s.Config)
		}
		return nil
	case kindEntries, kindSealed:
		noted := false
		return eachEntry(l.engine.opts.Ring, l.name, body, func(e *logs.Entry, at int64) error {
			if want := l.state.Next(); e.Number != want {
				return fmt.Errorf("it holds entry %d, %d comes next", e.Number, want)
			}
			if !noted {
				noted = true
				l.remember(seq, e.Number, at, len(body))
			}
			l.state.Replay(e, at)
			return nil
		})
	case kindWriter:
		epoch, n := binary.Uvarint(b)
		if n <= 0 || len(b) == n {
			return errors.New("it is no writer's epoch")
		}
		l.state.SetEpoch(string(b[n:]), epoch)
		return nil
	case kindTime:
		at, n := binary.Uvarint(b)
		if n <= 0 || at > 1<<62 {
			return errors.New("it is no log time")
		}
		l.state.Advance(int64(at))
		return nil
	}
	return fmt.Errorf("it is of kind %q, which this program does not know", kind)
}

// remember keeps where a record of entries is, for readers and retention; the caller holds mu.
func (l *walLog) remember(seq, number uint64, at int64, size int) {
	if n := len(l.points); n == 0 || l.written-l.points[n-1].written >= pointBytes {
		l.points = append(l.points, point{number, seq, at, l.written})
	}
	l.written += uint64(size)
	l.lastAt = at
}

// append judges the items, writes those that are accepted, and waits until all that the outcomes
// say is durable.
func (l *walLog) append(ctx context.Context, items []logs.Item, atomic bool) ([]logs.Outcome, error) {
	b := l.state.Prepare(items, atomic)
	var seq uint64
	var lead bool
	for {
		size, err := 0, error(nil)
		seq, lead, size, err = l.submit(b)
		if err == nil {
			break
		}
		if errors.Is(err, wal.ErrBusy) {
			err = l.wal.WaitRoom(ctx, size)
		}
		if err != nil {
			return nil, l.mapError(err)
		}
	}
	if lead {
		l.wal.Lead()
	}
	if err := l.wal.WaitDurable(ctx, seq); err != nil {
		return nil, l.mapError(err)
	}
	return b.Outcomes, nil
}

// submit judges a batch and gives it to the write-ahead log. When that does not take it, the
// state is as before.
func (l *walLog) submit(b *logs.Batch) (seq uint64, lead bool, size int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.wal.Err(); err != nil {
		return 0, false, 0, err
	}
	now := l.now()
	b.Quarantine = l.quarantine()
	l.state.Judge(b, now)
	if len(b.Accepted) == 0 {
		// A refusal, or the entry of a duplicate, may rest on what is not durable yet.
		l.state.Keep(b)
		return l.wal.Last(), false, 0, nil
	}
	l.buf = logs.AppendEntries(append(l.buf[:0], kindEntries), b.First, now, b.Accepted)
	rec := l.engine.opts.seal(l.name, l.buf)
	size = len(rec)
	seq, lead, err = l.wal.AppendLead(rec)
	if cap(l.buf) > 1<<20 {
		l.buf = nil
	}
	if err != nil {
		l.state.Undo(b)
		return 0, false, size, err
	}
	l.remember(seq, b.First, now, size)
	l.state.Keep(b)
	if l.waiting > 0 {
		close(l.wake)
		l.wake, l.waiting = make(chan struct{}), 0
	}
	return seq, lead, size, nil
}

// quarantine is for how much longer the log refuses ids that it does not know.
func (l *walLog) quarantine() time.Duration {
	if left := l.engine.opts.Quarantine; left != nil {
		return left(l.name)
	}
	return 0
}

// write appends a record that is no entry, after change has been asked for it under the lock, and
// waits until it is durable. A record of no bytes is none.
func (l *walLog) write(ctx context.Context, change func() ([]byte, func(), error)) error {
	for {
		l.mu.Lock()
		rec, done, err := change()
		if err != nil || rec == nil {
			l.mu.Unlock()
			return err
		}
		seq, lead, err := l.wal.AppendLead(rec)
		if err == nil {
			done()
		}
		l.mu.Unlock()
		if lead {
			l.wal.Lead()
		}
		if err == nil {
			err = l.wal.WaitDurable(ctx, seq)
		} else if errors.Is(err, wal.ErrBusy) {
			if err = l.wal.WaitRoom(ctx, len(rec)); err == nil {
				continue
			}
		}
		return l.mapError(err)
	}
}

func (l *walLog) openWriter(ctx context.Context, writer string) (epoch uint64, err error) {
	err = l.write(ctx, func() ([]byte, func(), error) {
		var err error
		if epoch, err = l.state.NextEpoch(writer); err != nil {
			return nil, nil, err
		}
		if floor := l.engine.opts.EpochFloor; floor != nil {
			epoch = max(epoch, floor()+1)
		}
		rec := append(binary.AppendUvarint([]byte{kindWriter}, epoch), writer...)
		return rec, func() { l.state.SetEpoch(writer, epoch) }, nil
	})
	return epoch, err
}

func (l *walLog) removeWriter(ctx context.Context, writer string) error {
	return l.write(ctx, func() ([]byte, func(), error) {
		if !l.state.HasWriter(writer) {
			return nil, nil, logs.NoSuchWriter(writer)
		}
		return append([]byte{kindWriter, 0}, writer...), func() { l.state.SetEpoch(writer, 0) }, nil
	})
}

func (l *walLog) configure(ctx context.Context, ch logs.Change) error {
	return l.write(ctx, func() ([]byte, func(), error) {
		s := l.state.Settings()
		if ch.Identity != nil && *ch.Identity != s.Config.Identity {
			return nil, nil, logs.OtherIdentity(s.Config.Identity)
		}
		c, err := s.Config.Apply(ch)
		if err != nil || c == s.Config {
			return nil, nil, err
		}
		if ch.MakeOnly {
			return nil, nil, logs.NotToChange(l.name)
		}
		s.Config = c
		return s.AppendJSON([]byte{kindSettings}), func() { l.state.SetConfig(c) }, nil
	})
}

// window is for how long the log remembers an id at most.
func (l *walLog) window() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Config().Window
}

func (l *walLog) info() logs.Info {
	var i logs.Info
	l.mu.Lock()
	l.state.Fill(&i)
	i.First, i.Readers = l.first, l.waiting
	l.mu.Unlock()
	i.DiskBytes = l.wal.Stats().DiskBytes
	if err := l.wal.Err(); err != nil {
		i.Failed = err.Error()
	}
	return i
}

func (l *walLog) close() error {
	close(l.gone)
	return l.wal.Close()
}

// pointOf returns the last point at or before the entry; the caller holds mu, and the
// entry is kept.
func (l *walLog) pointOf(number uint64) point {
	i := sort.Search(len(l.points), func(i int) bool { return l.points[i].number > number })
	return l.points[max(i-1, 0)]
}

// mapError says how an error of the write-ahead log is answered.
func (l *walLog) mapError(err error) error {
	if errors.Is(err, wal.ErrClosed) {
		select {
		case <-l.engine.draining:
		default:
			return logs.NoSuchLog(l.name) // it was deleted
		}
	}
	return mapError(err)
}

func mapError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wal.ErrFailed):
		return logs.Failed()
	case errors.Is(err, wal.ErrNoSpace):
		return logs.NoSpace()
	case errors.Is(err, wal.ErrTooLarge):
		return logs.TooLarge()
	case errors.Is(err, wal.ErrClosed):
		return logs.Unknown(5, "the manager is stopping")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return logs.Unknown(1, "the log did not answer in time")
	}
	return err
}
