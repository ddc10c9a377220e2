package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// format is Pebble's format on disk. It is named, so that a new version of the library does not change files by itself.
	format = pebble.FormatTableFormatV6
	// tableFiles bounds the open tables.
	tableFiles = 500
	// unusedMemTable is the size of Pebble's memory tables, which stay empty.
	unusedMemTable = 64 << 10
	baseBytes      = 64 << 20
	tableBytes     = 8 << 20
)

// DefaultCacheBytes is the default of Options.CacheBytes.
const DefaultCacheBytes = 64 << 20

// ErrClosed is returned after Close.
var ErrClosed = errors.New("state: closed")

// ErrOther is returned by Open for a directory that has the state of another log.
var ErrOther = errors.New("the state of another log")

// ErrFailed is returned once the state cannot be relied on any more, because a change of its list of files failed. What was
// acknowledged is in the log, and the next Open recovers.
var ErrFailed = errors.New("state: failed")

// Options of Open. The zero value of a field means its default.
type Options struct {
	// FS is where the state lives; default the operating system's file system.
	FS vfs.FS
	// CacheBytes bounds the memory for blocks that were read; default 64 MiB.
	CacheBytes int64
	// OnError, when set, is called with each error of work in the background, which is tried again, and with each damaged
	// table that an index reader meets. It must not block.
	OnError func(error)
}

// Counts are the records of a collection.
type Counts struct {
	// Records, and the Bytes of their keys and values.
	Records int
	Bytes   int64
	// Entries counts the entries of each index.
	Entries map[string]int
}

// Record is a record in the state. Nothing of it may be modified.
type Record struct {
	Value   []byte
	Entries []store.Entry
}

// State is an open state. Its methods may be called concurrently, except Write.
type State struct {
	dir    string
	fs     vfs.FS
	db     *pebble.DB
	opts   *pebble.Options
	meta   meta
	absent fingerprints
	lists  listed
	// lost is what repairs could not read. Look-ups read it while a write adds to it.
	lost atomic.Pointer[[]lost]
	// damaged are the parts that index readers pass over; nil when none is known.
	damaged atomic.Pointer[[]span]

	spare   spare
	failure atomic.Pointer[error]
	failed  chan struct{}
	onError func(error)

	// Close holds users, and everything else that uses the database holds it shared.
	users   sync.RWMutex
	closed  bool
	closing context.Context // ends when Close begins
	close   context.CancelFunc
}

func newState(dir string, o Options) *State {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	s := &State{dir: dir, fs: o.FS, failed: make(chan struct{}), onError: o.OnError}
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// Open opens the state in dir, and creates it when there is none. log names the log that it belongs to. It returns an
// error if the directory has the state of another log, or is damaged. It deletes what no list of files has any more.
func Open(dir, log string, o Options) (*State, error) {
	s := newState(dir, o)
	err := s.removeParts()
	if err == nil {
		err = s.open(o, false)
	}
	if err == nil {
		err = s.load(log)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state: %s: %w", dir, named(err)), s.Close())
	}
	_ = s.fillSpare() // a full disk is no reason not to start
	return s, nil
}

// Look reads the Sequence of the state in dir, 0 when there is none, and changes nothing. Its errors are those of Open.
func Look(dir, log string, o Options) (sequence uint64, err error) {
	s := newState(dir, o)
	defer func() { err = errors.Join(err, s.Close()) }()
	found, err := pebble.Peek(dir, s.fs)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !found.Exists {
		return 0, nil
	}
	if err == nil {
		err = s.open(o, true)
	}
	if err == nil {
		sequence, err = s.identity(log)
	}
	if err != nil {
		return 0, fmt.Errorf("state: %s: %w", dir, named(err))
	}
	return sequence, nil
}

// open opens the database.
func (s *State) open(o Options, readOnly bool) error {
	o.CacheBytes = cmp.Or(o.CacheBytes, DefaultCacheBytes)
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	s.opts = &pebble.Options{
		FS: disk{s.fs, s}, Cache: cache, DisableWAL: true, FormatMajorVersion: format, MaxOpenFiles: tableFiles,
		MemTableSize: unusedMemTable, L0CompactionThreshold: 2, LBaseMaxBytes: baseBytes, ReadOnly: readOnly,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		Logger:                     logger{s},
	}
	s.opts.EventListener = &pebble.EventListener{
		BackgroundError: s.report,
		// The default stops the program. A reader of a damaged block gets an error.
		DataCorruption: func(pebble.DataCorruptionInfo) {},
	}
	for i := range s.opts.Levels {
		s.opts.Levels[i].Compression = func() *sstable.CompressionProfile { return block.NoCompression }
	}
	s.opts.TargetFileSizes[0] = tableBytes
	// The default one asks ten times a second whether the limit, which is always 1, has changed.
	s.opts.Experimental.CompactionScheduler = pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()
	s.opts.EnsureDefaults()
	return s.guard(func() error {
		db, err := pebble.Open(s.dir, s.opts)
		if err == nil {
			s.db = db
		}
		return err
	})
}

// partSuffix marks a table that is being written.
const partSuffix = ".part"

// removeParts removes tables that were not taken in before a crash.
func (s *State) removeParts() error {
	if err := s.fs.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, partSuffix) {
			if err := s.fs.Remove(s.fs.PathJoin(s.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// logger takes what Pebble reports. Infos are of no use to an operator.
type logger struct{ s *State }

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(f string, args ...any) { l.s.report(fmt.Errorf(f, args...)) }

// Fatalf is where Pebble cannot continue: above all, when its list of files cannot be written. It must not return.
func (l logger) Fatalf(f string, args ...any) {
	end := fatal{text: fmt.Sprintf(f, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			end.cause = err
		}
	}
	l.s.fail(end)
	runtime.Goexit()
}

// fatal is an error of which Pebble gives the text and the cause.
type fatal struct {
	text  string
	cause error
}

func (e fatal) Error() string { return e.text }
func (e fatal) Unwrap() error { return e.cause }

func (s *State) report(err error) {
	if s.onError != nil {
		s.onError(named(err))
	}
}

func (s *State) fail(cause error) {
	err := fmt.Errorf("%w: %w", ErrFailed, cause)
	if s.failure.CompareAndSwap(nil, &err) {
		close(s.failed)
	}
}

// Failed is closed when the state has failed; see ErrFailed.
func (s *State) Failed() <-chan struct{} { return s.failed }

// Err is why the state has failed; nil while it has not.
func (s *State) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// enter keeps the database open until leave. It fails after Close and after a failure.
func (s *State) enter() error {
	s.users.RLock()
	err := s.Err()
	if err == nil && s.closed {
		err = ErrClosed
	}
	if err != nil {
		s.users.RUnlock()
	}
	return err
}

func (s *State) leave() { s.users.RUnlock() }

// Close waits for calls that run, and releases everything. Indexes and snapshots must be closed before. After a failure it
// leaves the files as they are, since something may still work on them, and they stay locked until the process ends.
func (s *State) Close() error {
	s.close()
	s.users.Lock()
	defer s.users.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.db == nil || s.Err() != nil {
		return nil
	}
	err := s.guard(s.db.Close)
	if s.Err() != nil || isFull(err) { // all that counts is on the disk; Pebble ends a log that has nothing
		return nil
	}
	return err
}

// Sequence is that of the last log record that the state has; 0 for a new state.
func (s *State) Sequence() uint64 { return s.meta.sequence.Load() }

// Counts are those as of Sequence. They must not be used during a Write.
func (s *State) Counts() map[store.Collection]Counts { return s.meta.counts }

// Bytes is the size of the files, 0 after Close.
func (s *State) Bytes() (n int64) {
	if s.enter() != nil {
		return 0
	}
	defer s.leave()
	_ = s.guard(func() error {
		n = int64(s.db.Metrics().DiskSpaceUsage())
		return nil
	})
	return n
}

// MayHave reports whether a record may exist. Of records that do not exist, it is true for 1 of 200 with 20 million others.
func (s *State) MayHave(c store.Collection, key string) bool {
	return s.absent.has(fingerprintOf(c, key))
}

// Get reads a record. The error about an absent one is store.ErrNotFound. That about a damaged one, or one that a Repair
// could not read, is a *store.UnreadableError. Any other wraps store.ErrUnavailable or ErrFailed.
func (s *State) Get(c store.Collection, key string) (Record, error) {
	if err := s.enter(); err != nil {
		return Record{}, err
	}
	defer s.leave()
	name := appendRecordKey(make([]byte, 0, 96), c, key)
	raw, closer, err := s.db.Get(name)
	switch {
	case errors.Is(err, pebble.ErrNotFound) && s.isLost(name, fingerprintOf(c, key)):
		return Record{}, &store.UnreadableError{Collection: c, Key: key, Reason: "it was damaged when the state was repaired"}
	case errors.Is(err, pebble.ErrNotFound):
		return Record{}, store.ErrNotFound
	case pebble.IsCorruptionError(err):
		return Record{}, &store.UnreadableError{Collection: c, Key: key, Reason: named(err).Error()}
	case err != nil:
		return Record{}, unavailable(err)
	}
	defer closer.Close()
	return decodedRecord(c, key, slices.Clone(raw))
}

// named adds to an error of Pebble the name of the file that is damaged, if that is why.
func named(err error) error {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		return fmt.Errorf("%s is damaged: %w", info.Path, info.Details)
	}
	return err
}

// Clear removes all records.
func (s *State) Clear(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	log := s.meta.log
	if err := s.guard(func() error { return s.db.Excise(ctx, pebble.KeyRange{Start: []byte{0}, End: []byte{0xff}}) }); err != nil {
		return err
	}
	s.absent, s.lists, s.meta.counts = fingerprints{}, listed{}, nil
	s.lost.Store(nil)
	s.damaged.Store(nil)
	s.meta.sequence.Store(0)
	return s.load(log)
}

// Compact rewrites all tables, so that nothing is left of values that were replaced or deleted before. Close ends it.
func (s *State) Compact(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	err := s.guard(func() error { return s.db.Compact(ctx, []byte{0}, []byte{0xff}, false) })
	if err != nil && s.closing.Err() != nil {
		return ErrClosed
	}
	return err
}
