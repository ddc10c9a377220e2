package mem

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// Open opens the durable engine on the log in dir and recovers its state. The
// errors are those of wal.Open.
func Open(ctx context.Context, dir string, opts Options) (*Store, error) {
	if opts.Log.Restore != nil || opts.Log.Replay != nil {
		return nil, errors.New("mem: Options.Log.Restore and Replay must be nil")
	}
	s := newStore(opts.withDefaults())
	s.snapDue = make(chan struct{}, 1)
	logOpts := s.opts.Log
	restoring := true
	logOpts.Restore = s.restore
	logOpts.Replay = func(seq uint64, body []byte) error {
		if restoring {
			restoring = false
			s.indexAll()
		}
		return s.replay(seq, body)
	}
	onBatch := logOpts.OnBatch
	logOpts.OnBatch = func(b wal.Batch) {
		if onBatch != nil {
			onBatch(b)
		}
		if s.sinceSnap.Add(int64(b.Bytes)) >= s.opts.SnapshotBytes {
			s.wantSnapshot()
		}
	}
	log, err := wal.Open(ctx, dir, logOpts)
	if err != nil {
		return nil, err
	}
	if restoring {
		s.indexAll()
	}
	s.log = log
	s.sinceSnap.Add(log.Recovery().LogBytes)
	s.countAll()
	if s.opts.SnapshotBytes >= 0 {
		background, stop := context.WithCancel(context.Background())
		s.stop = stop
		s.background.Add(1)
		go s.snapshotLoop(background)
		s.wantSnapshot()
	}
	return s, nil
}

// Log returns the log, for its statistics; nil for the volatile engine.
func (s *Store) Log() *wal.Log { return s.log }

// restore adds the records of a snapshot. Their order is arbitrary, so the indexes are left to indexAll, which is much
// faster than inserting.
func (s *Store) restore(body []byte) error {
	_, err := DecodeWriteSet(body, func(ch *Change) error {
		c, err := s.decodedCollection(ch)
		if err != nil {
			return err
		}
		if ch.Delete {
			return fmt.Errorf("%w: a deletion in a snapshot", errWriteSet)
		}
		rec, err := s.decoded(c, ch, 0)
		if err != nil {
			return err
		}
		c.records.put(rec)
		return nil
	})
	return err
}

// replay applies a write set of the log.
func (s *Store) replay(seq uint64, body []byte) error {
	_, err := DecodeWriteSet(body, func(ch *Change) error { return s.applyChange(seq, ch) })
	if err != nil {
		return fmt.Errorf("log record %d: %w", seq, err)
	}
	return nil
}

func (s *Store) applyChange(seq uint64, ch *Change) error {
	c, err := s.decodedCollection(ch)
	if err != nil {
		return err
	}
	if ch.Delete {
		c.delete(string(ch.Key), seq)
		return nil
	}
	rec, err := s.decoded(c, ch, seq)
	if err != nil {
		return err
	}
	c.put(rec)
	return nil
}

func (s *Store) decodedCollection(ch *Change) (*collection, error) {
	if c := s.collections[store.Collection(ch.Collection)]; c != nil {
		return c, nil
	}
	return s.collection(store.Collection(ch.Collection))
}

// decoded builds the record that a change describes.
func (s *Store) decoded(c *collection, ch *Change, seq uint64) (*record, error) {
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

// countAll sets the durable counts to those of the recovered state.
func (s *Store) countAll() {
	for _, c := range s.collections {
		c.durable, c.durableBytes = c.records.len(), c.records.bytes
		for _, ix := range c.indexes {
			ix.durable = ix.tree.Len()
		}
	}
}
