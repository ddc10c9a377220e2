package storelogs

import (
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Owns reports whether a collection is one of this package's.
func Owns(c store.Collection) bool { return strings.HasPrefix(string(c), "log_") }

// CheckStored reads a record of a collection that Owns reports, as the engine does. The error is nil,
// store.ErrNotFound, a *store.UnreadableError, or the store's.
func CheckStored(tx store.Tx, c store.Collection, key string) error {
	value, err := tx.Get(c, key)
	if err != nil {
		return err
	}
	return CheckRecord(c, key, value)
}

// CheckRecord checks the value of a record of a collection that Owns reports. The error is nil or a *store.UnreadableError.
func CheckRecord(c store.Collection, key string, value []byte) error {
	reason := ""
	switch c {
	case heads:
		_, err := parseHead(key, value)
		return err
	case entries:
		if err := logs.EachEntry(value, func(*logs.Entry, int64) error { return nil }); err != nil {
			reason = err.Error()
		}
	case windows:
		if len(value)%windowEntry != 0 {
			reason = "its length is wrong"
		}
	case meta:
		if key == metaClock {
			_, err := decodeClock(key, value)
			return err
		}
	}
	if reason != "" {
		return &store.UnreadableError{Collection: c, Key: key, Reason: reason}
	}
	return nil
}

// WindowOf returns the window of the log of which a record is the head. It is the default one when the head cannot be read.
// ok is false for a record of another collection.
func WindowOf(c store.Collection, key string, value []byte) (window time.Duration, ok bool) {
	if c != heads {
		return 0, false
	}
	h, err := parseHead(key, value)
	if err != nil {
		return logs.DefaultConfig().Window, true
	}
	return h.settings.Config.Window, true
}
