// Package reccodec encodes index entries for engines that store them with their record, so that they are removed when
// the record is replaced or deleted.
package reccodec

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// ErrCorrupt is returned for bytes that Append did not make.
var ErrCorrupt = errors.New("store: malformed index entries of a record")

// Append appends the entries:
//
//	uvarint(count) (uvarint(length) index uvarint(length) sort-key)*
func Append(b []byte, entries []store.Entry) []byte {
	size := binary.MaxVarintLen16
	for _, e := range entries {
		size += len(e.Index) + len(e.SortKey) + 2*binary.MaxVarintLen16
	}
	b = slices.Grow(b, size)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for _, e := range entries {
		b = codec.AppendString(codec.AppendString(b, e.Index), e.SortKey)
	}
	return b
}

// Split decodes the entries at the start of b and returns the bytes after them, which alias b.
func Split(b []byte) (entries []store.Entry, rest []byte, err error) {
	r := codec.NewReader(b)
	n := r.Count(uint64(len(b)))
	entries = slices.Grow(entries, min(n, 8)) // n may be damaged
	for range n {
		entries = append(entries, store.Entry{Index: r.String(), SortKey: r.String()})
		if r.Err() != nil {
			break
		}
	}
	if r.Err() != nil {
		return nil, nil, ErrCorrupt
	}
	return entries, r.Rest(), nil
}
