package mem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// keepScratch is the largest encoding buffer that is kept for reuse.
const keepScratch = 1 << 20

// Defaults of Options.
const (
	DefaultSnapshotBytes = 256 << 20
	DefaultSnapshotRate  = 32 << 20
)

// Options of New and Open. The zero value of a field means its default.
type Options struct {
	// Clock is the source of Tx.Now; default time.Now.
	Clock func() time.Time

	// Log configures the log of Open. Restore and Replay must be nil, since the engine sets them. With a
	// MaxRecordBytes, or SegmentBytes, of less than store.MaxTxBytes, larger transactions fail with store.ErrTooLarge.
	Log wal.Options
	// SnapshotBytes bounds what a start has to replay: a snapshot is taken when the log has grown by this much, or by
	// the size of the last snapshot if that is more. So on average each byte of log causes at most one more byte of
	// snapshot. Default 256 MiB; negative: only Snapshot takes snapshots.
	SnapshotBytes int64
	// SnapshotRate is how many bytes per second a snapshot may write, so that it leaves the disk and the processors to
	// transactions. Default 32 MiB; negative: no limit.
	SnapshotRate int64
	// SnapshotRetry is the pause after a failed snapshot; default 30 s.
	SnapshotRetry time.Duration
	// Keep, when set, is asked before each snapshot for the sequence number from which
	// the log must keep its records, for what copies it elsewhere.
	Keep func() uint64
	// OnSnapshot, when set, is called after each snapshot that the engine takes by itself, including failed ones.
	OnSnapshot func(SnapshotResult)
}

// SnapshotResult describes one snapshot to Options.OnSnapshot.
type SnapshotResult struct {
	Sequence uint64
	Records  int
	Took     time.Duration
	Err      error
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.SnapshotBytes == 0 {
		o.SnapshotBytes = DefaultSnapshotBytes
	}
	if o.SnapshotRate == 0 {
		o.SnapshotRate = DefaultSnapshotRate
	}
	if o.SnapshotRetry == 0 {
		o.SnapshotRetry = 30 * time.Second
	}
	return o
}

// Store implements store.Store.
type Store struct {
	opts Options
	log  *wal.Log // nil for the volatile engine
	hub  notify.Hub

	mu          sync.Mutex
	collections map[store.Collection]*collection
	recent      *collection // the collection that was asked for last
	undurable   undurable
	tx          tx     // of the running function
	scratch     []byte // for encoding
	snap        *snapshotRun
	closed      bool

	failed       chan struct{} // never closed; for the volatile engine
	sinceSnap    atomic.Int64  // log bytes since the last snapshot
	snapDue      chan struct{}
	snapshotting chan struct{} // has a value while a snapshot is taken
	stop         context.CancelFunc
	background   sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// errFinished is returned by the methods of a Tx after its function returned.
var errFinished = errors.New("mem: transaction used after its function returned")

// New returns an empty volatile engine. Options for the log and for snapshots have no effect.
func New(opts Options) *Store {
	return newStore(opts.withDefaults())
}

func newStore(opts Options) *Store {
	s := &Store{
		opts:         opts,
		collections:  make(map[store.Collection]*collection),
		failed:       make(chan struct{}),
		snapshotting: make(chan struct{}, 1),
		stop:         func() {},
	}
	s.tx.s = s
	return s
}

// find returns the collection of that name, nil when there is none. Calls mostly ask for the same collection again. The
// caller holds the lock.
func (s *Store) find(name store.Collection) *collection {
	if c := s.recent; c != nil && c.name == name {
		return c
	}
	c := s.collections[name]
	if c != nil {
		s.recent = c
	}
	return c
}

// collection returns the collection of that name, and creates it if necessary. The caller holds the lock.
func (s *Store) collection(name store.Collection) (*collection, error) {
	if c := s.find(name); c != nil {
		return c, nil
	}
	if err := store.CheckName(string(name)); err != nil {
		return nil, err
	}
	c := newCollection(name)
	s.collections[name] = c
	return c, nil
}

// newRecord builds the record of a put.
func (c *collection) newRecord(key string, value []byte, entries []store.Entry) (*record, error) {
	sortBytes := 0
	for _, e := range entries {
		sortBytes += len(e.SortKey)
	}
	rec := newRecord(key, sortBytes, value)
	for _, e := range entries {
		ix, err := c.index(e.Index)
		if err != nil {
			return nil, err
		}
		addEntry(rec, ix, e.SortKey)
	}
	return rec, nil
}

// outcome is the result of running a function.
type outcome struct {
	seq    uint64 // record that must be durable before the answer
	notify topics
	err    error
	room   int  // the log is busy: the function must run again when the log has room for so many bytes
	lead   bool // the caller must commit its record (see wal.Log.AppendLead)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	for {
		if err := s.check(ctx); err != nil {
			return err
		}
		out := s.run(ctx, fn)
		switch {
		case out.room > 0:
			if err := s.log.WaitRoom(ctx, out.room); err != nil {
				return translate(err)
			}
		case out.err == nil:
			return s.finish(ctx, out.seq, out.notify)
		default:
			if err := s.await(ctx, out.seq); err != nil {
				return err
			}
			return out.err
		}
	}
}

// run runs the function, applies its writes, and commits its record if the log leaves that to the caller. The lock is
// released before the commit, and also when the function panics or ends its goroutine.
func (s *Store) run(ctx context.Context, fn func(store.Tx) error) (out outcome) {
	defer func() {
		if out.lead {
			s.log.Lead()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.transact(ctx, fn)
}

// transact runs the function and applies its writes. The caller holds the lock.
func (s *Store) transact(ctx context.Context, fn func(store.Tx) error) outcome {
	if s.closed {
		return outcome{err: store.ErrClosed}
	}
	t := &s.tx
	t.reset(true)
	h := &handle{t}
	defer func() { h.t = nil }()
	if err := fn(h); err != nil {
		return outcome{seq: t.seen, err: err}
	}
	if t.err != nil {
		return outcome{seq: t.seen, err: t.err}
	}
	if err := ctx.Err(); err != nil {
		return outcome{err: err}
	}
	if len(t.writes) == 0 {
		return outcome{seq: t.seen, notify: t.topics}
	}
	var seq uint64
	lead := false
	if s.log != nil {
		var err error
		s.scratch = t.encode(s.scratch[:0])
		seq, lead, err = s.log.AppendLead(s.scratch)
		if errors.Is(err, wal.ErrBusy) {
			return outcome{room: len(s.scratch)}
		}
		if err != nil {
			return outcome{seq: t.seen, err: translate(err)}
		}
	}
	s.apply(t.writes, seq)
	if cap(s.scratch) > keepScratch {
		s.scratch = nil
	}
	return outcome{seq: seq, notify: t.topics, lead: lead}
}

// finish waits until the answer is durable and then wakes the watchers.
func (s *Store) finish(ctx context.Context, seq uint64, toNotify topics) error {
	err := s.await(ctx, seq)
	if toNotify.n == 0 {
		return err
	}
	if err == nil {
		s.notify(toNotify)
	} else if ctx.Err() != nil {
		s.notifyLater(toNotify, seq)
	}
	return err
}

// apply makes the writes visible. The caller holds the lock.
func (s *Store) apply(writes []write, seq uint64) {
	if s.log != nil {
		s.undurable.applyUpTo(s.log.Durable())
	}
	for i := range writes {
		w := &writes[i]
		var old *record
		if w.rec != nil {
			w.rec.seq = seq
			old = w.c.put(w.rec)
		} else {
			old = w.c.delete(w.key, seq)
		}
		if s.log == nil {
			continue
		}
		if s.snap != nil && old != nil && old.seq <= s.snap.seq {
			s.snap.displaced = append(s.snap.displaced, version{w.c, old})
		}
		s.undurable.add(w, old, seq)
	}
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	seen, err := s.runView(fn)
	if waitErr := s.await(ctx, seen); waitErr != nil {
		return waitErr
	}
	return err
}

func (s *Store) runView(fn func(store.Tx) error) (seen uint64, err error) {
	s.mu.Lock()
	t := &s.tx
	t.reset(false)
	h := &handle{t}
	defer func() {
		h.t = nil
		s.mu.Unlock()
	}()
	if s.closed {
		return 0, store.ErrClosed
	}
	err = fn(h)
	return t.seen, err
}

// Len implements store.Store. It counts durable records.
func (s *Store) Len(ctx context.Context, name store.Collection, indexName string) (int, error) {
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, store.ErrClosed
	}
	if s.log != nil {
		s.undurable.applyUpTo(s.log.Durable())
	}
	c := s.collections[name]
	if c == nil {
		return 0, store.CheckName(string(name))
	}
	if indexName == "" {
		if s.log == nil {
			return c.records.len(), nil
		}
		return c.durable, nil
	}
	ix := c.byName[indexName]
	if ix == nil {
		return 0, store.CheckName(indexName)
	}
	if s.log == nil {
		return ix.tree.Len(), nil
	}
	return ix.durable, nil
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	c := store.Capabilities{Name: "memory", FreeReads: true, Sizes: true, TimePrecision: time.Nanosecond}
	if s.log != nil {
		c.Name, c.Durable = "wal", true
	}
	return c
}

// Failed implements store.Store.
func (s *Store) Failed() <-chan struct{} {
	if s.log != nil {
		return s.log.Failed()
	}
	return s.failed
}

// Err implements store.Store.
func (s *Store) Err() error {
	if s.log == nil {
		return nil
	}
	return translate(s.log.Err())
}

// Close implements store.Store. Everything applied becomes durable first.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	s.closed = true
	s.mu.Unlock()
	s.stop()
	var err error
	if s.log != nil {
		err = translate(s.log.Close()) // Close of the log stops a running snapshot
	}
	s.background.Wait()
	return err
}

// check rejects a call that cannot run at all. It needs no lock.
func (s *Store) check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.log == nil {
		return nil
	}
	return translate(s.log.Err())
}

// await waits until the log record seq is durable.
func (s *Store) await(ctx context.Context, seq uint64) error {
	if s.log == nil || seq <= s.log.Durable() {
		return nil
	}
	return translate(s.log.WaitDurable(ctx, seq))
}

// translate converts the log's errors to those of store. It returns other errors unchanged.
func translate(err error) error {
	for _, m := range [...]struct{ from, to error }{
		{wal.ErrNoSpace, store.ErrNoSpace},
		{wal.ErrFailed, store.ErrFailed},
		{wal.ErrClosed, store.ErrClosed},
		{wal.ErrTooLarge, store.ErrTooLarge},
	} {
		if errors.Is(err, m.from) && !errors.Is(err, m.to) {
			return fmt.Errorf("%w: %w", m.to, err)
		}
	}
	return err
}
