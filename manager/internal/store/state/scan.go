package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Index reads an index of the state, in the order of positions.
type Index struct {
	it     *pebble.Iterator
	prefix int
	key    []byte
	err    error
}

// OpenIndex returns a reader of an index. The caller must Close it.
func (s *State) OpenIndex(c store.Collection, index string) (*Index, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	lower := appendIndex(nil, c, index)
	upper := append([]byte(nil), lower...)
	upper[len(upper)-1]++ // of the 0 after the name
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, unavailable(err)
	}
	return &Index{it: it, prefix: len(lower), key: lower}, nil
}

// Seek moves to the first entry at or after a position.
func (x *Index) Seek(position []byte) bool {
	x.key = append(x.key[:x.prefix], position...)
	return x.it.SeekGE(x.key)
}

// Next moves to the next entry.
func (x *Index) Next() bool { return x.it.Next() }

// Position is that of the present entry, valid until the next move.
func (x *Index) Position() []byte { return x.it.Key()[x.prefix:] }

// Hit is the present entry.
func (x *Index) Hit() (h store.Hit) {
	h.SortKey, h.Key, x.err = SplitPosition(x.Position())
	return h
}

// Err is why the last move found nothing, nil at the end of the index.
func (x *Index) Err() error {
	if x.err != nil {
		return unavailable(x.err)
	}
	return unavailable(x.it.Error())
}

// Close releases the reader.
func (x *Index) Close() { _ = x.it.Close() } // its error is that of Err

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, named(err))
}

// Snapshot is the state at one moment, which later Writes do not change.
type Snapshot struct {
	sequence uint64
	snap     *pebble.Snapshot
	it       *pebble.Iterator
	begun    bool
}

// Snapshot returns the present state. The caller must Close it before it closes the State. It must not be called during
// a Write. Disk that later Writes would free stays in use until then.
func (s *State) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	v := &Snapshot{sequence: s.Sequence()}
	err := s.guard(func() (err error) {
		v.snap = s.db.NewSnapshot()
		v.it, err = v.snap.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{kindRecord}, UpperBound: []byte{kindRecord + 1}})
		if err != nil {
			return errors.Join(unavailable(err), v.snap.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Sequence is that of the last log record that the snapshot has.
func (v *Snapshot) Sequence() uint64 { return v.sequence }

// Next returns the next record, false after the last one. The value is valid until the next call.
func (v *Snapshot) Next() (c store.Collection, key string, r Record, ok bool, err error) {
	if v.begun {
		ok = v.it.Next()
	} else {
		v.begun, ok = true, v.it.First()
	}
	if !ok {
		return "", "", r, false, unavailable(v.it.Error())
	}
	k := v.it.Key()[1:]
	for i, b := range k {
		if b == 0 {
			c, key = store.Collection(k[:i]), string(k[i+1:])
			break
		}
	}
	raw, err := v.it.ValueAndErr()
	if err != nil {
		return c, key, r, true, unavailable(err)
	}
	if r.Value, r.Entries, err = decodeRecord(raw); err != nil {
		return c, key, r, true, &store.UnreadableError{Collection: c, Key: key, Reason: err.Error()}
	}
	return c, key, r, true, nil
}

// Close releases the snapshot.
func (v *Snapshot) Close() error {
	err := v.it.Close()
	if e := v.snap.Close(); err == nil {
		err = e
	}
	return err
}
