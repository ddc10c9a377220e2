package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/state"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// StateDir is the directory of the state, in that of the log.
const StateDir = "state"

// ErrState is returned by Open when the log and the state beside it do not belong together.
var ErrState = errors.New("the state does not fit the log")

func errBehind(dir string, must, has uint64) error {
	return fmt.Errorf("%w: %s must have all up to record %d, and has those up to %d", ErrState, dir, must, has)
}

func errAhead(dir string, has, last uint64) error {
	return fmt.Errorf("%w: %s has record %d, and the log ends with %d", ErrState, dir, has, last)
}

// Open opens the durable engine on the log in dir and recovers its state. The
// errors are those of wal.Open and ErrState.
func Open(ctx context.Context, dir string, opts Options) (*Store, error) {
	if opts.Log.Begin != nil || opts.Log.Restore != nil || opts.Log.Replay != nil || opts.Log.Synced != nil {
		return nil, errors.New("mem: Options.Log.Begin, Restore, Replay and Synced must be nil")
	}
	s := newStore(opts.withDefaults())
	r := recovery{s: s, ctx: ctx, dir: path.Join(dir, StateDir)}
	logOpts := s.opts.Log
	logOpts.Begin, logOpts.Restore, logOpts.Synced, logOpts.Replay = r.begin, r.restore, r.synced, r.replay
	onBatch := logOpts.OnBatch
	logOpts.OnBatch = func(b wal.Batch) {
		if onBatch != nil {
			onBatch(b)
		}
		if s.sinceFlush.Add(int64(b.Bytes)) >= s.opts.FlushBytes {
			s.wantFlush()
		}
	}
	log, err := wal.Open(ctx, dir, logOpts)
	if err == nil {
		if err = r.finish(log); err != nil {
			err = errors.Join(err, log.Close())
		}
	}
	if err != nil {
		if s.state != nil {
			err = errors.Join(err, s.state.Close())
		}
		return nil, err
	}
	s.log = log
	s.sinceFlush.Add(log.Recovery().LogBytes)
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.background.Go(func() { s.flushLoop(background) })
	s.background.Go(func() { s.failLoop(background) })
	if s.sinceFlush.Load() >= s.opts.FlushBytes || s.hotBytes >= s.opts.LayerBytes {
		s.wantFlush()
	}
	return s, nil
}

// Log returns the log, for its statistics; nil for the volatile engine.
func (s *Store) Log() *wal.Log { return s.log }

// StateBytes is the size of the state's files.
func (s *Store) StateBytes() int64 { return s.state.Bytes() }

// recovery replays a log. It flushes when there is much in memory, so its memory is bounded.
type recovery struct {
	s   *Store
	ctx context.Context
	dir string
	id  string // of the log
	// found is what the state had before it was opened.
	found uint64
	// snapshot is what the log's snapshot has. importing: its records become the state.
	snapshot  uint64
	importing bool
	// last is the last record that was replayed.
	last uint64
}

// begin opens the state. Where the log has a snapshot, that waits until it is known whether the two belong together: a
// state that was opened is not as it was any more.
func (r *recovery) begin(id string, snapshot uint64) (err error) {
	r.id, r.snapshot = id, snapshot
	if snapshot == 0 {
		return r.open()
	}
	r.found, err = state.Look(r.dir, id, r.stateOptions())
	return other(err)
}

func (r *recovery) stateOptions() state.Options {
	return state.Options{FS: r.s.opts.State, CacheBytes: r.s.opts.CacheBytes / 2, OnError: r.s.opts.OnStateError}
}

func other(err error) error {
	if errors.Is(err, state.ErrOther) {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return err
}

// open opens the state, unless it is open.
func (r *recovery) open() (err error) {
	if r.s.state != nil {
		return nil
	}
	if r.s.state, err = openDisk(r.dir, r.id, r.stateOptions()); err != nil {
		return other(err)
	}
	r.last = r.s.state.Sequence()
	return r.register()
}

// register makes the state's collections and indexes known.
func (r *recovery) register() error {
	all := r.s.state.Counts()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		counts := all[name]
		c, err := r.s.collection(name)
		if err != nil {
			return err
		}
		c.count, c.bytes = counts.Records, counts.Bytes
		for _, index := range slices.Sorted(maps.Keys(counts.Entries)) {
			n := counts.Entries[index]
			ix, err := c.index(index)
			if err != nil {
				return err
			}
			ix.count, ix.onDisk = n, n
		}
	}
	return nil
}

// restore takes a record of the log's snapshot. Without a state, the snapshot is from a copy and has all records.
func (r *recovery) restore(body []byte) error {
	if r.found >= r.snapshot {
		return nil
	}
	if bytes.Equal(body, pointer) {
		return errBehind(r.dir, r.snapshot, r.found)
	}
	if err := r.importSnapshot(); err != nil {
		return err
	}
	if err := r.room(0); err != nil {
		return err
	}
	return r.apply(0, body)
}

// importSnapshot begins an import, unless it has begun. What the state has is older, or an import that was cut off.
func (r *recovery) importSnapshot() error {
	if r.importing {
		return nil
	}
	r.importing = true
	if err := r.open(); err != nil {
		return err
	}
	if len(r.s.state.Counts()) == 0 {
		return nil
	}
	r.s.collections, r.s.recent = make(map[store.Collection]*collection), nil
	return r.s.state.Clear(r.ctx)
}

// imported ends the import.
func (r *recovery) imported() error {
	if err := r.open(); err != nil {
		return err
	}
	if r.s.state.Sequence() >= r.snapshot {
		return nil
	}
	if err := r.importSnapshot(); err != nil { // a snapshot without records
		return err
	}
	r.last = r.snapshot
	return r.flush(r.snapshot)
}

// synced is called where everything that was replayed is on the disk, so that the state may have it.
func (r *recovery) synced() error {
	if err := r.imported(); err != nil {
		return err
	}
	return r.room(r.last)
}

// replay applies a write set of the log.
func (r *recovery) replay(seq uint64, body []byte) error {
	if err := r.imported(); err != nil {
		return err
	}
	if seq <= r.s.state.Sequence() {
		return nil
	}
	if err := r.apply(seq, body); err != nil {
		return fmt.Errorf("log record %d: %w", seq, err)
	}
	r.last = seq
	return nil
}

// room flushes what was recovered when there is much.
func (r *recovery) room(seq uint64) error {
	if r.s.hotBytes < r.s.opts.LayerBytes {
		return nil
	}
	return r.flush(seq)
}

func (r *recovery) flush(seq uint64) error {
	s := r.s
	s.freezeHot(seq)
	list := s.frozenList()
	if err := s.state.Write(r.ctx, batchOf(list, seq)); err != nil {
		return translate(err)
	}
	s.thaw(list)
	return nil
}

func (r *recovery) apply(seq uint64, body []byte) error {
	_, err := DecodeWriteSet(body, func(ch *Change) error { return r.change(seq, ch) })
	return err
}

func (r *recovery) change(seq uint64, ch *Change) error {
	s := r.s
	c := s.collections[store.Collection(ch.Collection)]
	if c == nil {
		var err error
		if c, err = s.collection(store.Collection(ch.Collection)); err != nil {
			return err
		}
	}
	var rec *record
	key := string(ch.Key)
	if !ch.Delete {
		var err error
		if rec, err = c.decoded(ch, seq); err != nil {
			return err
		}
		key = rec.key()
	}
	var onDisk *record
	if !c.hides(key) && s.state.MayHave(c.name, key) {
		l := s.loadRecord(c, key)
		if l.err != nil && l.rec == nil {
			return l.err
		}
		onDisk = l.rec
	}
	s.replace(c, key, rec, onDisk, seq)
	return nil
}

// finish checks that log and state belong together, and sets the durable counts to those of the recovered state.
func (r *recovery) finish(log *wal.Log) error {
	if err := r.imported(); err != nil {
		return err
	}
	s := r.s
	if s.state.Sequence() > log.Last() {
		return errAhead(r.dir, s.state.Sequence(), log.Last())
	}
	for _, c := range s.collections {
		c.durable, c.durableBytes = c.count, c.bytes
		for _, ix := range c.indexes {
			ix.durable = ix.count
		}
	}
	return nil
}

// decoded builds the record that a change describes.
func (c *collection) decoded(ch *Change, seq uint64) (*record, error) {
	sortBytes := 0
	for _, e := range ch.Entries {
		sortBytes += len(e.SortKey)
	}
	rec := newRecord(ch.Key, sortBytes, ch.Value)
	rec.seq = seq
	for _, e := range ch.Entries {
		ix := c.byName[string(e.Index)]
		if ix == nil {
			var err error
			if ix, err = c.index(string(e.Index)); err != nil {
				return nil, err
			}
		}
		addEntry(rec, ix, e.SortKey)
	}
	return rec, nil
}
