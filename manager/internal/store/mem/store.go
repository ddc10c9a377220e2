package mem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
	"github.com/oncegate/oncegate/manager/internal/store/state"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// keepScratch is the largest encoding buffer that is kept for reuse.
const keepScratch = 1 << 20

// Defaults of Options.
const (
	DefaultCacheBytes = 256 << 20
	DefaultFlushBytes = 256 << 20
)

// Options of New and Open. The zero value of a field means its default.
type Options struct {
	// Clock is the source of Tx.Now; default time.Now.
	Clock func() time.Time

	// Log configures the log of Open. Begin, Restore, Replay and Synced must be nil, since the engine sets them. With a
	// MaxRecordBytes, or SegmentBytes, of less than store.MaxTxBytes, larger transactions fail with store.ErrTooLarge.
	Log wal.Options
	// State is where the state lives; default the operating system's file system.
	State pebblevfs.FS
	// CacheBytes is about the memory for records: half of it for what was read from disk, and up to half for changes
	// that are not in the state yet. Default 256 MiB.
	CacheBytes int64
	// LayerBytes is from how many bytes of changes on they are flushed to the state. Calls that write wait while there are
	// twice as many. Default an eighth of CacheBytes.
	LayerBytes int64
	// FlushBytes bounds what a start has to replay: changes are flushed, too, when the log has grown by this much.
	// Default 256 MiB.
	FlushBytes int64
	// FlushRetry is the pause after a failed flush; default 5 s.
	FlushRetry time.Duration
	// Keep, when set, is asked after each flush for the sequence number from which
	// the log must keep its records, for what copies it elsewhere.
	Keep func() uint64
	// OnFlush, when set, is called after each flush, including failed ones.
	OnFlush func(FlushResult)
	// OnStateError, when set, is called with each error of work on the state in the background, which is tried again.
	OnStateError func(error)
}

// FlushResult describes one flush to Options.OnFlush.
type FlushResult struct {
	Sequence uint64
	Records  int
	Took     time.Duration
	Err      error
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.CacheBytes = cmp.Or(o.CacheBytes, DefaultCacheBytes)
	o.LayerBytes = cmp.Or(o.LayerBytes, o.CacheBytes/8)
	o.FlushBytes = cmp.Or(o.FlushBytes, DefaultFlushBytes)
	o.FlushRetry = cmp.Or(o.FlushRetry, 5*time.Second)
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
	closed      bool

	// With a log, state has what was flushed. hotBytes are about those of the hot layers. generation grows when frozen
	// layers have become a part of the state.
	state      disk
	hotBytes   int64
	generation uint64
	freeze     freeze
	copies     map[*Copy]struct{} // those that are open

	failed     chan struct{} // never closed; for the volatile engine
	sinceFlush atomic.Int64  // log bytes since the last flush began
	flushDue   chan struct{}
	flushing   chan struct{} // has a value while a flush runs or a copy begins
	closing    chan struct{} // closed when Close begins
	stop       context.CancelFunc
	background sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// errFinished is returned by the methods of a Tx after its function returned.
var errFinished = errors.New("mem: transaction used after its function returned")

// New returns an empty volatile engine. Options for log and state have no effect.
func New(opts Options) *Store {
	return newStore(opts.withDefaults())
}

func newStore(opts Options) *Store {
	s := &Store{
		opts:        opts,
		collections: make(map[store.Collection]*collection),
		failed:      make(chan struct{}),
		flushDue:    make(chan struct{}, 1),
		flushing:    make(chan struct{}, 1),
		closing:     make(chan struct{}),
		stop:        func() {},
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
	if err := store.CheckName(name); err != nil {
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
	seq     uint64 // record that must be durable before the answer
	notify  topics
	err     error
	room    int             // the log is busy: the function must run again when the log has room for so many bytes
	missed  []writeKey      // records that must be read from disk before the function runs again
	flushed <-chan struct{} // memory is full: the function must run again after this is closed
	lead    bool            // the caller must commit its record (see wal.Log.AppendLead)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.do(ctx, fn, true)
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error { return s.do(ctx, fn, false) }

func (s *Store) do(ctx context.Context, fn func(store.Tx) error, update bool) error {
	var l *loads // most functions need nothing from the disk
	for {
		if err := s.check(ctx); err != nil {
			return err
		}
		out := s.run(ctx, fn, l, update)
		switch {
		case out.flushed != nil:
			if err := s.awaitFlush(ctx, out.flushed); err != nil {
				return err
			}
		case out.missed != nil:
			var err error
			if l, err = s.load(ctx, l, out.missed); err != nil {
				return err
			}
		case out.room > 0:
			if err := s.log.WaitRoom(ctx, out.room); err != nil {
				return translate(err)
			}
		case out.err == nil && update:
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
func (s *Store) run(ctx context.Context, fn func(store.Tx) error, l *loads, update bool) (out outcome) {
	defer func() {
		if out.lead {
			s.log.Lead()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.transact(ctx, fn, l, update)
}

// transact runs the function and applies its writes. The caller holds the lock.
func (s *Store) transact(ctx context.Context, fn func(store.Tx) error, l *loads, update bool) outcome {
	if s.closed {
		return outcome{err: store.ErrClosed}
	}
	t := &s.tx
	t.reset(update, l)
	h := &handle{t}
	defer func() { h.t = nil }()
	err := fn(h)
	if len(t.missed) > 0 {
		return outcome{missed: slices.Clone(t.wanted())}
	}
	if err != nil || !update {
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
	if flushed, err := s.full(); err != nil {
		return outcome{seq: t.seen, err: err}
	} else if flushed != nil {
		return outcome{flushed: flushed}
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
	if ended := ctx.Err(); err != nil && errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", store.ErrUnconfirmed, err)
	}
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
		if w.rec != nil {
			w.rec.seq = seq
		}
		old := s.replace(w.c, w.key, w.rec, s.tx.loads.get(writeKey{w.c, w.key}).rec, seq)
		if s.log != nil {
			s.undurable.add(w, old, seq)
		}
	}
	if s.state != nil && s.hotBytes >= s.opts.LayerBytes {
		s.wantFlush()
	}
}

// replace is collection.replace that counts the bytes of the hot layers.
func (s *Store) replace(c *collection, key string, rec, onDisk *record, seq uint64) (old *record) {
	before := c.hot.weight()
	old = c.replace(key, rec, onDisk, seq)
	s.hotBytes += c.hot.weight() - before
	return old
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
		return 0, store.CheckLen(name, indexName)
	}
	n, durable := c.count, c.durable
	if indexName != "" {
		ix := c.byName[indexName]
		if ix == nil {
			return 0, store.CheckName(indexName)
		}
		n, durable = ix.count, ix.durable
	}
	if s.log == nil {
		return n, nil
	}
	return durable, nil
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	c := store.Capabilities{Name: "memory", Sizes: true, TimePrecision: time.Nanosecond}
	if s.log != nil {
		c.Name, c.Durable, c.Scrub = "wal", true, s.Scrub
	}
	return c
}

// Failed implements store.Store.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err implements store.Store.
func (s *Store) Err() error {
	if s.log == nil {
		return nil
	}
	return translate(cmp.Or(s.log.Err(), s.state.Err()))
}

// Close implements store.Store. Everything applied becomes durable first.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	s.closed = true
	close(s.closing)
	s.mu.Unlock()
	s.stop()
	var err error
	if s.log != nil {
		err = translate(s.log.Close()) // Close of the log ends a running flush
		s.flushing <- struct{}{}       // and no other one begins
	}
	s.background.Wait()
	s.endCopies()
	if s.state != nil {
		if closeErr := s.state.Close(); err == nil {
			err = translate(closeErr)
		}
	}
	return err
}

// check rejects a call that cannot run at all. It needs no lock.
func (s *Store) check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Err()
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
		{state.ErrFailed, store.ErrFailed},
		{state.ErrClosed, store.ErrClosed},
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
