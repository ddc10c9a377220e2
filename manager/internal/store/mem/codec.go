package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// A write set is the body of a log record, and of a snapshot record:
//
//	version  1 byte, 1
//	time     8 bytes, Unix nanoseconds, little-endian; shown to people, not used for decisions
//	changes  each:
//	  op          1 byte: 1 put, 2 delete
//	  collection  string
//	  key         string
//	  put only:   uvarint number of entries, each: index string, sort key string
//	              value, as a string
//
// where a string is a uvarint length and that many bytes.
const (
	codecVersion = 1
	opPut        = 1
	opDelete     = 2

	// maxIndexes bounds the indexes of a collection, and so the entries of a record.
	maxIndexes = 256
)

var errIndexes = fmt.Errorf("mem: a collection has at most %d indexes", maxIndexes)

func appendHeader(dst []byte, at time.Time) []byte {
	dst = append(dst, codecVersion)
	return binary.LittleEndian.AppendUint64(dst, uint64(at.UnixNano()))
}

func appendPut(dst []byte, c store.Collection, indexes []*index, r *record) []byte {
	dst = append(dst, opPut)
	dst = codec.AppendString(dst, c)
	dst = codec.AppendString(dst, r.key())
	dst = binary.AppendUvarint(dst, uint64(r.n))
	for i := range int(r.n) {
		dst = codec.AppendString(dst, indexes[r.slot(i).index].name)
		dst = codec.AppendString(dst, r.sortKeyAt(i))
	}
	return codec.AppendString(dst, r.value())
}

// appendPutOf is appendPut of a record that is not in memory.
func appendPutOf(dst []byte, c store.Collection, key string, value []byte, entries []store.Entry) []byte {
	dst = append(dst, opPut)
	dst = codec.AppendString(dst, c)
	dst = codec.AppendString(dst, key)
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	for _, e := range entries {
		dst = codec.AppendString(dst, e.Index)
		dst = codec.AppendString(dst, e.SortKey)
	}
	return codec.AppendString(dst, value)
}

func appendDelete(dst []byte, c *collection, key string) []byte {
	dst = append(dst, opDelete)
	dst = codec.AppendString(dst, c.name)
	return codec.AppendString(dst, key)
}

// Change is one change of a decoded write set. Its slices alias the body.
type Change struct {
	// Delete marks a deletion: then only Collection and Key are set.
	Delete     bool
	Collection []byte
	Key        []byte
	Value      []byte
	Entries    []ChangeEntry
}

// ChangeEntry is an index entry of a Change.
type ChangeEntry struct {
	Index, SortKey []byte
}

var errWriteSet = errors.New("mem: malformed write set")

// DecodeWriteSet calls fn in order for each change in body, which is a record of this engine's log or snapshot, and
// returns the time at which it was written. It reuses the Change between calls. It returns an error for a body that is
// cut off, has another version, or has a name, key, value or number of entries beyond the engine's limits. It accepts
// two changes of one record, of which the last counts.
func DecodeWriteSet(body []byte, fn func(*Change) error) (time.Time, error) {
	if len(body) < 9 {
		return time.Time{}, fmt.Errorf("%w: %d bytes", errWriteSet, len(body))
	}
	if body[0] != codecVersion {
		return time.Time{}, fmt.Errorf("%w: version %d, this program reads %d", errWriteSet, body[0], codecVersion)
	}
	at := time.Unix(0, int64(binary.LittleEndian.Uint64(body[1:])))
	r := codec.NewReader(body[9:])
	var c Change
	for len(r.Rest()) > 0 {
		begin := len(body) - len(r.Rest())
		if err := c.read(&r); err != nil {
			return at, fmt.Errorf("%w: %s, in the change at byte %d of %d", errWriteSet, err, begin, len(body))
		}
		if err := fn(&c); err != nil {
			return at, err
		}
	}
	return at, nil
}

func (c *Change) read(r *codec.Reader) error {
	op := r.Byte()
	if op != opPut && op != opDelete {
		return fmt.Errorf("operation %d", op)
	}
	*c = Change{Delete: op == opDelete, Entries: c.Entries[:0], Collection: r.Bytes(), Key: r.Bytes()}
	if !c.Delete {
		for range r.Count(maxIndexes) {
			c.Entries = append(c.Entries, ChangeEntry{Index: r.Bytes(), SortKey: r.Bytes()})
		}
		c.Value = r.Bytes()
	}
	if err := r.Err(); err != nil {
		return err
	}
	return c.check()
}

// check applies the same limits as store.CheckPut, without converting every name to a string.
func (c *Change) check() error {
	if err := store.CheckName(c.Collection); err != nil {
		return err
	}
	if len(c.Key) == 0 || len(c.Key) > store.MaxKeyBytes {
		return fmt.Errorf("key of %d bytes", len(c.Key))
	}
	if len(c.Value) > store.MaxValueBytes {
		return fmt.Errorf("value of %d bytes", len(c.Value))
	}
	for i, e := range c.Entries {
		if err := store.CheckName(e.Index); err != nil {
			return err
		}
		if len(e.SortKey) > store.MaxKeyBytes {
			return fmt.Errorf("sort key of %d bytes", len(e.SortKey))
		}
		for _, other := range c.Entries[:i] {
			if bytes.Equal(other.Index, e.Index) {
				return fmt.Errorf("two entries in index %q", e.Index)
			}
		}
	}
	return nil
}
