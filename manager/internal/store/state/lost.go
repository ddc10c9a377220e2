package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Lost is the collection of what repairs could not read. It has records like the others, so that copies of the state
// have it, too. A state that gets such a record for the first time refuses what the record describes.
const Lost store.Collection = "lost"

// lost is what a repair could not read: all records with one of the fingerprints, in order, in one of the spans. A deleted
// record's fingerprint leaves the state. A record that was never written matches one only by chance.
type lost struct {
	spans   []span
	records []fingerprint
}

func (l lost) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(l.spans)))
	for _, s := range l.spans {
		dst = codec.AppendString(codec.AppendString(dst, s.from), s.to)
	}
	for _, p := range l.records {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(p))
	}
	return dst
}

var errLost = errors.New("malformed list of lost records")

func decodeLost(b []byte) (l lost, err error) {
	r := codec.NewReader(b)
	for range r.Count(uint64(len(b))) {
		l.spans = append(l.spans, span{bytes.Clone(r.Bytes()), bytes.Clone(r.Bytes())})
	}
	list := r.Rest()
	if r.Err() != nil || len(list)%4 != 0 {
		return l, errLost
	}
	for ; len(list) > 0; list = list[4:] {
		l.records = append(l.records, fingerprint(binary.LittleEndian.Uint32(list)))
	}
	return l, nil
}

// isLost reports whether the record with that key on disk is lost, unless the disk has one.
func (s *State) isLost(key []byte, p fingerprint) bool {
	for _, l := range s.allLost() {
		if _, ok := slices.BinarySearch(l.records, p); ok && s.absent.has(p) &&
			slices.ContainsFunc(l.spans, func(s span) bool { return s.has(key) }) {
			return true
		}
	}
	return false
}

func (s *State) allLost() []lost {
	if all := s.lost.Load(); all != nil {
		return *all
	}
	return nil
}

func (s *State) addLost(more []lost) {
	if len(more) > 0 {
		all := append(slices.Clip(s.allLost()), more...)
		s.lost.Store(&all)
	}
}

func (s span) has(key []byte) bool {
	return bytes.Compare(s.from, key) <= 0 && bytes.Compare(key, s.to) <= 0
}

// loadLost reads what repairs lost. Their records are numbered, because a scan would read what is beside them.
func (s *State) loadLost() error {
	var all []lost
	for i := range s.meta.counts[Lost].Records {
		r, err := s.Get(Lost, strconv.Itoa(i))
		if err != nil {
			return err
		}
		l, err := decodeLost(r.Value)
		if err != nil {
			return err
		}
		all = append(all, l)
	}
	s.addLost(all)
	return nil
}

// lost is what the table adds to what is lost.
func (t *table) lost() (all []lost, err error) {
	for _, c := range t.list {
		if c.Collection == Lost && !c.Deleted && !c.Existed {
			l, err := decodeLost(c.Value)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", c.Collection, c.Key, err)
			}
			all = append(all, l)
		}
	}
	return all, nil
}
