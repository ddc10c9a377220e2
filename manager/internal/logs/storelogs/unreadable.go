package storelogs

import (
	"strings"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Owns reports whether a collection is one of this package's.
func Owns(c store.Collection) bool { return strings.HasPrefix(string(c), "log_") }

// CheckStored reads a record of a collection that Owns reports, as the engine does. The error is nil,
// store.ErrNotFound, a *store.UnreadableError, or the store's.
func CheckStored(tx store.Tx, c store.Collection, key string) error {
	if c == heads {
		_, err := getHead(tx, key)
		if missing(err) {
			return store.ErrNotFound
		}
		return err
	}
	value, err := tx.Get(c, key)
	if err != nil {
		return err
	}
	reason := ""
	switch c {
	case entries:
		if err := logs.EachEntry(value, func(*logs.Entry, int64) error { return nil }); err != nil {
			reason = err.Error()
		}
	case windows:
		if len(value)%windowEntry != 0 {
			reason = "its length is wrong"
		}
	case meta:
		if key == metaClock && len(value) != 8 {
			reason = "it is no time"
		}
	}
	if reason != "" {
		return &store.UnreadableError{Collection: c, Key: key, Reason: reason}
	}
	return nil
}
