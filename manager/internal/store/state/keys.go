package state

import (
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

// Keys on disk, in their order:
//
//	0 meta name                             what the state is of, see meta.go
//	1 collection 0 key                      a record
//	2 collection 0 index 0 position         an index entry, without a value
//
// where a position is an escaped sort key followed by the record's key, so that positions are ordered as hits are. The
// value of a record is a uvarint number of index entries, each an index and a sort key, and then the value as given; a
// string has a uvarint length before it.
const (
	kindMeta   = 0
	kindRecord = 1
	kindEntry  = 2
)

func appendRecordKey(dst []byte, c store.Collection, key string) []byte {
	dst = append(dst, kindRecord)
	dst = append(dst, c...)
	dst = append(dst, 0)
	return append(dst, key...)
}

// appendIndex appends what the keys of all entries of an index begin with.
func appendIndex(dst []byte, c store.Collection, index string) []byte {
	dst = append(dst, kindEntry)
	dst = append(dst, c...)
	dst = append(dst, 0)
	dst = append(dst, index...)
	return append(dst, 0)
}

// AppendPosition appends the position of an index entry: positions are ordered bytewise as hits are by sort key and key.
func AppendPosition(dst []byte, sortKey, key string) []byte {
	for {
		i := strings.IndexByte(sortKey, 0)
		if i < 0 {
			break
		}
		dst = append(dst, sortKey[:i]...)
		dst = append(dst, 0, 0xff)
		sortKey = sortKey[i+1:]
	}
	dst = append(dst, sortKey...)
	dst = append(dst, 0, 1)
	return append(dst, key...)
}

var errPosition = errors.New("malformed index entry")

// SplitPosition is the reverse of AppendPosition.
func SplitPosition(p []byte) (sortKey, key string, err error) {
	var b []byte
	for i := 0; i+1 < len(p); i++ {
		if p[i] != 0 {
			continue
		}
		switch p[i+1] {
		case 1:
			if b == nil {
				return string(p[:i]), string(p[i+2:]), nil
			}
			return string(append(b, p[:i]...)), string(p[i+2:]), nil
		case 0xff:
			b = append(b, p[:i+1]...)
			p = p[i+2:]
			i = -1
		default:
			return "", "", errPosition
		}
	}
	return "", "", errPosition
}

func appendRecord(dst []byte, value []byte, entries []store.Entry) []byte {
	return append(reccodec.Append(dst, entries), value...)
}

// decodeRecord splits the value on disk. The result's value aliases b.
func decodeRecord(b []byte) (value []byte, entries []store.Entry, err error) {
	if entries, value, err = reccodec.Split(b); len(entries) > maxEntries {
		return nil, nil, reccodec.ErrCorrupt
	}
	return value, entries, err
}

// maxEntries bounds the index entries of a record.
const maxEntries = 256
