package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// Index reads an index of the state, in the order of positions. It passes over the parts of damaged tables that cannot be
// read: what has entries only there is not found.
type Index struct {
	s      *State
	it     *pebble.Iterator
	prefix int
	key    []byte
	upper  []byte // the end of the index
	end    []byte // the end of what it reads: that of the index, or the beginning of a damaged part
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
	return &Index{s: s, it: it, prefix: len(lower), key: lower, upper: upper, end: upper}, nil
}

// Seek moves to the first entry at or after a position.
func (x *Index) Seek(position []byte) bool {
	x.key = append(x.key[:x.prefix], position...)
	return x.seek(x.key)
}

func (x *Index) seek(key []byte) bool {
	bad := x.s.damaged.Load()
	if bad == nil {
		return x.it.SeekGE(key) || x.pass(key)
	}
	for _, gap := range gaps(*bad, span{key, x.upper}) {
		x.end = gap.to
		x.it.SetBounds(gap.from, gap.to)
		if x.it.First() {
			return true
		}
		if x.it.Error() != nil {
			return x.pass(gap.from)
		}
	}
	x.end = x.upper
	return false
}

// Next moves to the next entry.
func (x *Index) Next() bool {
	x.key = append(x.key[:0], x.it.Key()...)
	return x.it.Next() || x.pass(append(x.key, 0))
}

// pass continues at a key from which on a move found nothing: after a damaged part, if that is why.
func (x *Index) pass(key []byte) bool {
	if err := x.it.Error(); err == nil && bytes.Equal(x.end, x.upper) || err != nil && !x.s.locate(err) {
		return false
	}
	if x.it.Error() == nil {
		key = x.end
	}
	return x.seek(bytes.Clone(key))
}

// Position is that of the present entry, valid until the next move.
func (x *Index) Position() []byte { return x.it.Key()[x.prefix:] }

// Hit is the present entry.
func (x *Index) Hit() (h store.Hit) {
	h, x.err = member.Split(string(x.Position()))
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
	c, key = splitRecordKey(v.it.Key())
	raw, err := v.it.ValueAndErr()
	if err != nil {
		return c, key, r, true, unavailable(err)
	}
	r, err = decodedRecord(c, key, raw)
	return c, key, r, true, err
}

// Close releases the snapshot.
func (v *Snapshot) Close() error {
	return cmp.Or(v.it.Close(), v.snap.Close())
}
