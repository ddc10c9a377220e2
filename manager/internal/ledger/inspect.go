package ledger

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection is where the ledger keeps its records, for tools that read a store from outside.
const Collection = collection

// StoredRecord is the content of a record, without its token.
type StoredRecord struct {
	Scope, Key, Fingerprint, Ref string
	State                        api.State
	Created, Expires             time.Time
	ResultBytes                  int
	// Entries are its index entries.
	Entries []store.Entry
}

// ReadRecord decodes a record for an offline tool. Its error is a *store.UnreadableError.
func ReadRecord(key string, value []byte) (StoredRecord, error) {
	var r record
	if err := decodeRecord(key, value, &r); err != nil {
		return StoredRecord{}, err
	}
	if _, err := r.answer(key); err != nil {
		return StoredRecord{}, err
	}
	scope, k, ok := splitRecordKey(key)
	if !ok {
		return StoredRecord{}, unreadable(key, "its key has no scope")
	}
	return StoredRecord{
		Scope: scope, Key: k, Fingerprint: string(r.fingerprint), Ref: string(r.ref), State: r.state,
		Created: time.UnixMilli(r.created), Expires: time.UnixMilli(r.expires), ResultBytes: len(r.result),
		Entries: r.appendEntries(nil),
	}, nil
}
