package ledger

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

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
