package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Names of what describes the state.
const (
	metaLog      = "log"          // the id of the log
	metaSequence = "sequence"     // 8 bytes, big-endian
	metaCounts   = "counts/"      // and a collection
	metaLists    = "fingerprint/" // and a number: a list of fingerprints, see fingerprints.go
)

func metaKey(name string) []byte { return append([]byte{kindMeta}, name...) }

func listKey(number uint64) []byte {
	return binary.BigEndian.AppendUint64(metaKey(metaLists), number)
}

// meta describes the state, as of the last Write.
type meta struct {
	log      string
	sequence atomic.Uint64
	counts   map[store.Collection]Counts
}

// listed are the lists of fingerprints on disk.
type listed struct {
	first, next uint64 // their numbers
	items       int    // fingerprints in all of them
}

func (c Counts) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.Records))
	dst = binary.AppendUvarint(dst, uint64(c.Bytes))
	for _, name := range slices.Sorted(maps.Keys(c.Entries)) {
		dst = codec.AppendString(dst, name)
		dst = binary.AppendUvarint(dst, uint64(c.Entries[name]))
	}
	return dst
}

var errCounts = errors.New("malformed counts")

func decodeCounts(b []byte) (c Counts, err error) {
	r := codec.NewReader(b)
	c.Records, c.Bytes, c.Entries = int(r.Uvarint()), int64(r.Uvarint()), make(map[string]int)
	for len(r.Rest()) > 0 {
		name := r.String()
		c.Entries[name] = int(r.Uvarint())
	}
	if r.Err() != nil {
		return c, errCounts
	}
	return c, nil
}

// identity reads only the sequence number, and checks whose state it is.
func (s *State) identity(log string) (sequence uint64, err error) {
	name, err := s.metaValue(metaLog)
	if err != nil || name == nil {
		return 0, err
	}
	if string(name) != log {
		return 0, otherLog(string(name), log)
	}
	b, err := s.metaValue(metaSequence)
	if err == nil && len(b) == 8 {
		sequence = binary.BigEndian.Uint64(b)
	}
	return sequence, err
}

// metaValue is nil for what the state does not have.
func (s *State) metaValue(name string) ([]byte, error) {
	value, closer, err := s.db.Get(metaKey(name))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return slices.Clone(value), nil
}

func otherLog(found, want string) error {
	return fmt.Errorf("%w: of %s, and the log beside it is %s", ErrOther, found, want)
}

// load reads what describes the state.
func (s *State) load(log string) error {
	s.meta.counts, s.meta.log = make(map[store.Collection]Counts), log
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kindMeta}, UpperBound: []byte{kindMeta + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	var lists loader
	found := false
	for ok := it.First(); ok; ok = it.Next() {
		name := string(it.Key()[1:])
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		switch {
		case name == metaLog:
			if found = true; string(value) != log {
				return otherLog(string(value), log)
			}
		case name == metaSequence && len(value) == 8:
			s.meta.sequence.Store(binary.BigEndian.Uint64(value))
		case len(name) > len(metaCounts) && name[:len(metaCounts)] == metaCounts:
			if s.meta.counts[store.Collection(name[len(metaCounts):])], err = decodeCounts(value); err != nil {
				return err
			}
		case len(name) == len(metaLists)+8 && name[:len(metaLists)] == metaLists:
			number := binary.BigEndian.Uint64([]byte(name[len(metaLists):]))
			if s.lists.next == 0 {
				s.lists.first = number
			}
			s.lists.next = number + 1
			if !lists.list(value) {
				return fmt.Errorf("malformed list of fingerprints %d", number)
			}
		default:
			return fmt.Errorf("unknown entry %q", name)
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	if !found && s.Sequence() != 0 {
		return errors.New("the name of the log is missing")
	}
	s.lists.items = lists.items
	lists.finish(&s.absent)
	return s.loadLost()
}
