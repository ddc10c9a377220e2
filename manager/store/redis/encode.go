package redis

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/store"
)

var errCorrupt = errors.New("redis store: malformed record")

// encodeRecord packs the index entries before the value: whoever replaces or
// deletes a record has to know its entries.
func encodeRecord(value []byte, entries []store.Entry) string {
	n := 1 + len(value)
	for _, e := range entries {
		n += len(e.Index) + len(e.SortKey) + 4
	}
	b := make([]byte, 0, n)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(len(e.Index)))
		b = append(b, e.Index...)
		b = binary.AppendUvarint(b, uint64(len(e.SortKey)))
		b = append(b, e.SortKey...)
	}
	return string(append(b, value...))
}

// decodeRecord is the inverse of encodeRecord; value aliases b.
func decodeRecord(b []byte) (value []byte, entries []store.Entry, err error) {
	next := func() (string, bool) {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			return "", false
		}
		s := string(b[w : w+int(n)])
		b = b[w+int(n):]
		return s, true
	}
	count, w := binary.Uvarint(b)
	if w <= 0 || count > uint64(len(b)) {
		return nil, nil, errCorrupt
	}
	b = b[w:]
	for range count {
		index, ok := next()
		if !ok {
			return nil, nil, errCorrupt
		}
		sortKey, ok := next()
		if !ok {
			return nil, nil, errCorrupt
		}
		entries = append(entries, store.Entry{Index: index, SortKey: sortKey})
	}
	return b, entries, nil
}

// A member is the sort key with every 0x00 written as 0x00 0xff, the
// terminator 0x00 0x01, and the record key. The terminator is below every
// continuation of a sort key, so members compare as (sort key, record key).

func escape(sortKey string) string {
	if strings.IndexByte(sortKey, 0) < 0 {
		return sortKey
	}
	return strings.ReplaceAll(sortKey, "\x00", "\x00\xff")
}

func member(sortKey, key string) string { return escape(sortKey) + "\x00\x01" + key }

func splitMember(m string) (store.Hit, error) {
	for i := 0; i+1 < len(m); i++ {
		if m[i] != 0 {
			continue
		}
		if m[i+1] == 1 {
			return store.Hit{SortKey: strings.ReplaceAll(m[:i], "\x00\xff", "\x00"), Key: m[i+2:]}, nil
		}
		i++ // an escaped zero
	}
	return store.Hit{}, errCorrupt
}
