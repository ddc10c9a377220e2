package redis

import (
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var errMember = errors.New("redis store: malformed member of an index")

// A member is the sort key with every 0x00 written as 0x00 0xff, then the terminator 0x00 0x01, then the record key.
// The terminator sorts before every continuation of a sort key, so members compare like (sort key, record key).

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
	return store.Hit{}, errMember
}
