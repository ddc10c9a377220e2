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

// keepScratch is the largest encoding buffer that is kept.
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

	// Log configures the log of Open. Restore and Replay are the engine's and
	// must be nil. A MaxRecordBytes, or SegmentBytes, of less than
	// store.MaxTxBytes makes larger transactions fail with store.ErrTooLarge.
	Log wal.Options
	// SnapshotBytes bounds what a start has to replay: a snapshot is taken
	// when the log has grown by this much, or by the size of the last snapshot
	// if that is more, so that on average each byte of state is written at
	// most once more than each byte of log. Default 256 MiB; negative: only
	// Snapshot takes any.
	SnapshotBytes int64
	// SnapshotRate is how many bytes per second a snapshot may write, so that
	// it takes neither the disk nor a processor away from transactions.
	// Default 32 MiB; negative: no limit.
	SnapshotRate int64
	// SnapshotRetry is the pause after a failed snapshot; default 30 s.
	SnapshotRetry time.Duration
	// OnSnapshot, when set, is told about each snapshot taken by the engine
	// itself, failed ones included.
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

	calls    atomic.Pointer[call] // of those that found the lock taken, newest first
	oldCalls sync.Pool

	mu          sync.Mutex // given up with unlock only
	backlog     []*call    // taken from calls and not run yet
	waiters     []wal.Waiter
	collections map[store.Collection]*collection
	recent      *collection // the last one that was asked for
	unsettled   unsettled
	tx          tx     // of the function that runs
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

// errFinished is returned by the methods of a Tx that outlived its function.
var errFinished = errors.New("mem: transaction used after its function returned")

// New returns an empty volatile engine. Options that concern the log and
// snapshots have no effect.
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

// find returns the collection of that name, nil when there is none. Calls mostly
// ask for the same one again. The caller holds the lock.
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

// collection returns the collection of that name, a new one when there is
// none. The caller holds the lock for writing.
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

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	for {
		if err := s.check(ctx); err != nil {
			return err
		}
		c := s.newCall(ctx, fn)
		s.do(c)
		out := c.outcome
		if !c.gone {
			s.free(c)
		}
		switch {
		case out.busy:
			if err := s.log.WaitRoom(ctx, int(out.seq)); err != nil {
				return translate(err)
			}
		case out.err == nil:
			return s.finish(ctx, out.seq, out.told)
		default:
			if err := s.await(ctx, out.seq); err != nil {
				return err
			}
			return out.err
		}
	}
}

// exec calls the function and applies what it wrote. The caller holds the lock.
// mayLead says that the caller will commit its record itself if the log asks for that.
func (s *Store) exec(c *call, mayLead bool) { c.outcome = s.transact(c.ctx, c.fn, mayLead) }

// transact is exec by its outcome.
func (s *Store) transact(ctx context.Context, fn func(store.Tx) error, mayLead bool) outcome {
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
		return outcome{seq: t.seen, told: t.topics}
	}
	var seq uint64
	lead := false
	if s.log != nil {
		var err error
		s.scratch = t.encode(s.scratch[:0])
		if mayLead {
			seq, lead, err = s.log.AppendLead(s.scratch)
		} else {
			seq, err = s.log.Append(s.scratch)
		}
		if errors.Is(err, wal.ErrBusy) {
			return outcome{seq: uint64(len(s.scratch)), busy: true}
		}
		if err != nil {
			return outcome{seq: t.seen, err: translate(err)}
		}
	}
	s.apply(t.writes, seq)
	if cap(s.scratch) > keepScratch {
		s.scratch = nil
	}
	return outcome{seq: seq, told: t.topics, lead: lead}
}

// finish waits until the answer is durable and then wakes the watchers.
func (s *Store) finish(ctx context.Context, seq uint64, told topics) error {
	err := s.await(ctx, seq)
	if told.n == 0 {
		return err
	}
	if err == nil {
		s.notify(told)
	} else if ctx.Err() != nil {
		s.notifyLater(told, seq)
	}
	return err
}

// apply makes the writes visible. The caller holds the lock.
func (s *Store) apply(writes []write, seq uint64) {
	if s.log != nil {
		s.unsettled.settle(s.log.Durable())
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
		s.unsettled.add(w, old, seq)
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
		s.unlock()
	}()
	if s.closed {
		return 0, store.ErrClosed
	}
	err = fn(h)
	return t.seen, err
}

// Len implements store.Store. It counts what is durable.
func (s *Store) Len(ctx context.Context, name store.Collection, indexName string) (int, error) {
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.unlock()
	if s.closed {
		return 0, store.ErrClosed
	}
	if s.log != nil {
		s.unsettled.settle(s.log.Durable())
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

// Close implements store.Store. What was applied becomes durable first.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.unlock()
		return store.ErrClosed
	}
	s.closed = true
	s.unlock()
	s.stop()
	var err error
	if s.log != nil {
		err = translate(s.log.Close()) // which stops a snapshot
	}
	s.background.Wait()
	return err
}

// check is the part of every call that needs no lock.
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

// translate gives the log's errors the names that the contract has for them.
// Other errors stay as they are.
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
