package ledger

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
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

// Leases describes the reservations to package downtime, which extends them after the manager was away. A reservation
// that had already run out stays so.
func Leases() store.Leases {
	return store.Leases{
		Name: "reservations", Collection: Collection, Index: indexOf(api.StatePending), Extend: extendReservation,
	}
}

func extendReservation(stx store.Tx, key string, value []byte, away store.Away) (bool, error) {
	var e record
	if decodeRecord(key, value, &e) != nil || e.state != api.StatePending {
		return false, nil
	}
	// touched is when the reservation was made or last renewed.
	whole := time.Duration(e.expires-e.touched) * time.Millisecond
	end, later := away.Extend(time.UnixMilli(e.touched), time.UnixMilli(e.expires), whole)
	if !later {
		return false, nil
	}
	e.expires = deadline(end, 0)
	tx := Tx{Tx: stx}
	return true, tx.put(key, &e)
}

// Places are the indexes in which each record of the ledger appears once.
func Places() []unread.Place {
	var out []unread.Place
	for _, s := range storedStates {
		out = append(out, unread.Place{Collection: Collection, Index: indexOf(s)})
	}
	return out
}

// Skips reports whether a search may leave out a record that it could not read: no other manager can read it either.
func (l *Ledger) Skips(err error) bool {
	return l.opts.Unreadable.Met(err) && !store.ReadableElsewhere(err)
}

// CheckStored reads a record and returns nil, store.ErrNotFound, a *store.UnreadableError, or the store's error.
func CheckStored(tx store.Tx, key string) error {
	value, err := tx.Get(Collection, key)
	if err != nil {
		return err
	}
	_, err = ReadRecord(key, value)
	return err
}

// DeleteUnreadable deletes the record of that key in the store if it cannot be read, and returns why it could not be
// read. The entry's key is then free, so work that the record may have remembered can run again. Errors: ErrNotFound,
// unread.ErrReadable, the store's.
func (l *Ledger) DeleteUnreadable(ctx context.Context, key string) (*store.UnreadableError, error) {
	var u *store.UnreadableError
	err := l.transact(ctx, func(tx *Tx) error {
		var err error
		if u, err = unread.Reason(CheckStored(tx.Tx, key), ErrNotFound); err != nil {
			return err
		}
		value, _ := tx.Get(Collection, key) // nil if the engine cannot read it
		tx.fx.deleted++
		return tx.remove(key, &record{size: len(key) + len(value)})
	})
	if err != nil {
		return nil, err
	}
	l.opts.Unreadable.Forget(Collection, key)
	return u, nil
}
