package ledger

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Entry is an entry as operators see it, without the token: a caller that knows the token can end the reservation.
type Entry struct {
	Scope, Key, Fingerprint, Ref string
	State                        api.State
	// Age is the time since the reservation, ExpiresIn the time until the entry is gone.
	Age, ExpiresIn time.Duration
	// Origin is the data centre that recorded the outcome, and Home the one that decides about a global key under way;
	// both may be "".
	Origin, Home string
	// Result is the recorded answer in the API's raw form; empty when PENDING or UNKNOWN.
	Result []byte
}

func entryOf(recordKey string, e *record, at time.Time) (Entry, error) {
	scope, key, ok := SplitEntryKey(recordKey)
	if !ok {
		return Entry{}, unreadable(recordKey, "its key has no scope")
	}
	state, expires := standing(e, at.UnixMilli())
	return Entry{
		Scope: scope, Key: key, Fingerprint: string(e.fingerprint), Ref: string(e.ref), State: state,
		Age: max(at.Sub(time.UnixMilli(e.created)), 0), ExpiresIn: remaining(expires, at),
		Result: e.result, Origin: string(e.origin), Home: string(e.home),
	}, nil
}

// Get returns an entry. Errors: *api.FieldError, ErrNotFound, ErrQuarantine for a key without an entry that the ledger may
// have forgotten, the store's.
func (l *Ledger) Get(ctx context.Context, scope, key string) (Entry, error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return Entry{}, err
	}
	var entry Entry
	err := l.store.View(ctx, func(tx store.Tx) error {
		var err error
		if entry, _, err = l.Live(tx, EntryKey(scope, key)); errors.Is(err, ErrNotFound) {
			err = cmp.Or(l.quarantined(tx), err)
		}
		return err
	})
	return entry, err
}

// The rest of what operators read is in package views, which needs View, Live, ByExpiry, ScanRef and ReadOutcome.

// View runs fn in a read-only transaction of the store. fn may run again. Errors: fn's, the store's.
func (l *Ledger) View(ctx context.Context, fn func(store.Tx) error) error {
	return l.store.View(ctx, fn)
}

// Live returns the entry whose record has that key, and the state in which it is stored. A reservation that ran out is
// stored as PENDING until the sweeper has stored it as UNKNOWN. Errors: ErrNotFound, also for an entry that has expired;
// *store.UnreadableError; the store's.
func (l *Ledger) Live(tx store.Tx, key string) (e Entry, stored api.State, err error) {
	var rec record
	r, err := l.load(tx, key, &rec)
	if err != nil {
		return Entry{}, api.StateNone, err
	}
	at := tx.Now()
	if !live(r, at.UnixMilli()) {
		return Entry{}, api.StateNone, ErrNotFound
	}
	e, err = entryOf(key, r, at)
	return e, r.state, err
}

// ByExpiry returns the index of Collection with the entries that are stored in a state, ordered by when that state ends,
// and the sort key from which on it has those whose state has not ended at a time.
func ByExpiry(stored api.State, at time.Time) (index, from string) {
	return indexOf(stored), sortKey(at.UnixMilli() + 1)
}

// ScanRef finds up to 16 records of Collection whose outcomes were recorded with ref, also expired ones. There are none
// for a text that is no possible reference. Errors: the store's.
func ScanRef(tx store.Tx, ref string) ([]store.Hit, error) {
	if ref == "" || len(ref) > maxRefBytes {
		return nil, nil
	}
	return tx.Scan(Collection, indexRef, store.Range{From: ref, To: ref + "\x00", Limit: 16})
}

// Delete removes an entry in any state and returns what it was. Waiters are woken. An attempt that still runs is
// accepted late when it ends. Errors: *api.FieldError, ErrNotFound, *ImportedError, the store's.
func (l *Ledger) Delete(ctx context.Context, scope, key string) (Entry, error) {
	return l.DeleteImported(ctx, scope, key, "")
}

// DeleteImported is Delete that also removes an outcome of the data centre origin. While that one has the outcome, a
// comparison brings it back.
func (l *Ledger) DeleteImported(ctx context.Context, scope, key, origin string) (Entry, error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return Entry{}, err
	}
	rk := EntryKey(scope, key)
	var entry Entry
	err := l.transact(ctx, func(tx *Tx) error {
		var r record
		e, err := l.load(tx.Tx, rk, &r)
		if err != nil {
			return err
		}
		at := tx.Now()
		if !live(e, at.UnixMilli()) {
			return ErrNotFound
		}
		if entry, err = entryOf(rk, e, at); err != nil {
			return err
		}
		if e.imported && string(e.origin) != origin {
			return &ImportedError{Origin: string(e.origin)}
		}
		tx.fx.deleted++
		tx.change(OpDelete, rk)
		return tx.remove(rk, e)
	})
	if err != nil {
		return Entry{}, err
	}
	return entry, nil
}
