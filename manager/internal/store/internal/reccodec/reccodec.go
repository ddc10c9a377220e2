// Package reccodec encodes index entries for engines that store them with their record, so that they are removed when
// the record is replaced or deleted.
package reccodec

import (
	"encoding/binary"
	"errors"
	"slices"

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
		b = binary.AppendUvarint(b, uint64(len(e.Index)))
		b = append(b, e.Index...)
		b = binary.AppendUvarint(b, uint64(len(e.SortKey)))
		b = append(b, e.SortKey...)
	}
	return b
}

// Split decodes the entries at the start of b and returns the bytes after them, which alias b.
func Split(b []byte) (entries []store.Entry, rest []byte, err error) {
	count, w := binary.Uvarint(b)
	if w <= 0 || count > uint64(len(b)) {
		return nil, nil, ErrCorrupt
	}
	b = b[w:]
	next := func() string {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			err = ErrCorrupt
			return ""
		}
		s := string(b[w : w+int(n)])
		b = b[w+int(n):]
		return s
	}
	for range count {
		e := store.Entry{Index: next(), SortKey: next()}
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, e)
	}
	return entries, b, nil
}
