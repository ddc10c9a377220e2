package ledger

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// StoredRecord is the content of a record, without its token.
type StoredRecord struct {
	Scope, Key, Fingerprint, Ref string
	State                        api.State
	Created, Expires             time.Time
	ResultBytes                  int
	// Entries are its index entries.
	Entries []store.Entry
}

// Remembered is for how long a record was to be remembered when it was written, without the manager's own unknown TTL;
// 0 for a record that cannot be read.
func Remembered(key string, value []byte) time.Duration {
	var r record
	if decodeRecord(key, value, &r) != nil {
		return 0
	}
	return time.Duration(r.remembered()) * time.Millisecond
}

// RememberedByEntries is Remembered for a record whose value is not at hand, by its index entries: entry returns the sort
// key of an index, "" for none. ok is false for a reservation, whose entries do not tell.
func RememberedByEntries(entry func(index string) string) (d time.Duration, ok bool) {
	for _, state := range storedStates {
		key := entry(indexOf(state))
		if len(key) != 2*sortKeyDigits {
			continue
		}
		expires, err1 := timeOf(key)
		touched, err2 := timeOf(key[sortKeyDigits:])
		if err1 == nil && err2 == nil {
			r := record{state: state, touched: touched, expires: expires}
			return time.Duration(r.remembered()) * time.Millisecond, true
		}
	}
	return 0, false
}

// ReadRecord decodes a record for an offline tool. Its error is a *store.UnreadableError.
func ReadRecord(key string, value []byte) (StoredRecord, error) {
	var r record
	if err := decodeRecord(key, value, &r); err != nil {
		return StoredRecord{}, err
	}
	scope, k, ok := SplitEntryKey(key)
	if !ok {
		return StoredRecord{}, unreadable(key, "its key has no scope")
	}
	return StoredRecord{
		Scope: scope, Key: k, Fingerprint: string(r.fingerprint), Ref: string(r.ref), State: r.state,
		Created: time.UnixMilli(r.created), Expires: time.UnixMilli(r.expires), ResultBytes: len(r.result),
		Entries: r.appendEntries(nil),
	}, nil
}
