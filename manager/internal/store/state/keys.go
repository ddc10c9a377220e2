package state

import (
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
)

// Keys on disk, in their order:
//
//	0 meta name                             what the state is of, see meta.go
//	1 collection 0 key                      a record
//	2 collection 0 index 0 position         an index entry, without a value
//
// where a position is a sort key and the record's key (see package member), so that positions are ordered as hits are. The
// value of a record is a uvarint number of index entries, each an index and a sort key, and then the value as given; a
// string has a uvarint length before it.
const (
	kindMeta   = 0
	kindRecord = 1
	kindEntry  = 2
)

func appendRecordKey(dst []byte, c store.Collection, key string) []byte {
	return append(append(append(append(dst, kindRecord), c...), 0), key...)
}

// appendIndex appends what the keys of all entries of an index begin with.
func appendIndex(dst []byte, c store.Collection, index string) []byte {
	return append(append(append(append(append(dst, kindEntry), c...), 0), index...), 0)
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
