// Package member encodes the entries of an index for engines that keep them in the order of their bytes.
package member

import (
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// ErrMalformed is returned for bytes that Join did not make.
var ErrMalformed = errors.New("store: malformed member of an index")

// Escape writes every 0x00 of a sort key as 0x00 0xff. A member is that, then the terminator 0x00 0x01, then the record
// key. The terminator sorts before every continuation of a sort key, so members compare like (sort key, record key).
func Escape(sortKey string) string {
	if strings.IndexByte(sortKey, 0) < 0 {
		return sortKey
	}
	return strings.ReplaceAll(sortKey, "\x00", "\x00\xff")
}

// Join returns the member of an entry.
func Join(sortKey, key string) string { return Escape(sortKey) + terminator + key }

// Append appends the member of an entry.
func Append(dst []byte, sortKey, key string) []byte {
	return append(append(append(dst, Escape(sortKey)...), terminator...), key...)
}

const terminator = "\x00\x01"

// Split returns the entry of a member.
func Split(m string) (h store.Hit, err error) {
	for i := 0; i+1 < len(m); i++ {
		switch {
		case m[i] != 0:
		case m[i+1] == 1:
			return store.Hit{SortKey: strings.ReplaceAll(m[:i], "\x00\xff", "\x00"), Key: m[i+2:]}, nil
		case m[i+1] == 0xff: // an escaped zero
			i++
		default:
			return h, ErrMalformed
		}
	}
	return h, ErrMalformed
}
